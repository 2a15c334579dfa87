"""State dicts of the tutorials' layers in plain PyTorch give the tutorials' numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore import (
    Additive,
    Bilinear,
    Causal,
    Concat,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    Keys,
    Laplace,
    ScaledDot,
    Trilinear,
)
from anyscore.torch import (
    AdditiveAttention,
    Attention,
    MLPAttention,
    MultiHeadAttention,
    SelfAttention,
)
from frameworks.torch.plain_layers import (
    BilinearScore,
    ConcatScore,
    Container,
    FusedAttention,
    FusedMultiHead,
    PlainAdditive,
    causal,
    scaled_dot,
    scrambled,
)

pytestmark = pytest.mark.sample

LENGTHS = torch.tensor([2, 6])


@pytest.mark.parametrize("last", ["w_v", "W_v", "v"])
@pytest.mark.parametrize("lengths", [LENGTHS, torch.tensor([[1], [9]]), None])
def test_additive_layers_load_by_any_name(last: str, lengths: Tensor | None) -> None:
    theirs = PlainAdditive(d_q=20, d_k=2, hidden=8, last=last)
    q, k, v = torch.randn(2, 1, 20), torch.randn(2, 10, 2), torch.randn(2, 10, 4)
    for ours in (AdditiveAttention(8, 0.1), AdditiveAttention(8, query_size=20, key_size=2)):
        ours.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(ours.eval()(q, k, v, lengths), theirs(q, k, v, lengths))
    mlp = MLPAttention(8)
    mlp.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(mlp(q, k, v, lengths), theirs(q, k, v, lengths))


@pytest.mark.parametrize("score", [BilinearScore(5), ConcatScore(5)])
@pytest.mark.parametrize("options", [{}, {"scale": 1}, {"scale": 0.25}, {"d_q": 5, "d_k": 5}])
def test_the_container_of_trained_scores_loads(
    score: torch.nn.Module, options: dict[str, Any]
) -> None:
    theirs = Container(score)
    concat = isinstance(score, ConcatScore)
    # The document's bilinear score has no scale: the loaded weight makes up for a scale.
    made = {
        "concat": lambda: Attention("concat", hidden=5, bias=True),
        "bilinear": lambda: Attention("bilinear", **options),
    }
    ours = made["concat" if concat else "bilinear"]()
    ours.load_state_dict(theirs.state_dict())
    s, h = torch.randn(2, 3, 5), torch.randn(2, 7, 5)
    again = made["concat" if concat else "bilinear"]()
    again.load_state_dict(ours.state_dict())  # anyscore's own names do not change
    assert torch.equal(again(s, h), ours(s, h))
    torch.testing.assert_close(ours(s, h), theirs(s, h))
    padding = torch.arange(7) >= LENGTHS[:, None]
    torch.testing.assert_close(ours(s, h, mask=Keys(~padding)), theirs(s, h, padding[:, None]))
    torch.testing.assert_close(ours(s, h, valid_lens=LENGTHS), theirs(s, h, padding[:, None]))
    assert sum(p.numel() for p in ours.parameters()) == (60 if concat else 25)


def interchangeable() -> dict[str, Any]:
    w, W, W_both = torch.randn(3), torch.randn(3, 5), torch.randn(3, 10)
    scores = [
        Dot(), ScaledDot(), Bilinear(torch.randn(5, 5)), Cosine(0.3), Gaussian(2.0), Laplace(),
        Trilinear(*torch.randn(3, 5)), Concat(W_both, w, torch.randn(3)),
        Additive(W, torch.randn(3, 5), w), GATv2(W, torch.randn(3, 5), w),
    ]  # fmt: skip
    return {type(score).__name__: score for score in scores}


@pytest.mark.parametrize("name", interchangeable())
def test_scores_are_interchangeable_in_one_container(name: str) -> None:
    score = interchangeable()[name]
    layer, s, h = Attention(score), torch.randn(2, 3, 5), torch.randn(2, 7, 5)
    context = layer(s, h, valid_lens=LENGTHS)
    weights = layer.attention_weights
    torch.testing.assert_close(context, weights @ h)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    steps = [layer(s[:, i : i + 1], h, valid_lens=LENGTHS) for i in range(3)]
    assert steps[0].shape == (2, 1, 5)
    torch.testing.assert_close(torch.cat(steps, dim=1), context)


def test_weights_of_the_additive_layers_depend_on_the_query() -> None:
    for layer in (MLPAttention(8), AdditiveAttention(8)):
        layer(torch.randn(1, 2, 3), torch.randn(1, 7, 3))
        first, second = layer.attention_weights[0]
        assert (first - second).abs().max() > 1e-3


def test_fused_self_attention_loads() -> None:
    theirs, ours = FusedAttention(6, 3), SelfAttention(6, 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(ours(x, mask=Causal()), theirs(x))
    assert not torch.allclose(ours(x), theirs(x))


def test_fused_multi_head_attention_loads_and_does_not_mix_tokens_with_heads() -> None:
    theirs, ours = FusedMultiHead(12, 3), MultiHeadAttention(12, 3)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(x, mask=Causal()), theirs(x))
    q, k, v = (scrambled(y, 3) for y in theirs._MultiHeadAttention__qkv(x).chunk(3, dim=-1))
    keep = causal(5, 5)
    mixed = torch.stack([scaled_dot(q[:, h], k[:, h], v[:, h], keep) for h in range(3)], dim=1)
    mixed = theirs._MultiHeadAttention__fc(mixed.reshape(2, 5, 12))
    assert not torch.allclose(ours(x, mask=Causal()), mixed, atol=1e-3)


@pytest.mark.parametrize(("d", "d_k", "d_v"), [(6, 3, 6), (7, 5, 11)])
def test_the_number_of_parameters(d: int, d_k: int, d_v: int) -> None:
    layer = SelfAttention(d, d_k, d_v=d_v, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == d * (2 * d_k + d_v)
    heads = MultiHeadAttention(12, 3, bias=False, project_output=False)
    assert sum(p.numel() for p in heads.parameters()) == 12 * (2 * 12 + 12)


def test_two_biases_become_one() -> None:
    """Two linear layers with biases, tanh(W_q q + b_q + W_k k + b_k), load into one bias."""
    W_q, W_k, v = nn.Linear(20, 8), nn.Linear(2, 8), nn.Linear(8, 1, bias=False)
    theirs = nn.ModuleDict({"W_q": W_q, "W_k": W_k, "v": v})
    ours = Attention("additive", hidden=8, bias=True)
    ours.load_state_dict(theirs.state_dict())
    q, k = torch.randn(2, 3, 20), torch.randn(2, 7, 2)
    s = v(torch.tanh(W_q(q)[:, :, None] + W_k(k)[:, None]))[..., 0]
    torch.testing.assert_close(ours(q, k), torch.softmax(s, -1) @ k)
    for only in ("W_q", "W_k"):
        state = {name: x for name, x in theirs.state_dict().items() if "bias" not in name}
        ours.load_state_dict(state | {f"{only}.bias": torch.ones(8)})
        assert torch.equal(ours.bias.weight, torch.ones(8))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bias"):
        Attention("additive", hidden=8).load_state_dict(theirs.state_dict())
