"""Layers take the call of `torch.nn.MultiheadAttention`, and may replace PyTorch's layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore import ALiBi, Causal, Lengths
from anyscore.torch import MultiHeadAttention

pytestmark = pytest.mark.sample

B, H, D, T_Q, T_K = 3, 4, 12, 5, 7
LENGTHS = torch.tensor([7, 2, 4])
PADDING = torch.arange(T_K) >= LENGTHS[:, None]
CAUSAL = torch.arange(T_K) > torch.arange(T_Q)[:, None]


def both(batch_first: bool = True, **sizes: int) -> tuple[nn.MultiheadAttention, Any]:
    """Return PyTorch's layer and anyscore's, with the same parameters."""
    theirs = nn.MultiheadAttention(D, H, batch_first=batch_first, **sizes)
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        theirs.out_proj.bias.normal_()
    ours = MultiHeadAttention(D, H, batch_first=batch_first)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def floats(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"key_padding_mask": PADDING},
    "padding of floats": {"key_padding_mask": floats(PADDING)},
    "square": {"attn_mask": CAUSAL},
    "square of floats": {"attn_mask": floats(CAUSAL)},
    "numbers": {"attn_mask": torch.randn(T_Q, T_K) + floats(CAUSAL)},
    "numbers of heads": {"attn_mask": torch.randn(B * H, T_Q, T_K)},
    "numbers of keys": {"key_padding_mask": torch.randn(B, T_K) + floats(PADDING)},
    "numbers of both": {
        "key_padding_mask": torch.randn(B, T_K) + floats(PADDING),
        "attn_mask": torch.randn(T_Q, T_K),
    },
    "heads": {"attn_mask": (torch.rand(B * H, T_Q, T_K) > 0.7) & (torch.arange(T_K) > 0)},
    "both": {"key_padding_mask": PADDING, "attn_mask": CAUSAL},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_as_pytorchs_own(mask: str, batch_first: bool, average: bool) -> None:
    theirs, ours = both(batch_first)
    q, k, v = torch.randn(B, T_Q, D), torch.randn(B, T_K, D), torch.randn(B, T_K, D)
    if not batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    options = {**MASKS[mask], "average_attn_weights": average}
    found, expected = (layer(q, k, v, need_weights=True, **options) for layer in (ours, theirs))
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    output, nothing = ours(q, k, v, need_weights=False, **options)
    assert nothing is None
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(ours(q, k, v, **options), expected[0])  # anyscore's call: no pair


def test_gradients_through_the_weights() -> None:
    theirs, ours = both()
    x = torch.randn(B, T_K, D)
    for layer in (theirs, ours):
        layer(x, x, x, key_padding_mask=PADDING)[0].sum() if layer is theirs else None
    loss = [layer(x, x, x, need_weights=True)[1].square().sum() for layer in (theirs, ours)]
    expected = torch.autograd.grad(loss[0], theirs.in_proj_weight)[0]
    found = torch.autograd.grad(loss[1], [ours.W_q.weight, ours.W_k.weight])
    torch.testing.assert_close(torch.cat(found), expected[: 2 * D])


def test_floats_are_added_after_a_cap_and_have_gradients() -> None:
    x, softcap = torch.randn(B, T_K, D), 0.5
    layer = MultiHeadAttention(D, H, softcap=softcap)
    bias = (torch.randn(T_K, T_K) + floats(torch.ones(T_K, T_K).triu(1) > 0)).requires_grad_()
    outputs = layer(x, attn_mask=bias), layer(x, bias_after=bias / 2, attn_mask=bias / 2)
    wanted = layer(x, mask=Causal(), bias_after=bias.where(bias.isfinite(), 0.0))
    for output in outputs:
        torch.testing.assert_close(output, wanted)
    found, expected = (torch.autograd.grad(y.sum(), bias)[0] for y in (outputs[0], wanted))
    torch.testing.assert_close(found, expected)
    assert found.tril().count_nonzero() > T_K


def test_without_a_batch() -> None:
    theirs, ours = both()
    q, k = torch.randn(T_Q, D), torch.randn(T_K, D)
    heads = torch.rand(H, T_Q, T_K) > 0.7
    heads[..., 0] = False
    for options in ({}, {"key_padding_mask": PADDING[1]}, {"attn_mask": heads}):
        expected = theirs(q, k, k, **options)
        for x, y in zip(ours(q, k, k, need_weights=True, **options), expected, strict=True):
            torch.testing.assert_close(x, y)


def test_masks_of_both_kinds_intersect() -> None:
    _, ours = both()
    x = torch.randn(B, T_K, D)
    found = ours(x, mask=Causal(), key_padding_mask=PADDING)
    assert torch.equal(found, ours(x, mask=Causal() & Lengths(LENGTHS)))
    assert torch.equal(ours(x, is_causal=True), ours(x, mask=Causal()))


def test_a_query_without_keys_gives_the_bias_alone() -> None:
    """A query without keys gives the bias, where PyTorch gives NaN."""
    _, ours = both()
    x, nobody = torch.randn(1, T_K, D), torch.ones(1, T_K, dtype=torch.bool)
    output, weights = ours(x, x, x, key_padding_mask=nobody, need_weights=True)
    torch.testing.assert_close(output, ours.W_o.bias.expand(1, T_K, D))
    assert not weights.any()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"attn_mask": torch.ones(T_K, T_K).long()}, TypeError, "attn_mask must be boolean with"),
        ({"attn_mask": torch.ones(2, T_K, T_K) > 0}, ValueError, r"expected \(T_q, T_k\) or \(12"),
        ({"key_padding_mask": torch.ones(B, 3) > 0}, ValueError, r"has shape \(3, 3\), expected"),
        ({"key_padding_mask": torch.ones(T_K) > 0}, ValueError, r"\(7,\), expected \(3, T_k\)"),
        ({"attn_mask": torch.ones(T_K, T_K), "bias_after": ALiBi()}, ValueError, "pass boolean"),
    ],
)
def test_wrong_masks(options: dict[str, Any], error: type[Exception], text: str) -> None:
    _, ours = both()
    with pytest.raises(error, match=text):
        ours(torch.randn(B, T_K, D), **options)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_in_encoders_and_decoders(batch_first: bool, train: bool) -> None:
    """Layers of anyscore replace PyTorch's in PyTorch's own models, without an adapter."""
    made = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": batch_first}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, **made), 2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, H, **made), 2)
    theirs = nn.ModuleList([encoder, decoder]).train(train)
    ours = copy.deepcopy(theirs)
    for module in list(ours.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.MultiheadAttention):
                layer = MultiHeadAttention(D, H, batch_first=batch_first).train(train)
                layer.load_state_dict(child.state_dict())
                setattr(module, name, layer)
    assert sum(isinstance(x, MultiHeadAttention) for x in ours.modules()) == 6
    source, target = torch.randn(B, T_K, D), torch.randn(B, T_Q, D)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    square = nn.Transformer.generate_square_subsequent_mask(T_Q)
    results = []
    for one, two in (theirs, ours):
        memory = one(source, src_key_padding_mask=PADDING)
        memory = memory.masked_fill((PADDING if batch_first else PADDING.T)[..., None], 0.0)
        masks = {"tgt_mask": square, "memory_key_padding_mask": PADDING, "tgt_is_causal": True}
        results.append((memory, two(target, memory, **masks)))
    for x, y in zip(*results, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
def test_an_encoder_of_ours_is_made_without_pytorchs() -> None:
    layer = nn.TransformerEncoderLayer(D, H, 16, batch_first=True)
    layer.self_attn = MultiHeadAttention(D, H, score="additive")
    encoder = nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad():
        output = encoder(torch.randn(B, T_K, D), src_key_padding_mask=PADDING)
    assert output.isfinite().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_compiled() -> None:
    _, ours = both()
    x = torch.randn(B, T_K, D)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    options = {"key_padding_mask": floats(PADDING), "need_weights": True}
    for a, b in zip(compiled(x, **options), ours(x, **options), strict=True):
        torch.testing.assert_close(a, b)
    options["attn_mask"] = torch.randn(T_K, T_K)
    for a, b in zip(compiled(x, **options), ours(x, **options), strict=True):
        torch.testing.assert_close(a, b)
