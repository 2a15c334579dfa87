"""Layers that libraries rewrite: other classes, replicas, fewer heads, quantised projections."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore import ALiBi, Causal, attention
from anyscore.torch import (
    AdditiveAttention,
    Attention,
    ForwardAttention,
    GATConv,
    GATv2Conv,
    LocationSensitive,
    MLPAttention,
    MonotonicAttention,
    MultiHeadAttention,
    Pointer,
    SelfAttention,
    TransformerConv,
    replace,
)
from helpers.by_pair import by_pair
from helpers.samples import normal

pytestmark = pytest.mark.sample

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Attention": Attention,
    "AdditiveAttention": lambda: AdditiveAttention(4),
    "MLPAttention": lambda: MLPAttention(4),
    "MultiHeadAttention": lambda: MultiHeadAttention(16, 4),
    "SelfAttention": lambda: SelfAttention(16, 16),
    "replace": lambda: replace(nn.TransformerEncoderLayer(16, 4), score="gaussian").self_attn,
    "GATv2Conv": lambda: GATv2Conv(4, 4),
    "GATConv": lambda: GATConv(4, 4),
    "TransformerConv": lambda: TransformerConv(4, 4),
    "Pointer": lambda: Pointer(d_q=4, d_k=4, hidden=4),
    "LocationSensitive": lambda: LocationSensitive(4, 4, 4),
    "ForwardAttention": lambda: ForwardAttention(hidden=4, d_q=4, d_k=4),
    "MonotonicAttention": lambda: MonotonicAttention(hidden=4, d_q=4, d_k=4),
}


def tensor(*shape: int) -> Tensor:
    return torch.tensor(normal(*shape)).float()


@pytest.mark.parametrize("name", LAYERS)
def test_a_class_of_two_bases_takes_the_place_of_a_layer_s(name: str) -> None:
    """FSDP2, replicate and parametrize set `__class__` so."""
    layer = LAYERS[name]()

    class Mixin:
        def name_of_class(self) -> str:
            return type(self).__name__

    layer.__class__ = type("Sharded", (Mixin, type(layer)), {})
    assert layer.name_of_class() == "Sharded"


def part_of(layer: MultiHeadAttention, heads: slice) -> MultiHeadAttention:
    """Return a layer with the projections of some heads, as pruning and a rank leave them."""
    part, width = copy.deepcopy(layer), layer.embed_dim // layer.n_heads
    rows = slice(heads.start * width, heads.stop * width)
    for name in ("W_q", "W_k", "W_v"):
        whole = getattr(layer, name)
        kept = nn.Linear(whole.in_features, rows.stop - rows.start)
        kept.weight.data, kept.bias.data = whole.weight.data[rows], whole.bias.data[rows]
        setattr(part, name, kept)
    output = nn.Linear(rows.stop - rows.start, layer.embed_dim)
    output.weight.data, output.bias.data = layer.W_o.weight.data[:, rows], layer.W_o.bias.data
    part.W_o = output
    return part


SHARED = ["scaled_dot", "dot"]
OF_HEADS = ["gaussian", "cosine", "laplace", "additive", "gatv2"]


@pytest.mark.parametrize("score", SHARED)
def test_some_heads(score: str) -> None:
    """Two parts of the heads add up to the layer, in calls and in steps of a cache."""
    layer, x = MultiHeadAttention(16, 4, score=score).eval(), tensor(2, 6, 16)
    parts = [part_of(layer, heads) for heads in (slice(0, 1), slice(1, 4))]
    for part in parts:
        part.W_o.bias.data = layer.W_o.bias.data * (1 if part is parts[0] else 0)
    with torch.no_grad():
        expected = layer(x, mask=Causal())
        torch.testing.assert_close(sum(part(x, mask=Causal()) for part in parts), expected)
        caches = [part.make_cache(2, 6) for part in parts]
        for t in range(6):
            step = sum(
                part.step(x[:, t : t + 1], cache) for part, cache in zip(parts, caches, strict=True)
            )
            torch.testing.assert_close(step, expected[:, t : t + 1])


@by_pair("score", OF_HEADS)
def test_some_heads_of_a_score_with_parameters_of_each(score: str) -> None:
    layer, x = MultiHeadAttention(16, 4, score=score).eval(), tensor(2, 6, 16)
    part = part_of(layer, slice(0, 2))
    with pytest.raises(ValueError, match=r"leading dimensions \(4,\) do not broadcast to \(2, 2\)"):
        part(x)
    for weight in part.attention.children():
        if weight.weight.shape[:1] == (4,):
            weight.weight.data = weight.weight.data[:2]
    layer.W_o.weight.data[:, 8:] = 0
    torch.testing.assert_close(part(x), layer(x))


@pytest.mark.parametrize(
    ("names", "outputs", "words"),
    [
        (
            ["W_v"],
            8,
            "W_q, W_k and W_v give 4, 4 and 2 heads, expected the same share of 4, 4 and 4",
        ),
        (
            ["W_q", "W_k"],
            6,
            "W_q gives 6 numbers, expected those of 4 heads of 4: .* multiple of 4",
        ),
    ],
)
def test_other_widths_are_refused(names: list[str], outputs: int, words: str) -> None:
    layer = MultiHeadAttention(16, 4)
    for name in names:
        setattr(layer, name, nn.Linear(16, outputs))
    with pytest.raises(ValueError, match=words):
        layer(tensor(2, 6, 16))


@pytest.mark.parametrize("score", ["gaussian", "dot", "additive"])
def test_a_layer_keeps_its_widths(score: str) -> None:
    hidden = {"hidden": 4} if score == "additive" else {}
    layer = Attention(score, d_q=16, d_k=16, **hidden)
    layer(tensor(2, 3, 16), tensor(2, 5, 16))
    with pytest.raises(ValueError, match="the layer was made with d_q=16, got d_q=8"):
        layer(tensor(2, 3, 8), tensor(2, 5, 8))


def replica_of(layer: nn.Module) -> Any:
    """Return a replica, as `nn.parallel.replicate` makes one on a GPU."""
    modules = list(layer.modules())
    replicas = [module._replicate_for_data_parallel() for module in modules]
    for module, made in zip(modules, replicas, strict=True):
        for name, child in module._modules.items():
            made._modules[name] = None if child is None else replicas[modules.index(child)]
        for name, parameter in module._parameters.items():
            made._parameters[name] = None
            if parameter is not None:
                del made._parameters[name]
                setattr(made, name, parameter * 1.0)
    return replicas[0]


@by_pair("score", ["scaled_dot", *OF_HEADS])
def test_padding_reaches_no_gradient_of_a_replica(score: str) -> None:
    layer, x = MultiHeadAttention(16, 4, score=score), tensor(2, 6, 16)
    layer(x)
    padded = x.clone()
    padded[0, 3:] = torch.nan
    lengths = torch.tensor([3, 6])
    for one in (layer, replica_of(layer)):
        layer.zero_grad()
        one(x, padded, padded, lengths).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_caches_of_replicas_and_of_quantised_layers() -> None:
    layer, x = MultiHeadAttention(16, 4).eval(), tensor(1, 1, 16)
    quantised = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear})
    with torch.no_grad():
        for one in (layer, replica_of(layer), quantised):
            cache = one.make_cache(batch=1, capacity=4)
            torch.testing.assert_close(one.step(x, cache), layer(x), atol=0.02, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_takes_the_place_of_pytorch_s(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of ours never reaches the public name, which may be ours."""
    x = tensor(1, 2, 1, 8).to(dtype)
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x)

    def ours(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return attention(query, key, value)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", ours)
    found = torch.nn.functional.scaled_dot_product_attention(x, x, x)
    torch.testing.assert_close(found, expected)


def test_default_slopes_in_a_trace() -> None:
    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attention(x, x, x, bias=ALiBi())

    x = tensor(2, 4, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a trace
        traced = torch.jit.trace(Module(), (x,))
    for tokens in (5, 7):
        x = tensor(2, 4, tokens, 8)
        torch.testing.assert_close(traced(x), attention(x, x, x, bias=ALiBi()))
