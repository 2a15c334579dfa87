"""Multi-head and self-attention layers are right per head, score, mask and state dict."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore import Additive, Causal, Dot, Gaussian, Keys, attention
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from helpers.by_pair import by_pair
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

WIDTH, HEADS, B, T_Q, T_K = 12, 6, 2, 3, 7
HEAD = WIDTH // HEADS
BY_NAME = by_pair("name", TABLE)


def by_head(layer: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, **mask: Any) -> Tensor:
    """Return the output of `layer`, head after head: head h has channels [h·n, (h+1)·n)."""
    outputs = []
    for h in range(layer.n_heads):
        kv = h * layer.kv_heads // layer.n_heads
        one = Attention(layer.attention.score, d_q=HEAD, d_k=HEAD, projected=True)
        state = {}
        for name, x in layer.attention.state_dict().items():
            own = x[kv] if name in ("W_k.weight", "w_k.weight") else x[h]
            state[name] = own[None] if name == "w_v.weight" else own
        one.load_state_dict(state)
        channels = slice(h * HEAD, (h + 1) * HEAD), slice(kv * HEAD, (kv + 1) * HEAD)
        projected = (
            nn.functional.linear(x, W.weight[rows], None if W.bias is None else W.bias[rows])
            for x, W, rows in (
                (q, layer.W_q, channels[0]),
                (k, layer.W_k, channels[1]),
                (v, layer.W_v, channels[1]),
            )
        )
        outputs.append(one(*projected, **mask))
    joined = torch.cat(outputs, dim=-1)
    return joined if layer.W_o is None else layer.W_o(joined)


@BY_NAME
@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_heads_one_after_the_other(name: str, kv_heads: int) -> None:
    if TABLE[name].of_both and kv_heads < HEADS:
        with pytest.raises(ValueError, match="cannot have fewer key heads"):
            MultiHeadAttention(WIDTH, HEADS, kv_heads=kv_heads, score=name)
        return
    layer = MultiHeadAttention(
        WIDTH, HEADS, kv_heads=kv_heads, score=name, d_q=5, d_k=11, d_v=13
    )  # a layer between sequences of different widths
    q, k, v = torch.randn(B, T_Q, 5), torch.randn(B, T_K, 11), torch.randn(B, T_K, 13)
    for mask in (
        {},
        {"valid_lens": torch.tensor([0, 4])},
        {"valid_lens": torch.tensor([[1, 2, 0], [7, 3, 5]])},
        {"mask": Causal(align="end")},
        {"mask": torch.rand(T_Q, T_K) > 0.5},
        {"mask": Keys(torch.rand(B, T_K) > 0.3), "valid_lens": torch.tensor([5, 4])},
    ):
        output = layer(q, k, v, **mask)
        assert output.shape == (B, T_Q, WIDTH)
        torch.testing.assert_close(output, by_head(layer, q, k, v, **mask))
        weights = layer.attention_weights
        assert weights.shape == (B, HEADS, T_Q, T_K)
        attended = weights.sum(-1)
        torch.testing.assert_close(attended, (attended > 0.5).float())


def test_keys_default_to_queries_and_values_to_keys() -> None:
    layer, x, y = MultiHeadAttention(WIDTH, HEADS), torch.randn(B, T_Q, WIDTH), None
    torch.testing.assert_close(layer(x), layer(x, x, x))
    y = torch.randn(B, T_K, WIDTH)
    torch.testing.assert_close(layer(x, y), layer(x, y, y))
    assert not torch.allclose(layer(x), layer(x, y), atol=1e-3)


def test_a_mask_for_each_head() -> None:
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.randn(B, T_Q, WIDTH)
    y = torch.randn(B, T_K, WIDTH)
    keep = torch.rand(B, HEADS, T_Q, T_K) > 0.5
    layer(x, y, mask=keep)
    assert ((layer.attention_weights > 0) == keep).all()
    with pytest.raises(ValueError, match=r"mask\[:, None\]"):
        layer(x, y, mask=keep[:, 0])
    torch.testing.assert_close(layer(x, y, mask=keep[:, :1]), layer(x, y, mask=keep[:, 0][:, None]))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("project_output", [True, False])
@pytest.mark.parametrize("kv_heads", [6, 3])
def test_the_number_of_parameters(bias: bool, project_output: bool, kv_heads: int) -> None:
    layer = MultiHeadAttention(
        WIDTH, HEADS, kv_heads=kv_heads, d_q=5, d_k=11, d_v=13, bias=bias,
        project_output=project_output,
    )  # fmt: skip
    kv = kv_heads * HEAD
    expected = WIDTH * 5 + kv * (11 + 13) + project_output * WIDTH * WIDTH
    expected += bias * (WIDTH + 2 * kv + project_output * WIDTH)
    assert sum(p.numel() for p in layer.parameters()) == expected
    names = {name for name, _ in layer.named_parameters()}
    assert ("W_o.weight" in names, "W_q.bias" in names) == (project_output, bias)
    single = SelfAttention(5, 3, d_v=7, bias=bias, project_output=project_output)
    expected = 5 * (2 * 3 + 7) + bias * 13 + project_output * (7 * 5 + bias * 5)
    assert sum(p.numel() for p in single.parameters()) == expected


@BY_NAME
def test_parameters_of_the_score_in_every_head(name: str) -> None:
    layer = MultiHeadAttention(WIDTH, HEADS, score=name).attention
    shapes = {n.removesuffix(".weight"): tuple(p.shape) for n, p in layer.named_parameters()}
    learned = TABLE[name].learned(HEAD, HEAD, HEAD)
    projected = {"W_q", "W_k"}  # heads come projected
    assert shapes == {x: (HEADS, *shape) for x, shape in learned.items() if x not in projected}


@pytest.mark.parametrize("bias", [True, False])
def test_the_numbers_of_torch_multi_head_attention(bias: bool) -> None:
    theirs = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True)
    ours = MultiHeadAttention(WIDTH, HEADS, bias=bias)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    q, k, v = (torch.randn(B, t, WIDTH) for t in (T_Q, T_K, T_K))
    padding = torch.arange(T_K) >= torch.tensor([[4], [7]])
    for our_mask, their_mask in (
        ({}, {}),
        ({"mask": Keys(~padding)}, {"key_padding_mask": padding}),
        ({"valid_lens": torch.tensor([4, 7])}, {"key_padding_mask": padding}),
        ({"mask": Causal(align="start")}, {"attn_mask": ~torch.ones(T_Q, T_K).bool().tril()}),
    ):
        output, weights = theirs(q, k, v, average_attn_weights=False, **their_mask)
        torch.testing.assert_close(ours(q, k, v, **our_mask), output)
        torch.testing.assert_close(ours.attention_weights, weights)


def test_a_state_dict_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError):
        MultiHeadAttention(WIDTH, HEADS).load_state_dict(nn.MultiheadAttention(8, 2).state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        SelfAttention(5, 3).load_state_dict(SelfAttention(5, 2).state_dict())


def test_state_dicts_of_layers_inside_a_model() -> None:
    theirs = nn.ModuleDict({"attend": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)})
    ours = nn.ModuleDict({"attend": MultiHeadAttention(WIDTH, HEADS)})
    state = theirs.state_dict()
    names = set(state)
    ours.load_state_dict(state)
    assert set(state) == names
    x = torch.randn(B, T_Q, WIDTH)
    torch.testing.assert_close(ours["attend"](x), theirs["attend"](x, x, x)[0])


@BY_NAME
@pytest.mark.parametrize("kind", ["heads", "self"])
def test_gradients_reach_all_parameters(name: str, kind: str) -> None:
    layer: nn.Module = (
        MultiHeadAttention(WIDTH, HEADS, score=name)
        if kind == "heads"
        else SelfAttention(WIDTH, 5, score=name, project_output=True)
    )
    x = torch.randn(B, T_K, WIDTH, requires_grad=True)
    layer(x, valid_lens=torch.tensor([3, 7])).square().sum().backward()
    for parameter, values in layer.named_parameters():
        if name == "trilinear" and parameter == "attention.w_q.weight":
            assert (values.grad == 0).all()  # the query's own term cancels in the softmax
        else:
            assert (values.grad != 0).any(), parameter
    assert (x.grad != 0).all()


@BY_NAME
def test_self_attention_by_its_parts(name: str) -> None:
    layer = SelfAttention(5, 3, d_v=7, score=name, project_output=True)
    x, lengths = torch.randn(B, T_K, 5), torch.tensor([3, 7])
    q, k, v = layer.qkv(x)[..., :3], layer.qkv(x)[..., 3:6], layer.qkv(x)[..., 6:]
    mask = {"valid_lens": lengths, "mask": Causal()}
    expected = layer.W_o(layer.attention(q, k, v, **mask))
    torch.testing.assert_close(layer(x, **mask), expected)
    assert layer.attention_weights.shape == (B, T_K, T_K)
    assert (layer.attention_weights.triu(1) == 0).all()


def test_score_objects_and_callables_in_heads() -> None:
    x = torch.randn(B, T_K, WIDTH)
    dot, product = (
        MultiHeadAttention(WIDTH, HEADS, kv_heads=2, score=score)
        for score in (Dot(), lambda q, k: q @ k.mT)
    )
    product.load_state_dict(dot.state_dict())
    torch.testing.assert_close(product(x), dot(x))
    w = nn.Parameter(torch.randn(HEADS, HEAD))
    layer = MultiHeadAttention(WIDTH, HEADS, score=Additive(None, None, w))
    layer(x).square().sum().backward()
    assert (w.grad != 0).all()


def test_dropout_is_for_training() -> None:
    layer, x = MultiHeadAttention(WIDTH, HEADS, dropout=0.5), torch.randn(B, T_K, WIDTH)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_copies_and_casts() -> None:
    layer, x = MultiHeadAttention(WIDTH, HEADS, score="additive"), torch.randn(B, T_K, WIDTH)
    output = layer(x)
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert same.attention_weights is None
        assert torch.equal(same(x), output)
    half = copy.deepcopy(layer).bfloat16()(x.bfloat16())
    torch.testing.assert_close(half.float(), output, rtol=0.1, atol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(x).float(), output, rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((12, 5), {}),
        ((12, 6), {"kv_heads": 4}),
        ((12, 6), {"kv_heads": 12}),
        ((12, 0), {}),
        ((12, -3), {}),
        ((12, 6), {"kv_heads": 0}),
        ((12, 6), {"kv_heads": -3}),
    ],
)
def test_sizes_that_do_not_divide(sizes: tuple[int, int], options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"n_heads|kv_heads"):
        MultiHeadAttention(*sizes, **options)


def test_inputs_with_and_without_a_batch() -> None:
    layer, x = MultiHeadAttention(WIDTH, HEADS), torch.randn(3, WIDTH)
    torch.testing.assert_close(layer(x, valid_lens=2), layer(x[None], valid_lens=2)[0])
    with pytest.raises(ValueError, match=r"queries has shape \(3, 12\), expected \(batch, tok"):
        layer(x, x[None])
    x = torch.randn(T_K, 5)
    layer = SelfAttention(5, 3)
    torch.testing.assert_close(layer(x), layer(x[None])[0])
    q, k, v = layer.qkv(x).split([3, 3, 5], dim=-1)
    torch.testing.assert_close(layer(x), attention(q, k, v))


def test_heads_take_no_mask_of_three_axes() -> None:
    x = torch.randn(2, 5, 16)
    with pytest.raises(ValueError, match=r"pass mask\[:, None\]"):
        MultiHeadAttention(16, 2)(x, mask=torch.ones(2, 5, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"pass mask\[:, None\]"):
        MultiHeadAttention(16, 2)(x, mask=Causal() & torch.ones(2, 5, 5, dtype=torch.bool))


def test_a_number_for_a_score_that_learns_nothing_makes_no_parameter() -> None:
    assert MultiHeadAttention(8, 2, score="gaussian", sigma=2.0).attention.score is Gaussian
