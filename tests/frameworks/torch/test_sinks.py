"""Layers for PyTorch take sink=, learned or fixed, and keep, show and check it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import anyscore.torch as layers
from anyscore import Gaussian, Score, attention
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from helpers.by_pair import by_pair
from helpers.sink_layers import (
    FIXED,
    LAYERS,
    LENGTHS,
    WRONG,
    drawn,
    expected,
    inputs,
    make,
    sink_of,
)
from helpers.transformed import WARNINGS

pytestmark = [pytest.mark.sample, pytest.mark.usefixtures("fresh_compiler"), *WARNINGS]
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("impl", ["auto", "reference"])
@by_pair("name", LAYERS)
def test_a_learned_sink(name: str, impl: str) -> None:
    """A learned sink has the expected values, learns, and loads before a layer's first call."""
    layer, arrays = make(layers, name, impl=impl), inputs(name)
    given = [torch.tensor(x) for x in arrays]
    layer(*given)
    parameters = drawn(name, layer.numpy_parameters())
    again = make(layers, name, impl=impl)
    again.load_numpy_parameters(parameters)
    layer.load_numpy_parameters(parameters)
    optimizer = torch.optim.SGD(again.parameters(), 0.1)
    for one in (layer, again):
        output = one(*given, valid_lens=torch.tensor(LENGTHS))
        want = expected(name, parameters, arrays)
        np.testing.assert_allclose(output.detach(), want[0], atol=1e-5)
        np.testing.assert_allclose(one.attention_weights, want[1], atol=1e-6)
    output.square().sum().backward()
    optimizer.step()
    key, _ = sink_of(name)
    sink = again.get_parameter(key)
    assert not np.allclose(sink.detach(), parameters[key], atol=1e-4)
    np.testing.assert_allclose(again.attention_weights, want[1], atol=1e-6)  # of the last call
    (again if name not in ("heads", "self") else again.attention).reset_parameters()
    assert not sink.any()


@pytest.mark.parametrize("sink", FIXED)
@by_pair("name", LAYERS)
def test_a_fixed_sink(name: str, sink: float) -> None:
    layer, arrays = make(layers, name, sink), inputs(name)
    output = layer(*(torch.tensor(x) for x in arrays), valid_lens=torch.tensor(LENGTHS))
    want = expected(name, layer.numpy_parameters(), arrays, sink)
    np.testing.assert_allclose(output.detach(), want[0], atol=1e-5)
    np.testing.assert_allclose(layer.attention_weights, want[1], atol=1e-6)
    assert sink_of(name)[0] not in layer.state_dict()


def test_none_and_false_are_no_sink() -> None:
    for none in (None, False):
        layer = Attention(sink=none)
        assert torch.equal(layer(X, X), attention(X, X, X))
        assert not list(layer.parameters())


class Laplace2(nn.Module):
    """Callable with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.scale * torch.cdist(query, key, p=1)


@pytest.mark.parametrize("score", [Gaussian(torch.tensor(2.0)), Laplace2()])
def test_beside_scores_that_are_no_names(score: Any) -> None:
    heads = X.reshape(2, 5, 2, 4).transpose(1, 2)
    layer = Attention(score, sink=True, heads=2, dtype=torch.float32)
    with torch.no_grad():
        layer.sink.weight.copy_(torch.tensor([-1.0, 2.0]))
    wanted = attention(heads, heads, heads, score=score, sink=layer.sink.weight)
    assert torch.equal(layer(heads, heads), wanted)
    assert layer.scores(heads, heads).shape == (2, 2, 5, 5)
    many = MultiHeadAttention(8, 2, score=score, sink=True, dtype=torch.float64)
    assert many.attention.sink.weight.shape == (2,)
    assert many.attention.sink.weight.dtype == torch.float64
    assert SelfAttention(8, 4, score=score, sink=True).attention.sink.weight.shape == ()
    with pytest.raises(ValueError, match=r"^heads: for scores given by name"):
        Attention(score, heads=2, sink=0.5)
    with pytest.raises(ValueError, match=r"^kv_heads: for scores given by name"):
        Attention(score, heads=2, kv_heads=1, sink=True)


def test_a_score_with_a_sink_of_its_own() -> None:
    @dataclass(frozen=True, eq=False)
    class Own(Score):
        sink: Tensor

    with pytest.raises(ValueError, match="Own has a parameter 'sink' already: leave out sink="):
        Attention(Own(torch.ones(())), sink=True)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize("sink", [True, 0.5])
def test_copies_keep_the_sink(copied: Any, sink: Any) -> None:
    for layer in (Attention(sink=sink), MultiHeadAttention(8, 2, sink=sink)):
        again = copied(layer)
        torch.testing.assert_close(again(X, X, X), layer(X, X, X), rtol=0, atol=0)
        assert (again.attention_weights.sum(-1) < 0.9999).all()


def test_the_sinks_of_gpt_oss_are_taken() -> None:
    layer, values = Attention(heads=2, sink=True), torch.tensor([1.0, 2.0])
    layer.load_state_dict({"sinks": values})
    assert torch.equal(layer.sink.weight, values)
    many = MultiHeadAttention(8, 2, sink=True)
    state = many.state_dict()
    del state["attention.sink.weight"]
    many.load_state_dict({**state, "sinks": values})
    assert torch.equal(many.attention.sink.weight, values)


@pytest.mark.slow
def test_compiled_whole_forward_and_backward() -> None:
    for layer in (make(layers, "heads"), Attention("gaussian", d_q=6, d_k=6, sink=True)):
        given = torch.randn(3, 2, 5, 6).unbind()
        layer.load_state_dict({k: torch.randn_like(v) for k, v in layer.state_dict().items()})
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        parameters = list(layer.parameters())
        outputs = compiled(*given), layer(*given)
        torch.testing.assert_close(*outputs)
        torch.testing.assert_close(
            *(torch.autograd.grad(y.square().sum(), parameters, allow_unused=True) for y in outputs)
        )


def test_transforms() -> None:
    layer = Attention("gaussian", d_q=8, d_k=8, sink=True)
    parameters = dict(layer.named_parameters())
    sinks = torch.tensor([-1.0, 0.5, 2.0])

    def loss(sink: Tensor) -> Tensor:
        return functional_call(layer, {**parameters, "sink.weight": sink}, (X, X)).square().sum()

    each = vmap(grad(loss))(sinks)
    for slope, sink in zip(each, sinks, strict=True):
        near = (loss(sink.double() + 1e-3) - loss(sink.double() - 1e-3)) / 2e-3
        torch.testing.assert_close(slope, near.float(), rtol=5e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    layer = Attention(sink=True, dtype=dtype)
    nn.init.constant_(layer.sink.weight, 0.3)
    found, x = layer(X.to(dtype), X.to(dtype)), X.to(dtype).double()
    assert found.dtype == layer.sink.weight.dtype == dtype
    exact = attention(x, x, x, sink=layer.sink.weight.double())
    near = 1e-12 if dtype == torch.float64 else 2**-6
    torch.testing.assert_close(found.double(), exact, rtol=near, atol=near)
    found.sum().backward()
    assert layer.sink.weight.grad.dtype == dtype


def test_autocast_leaves_the_sink_alone() -> None:
    layer = Attention(sink=True)
    nn.init.constant_(layer.sink.weight, 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(X, X)
    rounded = X.bfloat16()
    assert torch.equal(found, attention(rounded, rounded, rounded, sink=layer.sink.weight))


def test_scores_know_nothing_of_it_and_descriptions_do() -> None:
    layer = Attention("gaussian", d_q=8, d_k=8, sink=True)
    plain = Attention("gaussian", d_q=8, d_k=8)
    assert torch.equal(layer.scores(X, X), plain.scores(X, X))
    assert "(Gaussian, dropout=0.0, sink=True" in repr(layer).replace("\n  ", "")
    assert repr(Attention(sink=0)) == "Attention(ScaledDot, dropout=0.0, sink=0.0)"
    assert repr(Attention(softcap=2.0, sink=0)).endswith("softcap=2.0, sink=0.0)")


@pytest.mark.parametrize(("sink", "error", "text"), WRONG)
@by_pair("name", LAYERS)
def test_others_are_refused(name: str, sink: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make(layers, name, sink)


def test_heads_of_a_call_that_are_not_those_of_the_layer() -> None:
    heads = X.reshape(2, 5, 2, 4).transpose(1, 2)
    with pytest.raises(ValueError, match=r"sink has shape \(3,\), expected \(\) or \(2,\), one"):
        Attention(heads=3, sink=True)(heads, heads)
    assert Attention(sink=True)(heads, heads).isfinite().all()
