"""Layers and calls work under torch.jit, torch.fx and torch.func.functionalize."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functionalize, grad, vmap

import anyscore
from anyscore import Additive, Causal, Lengths, ScaledDot, attention, plan
from anyscore import torch as layers
from frameworks.torch.exports.exported_layers import MASKS, D, Scores, inputs
from helpers import machine
from helpers.hang import HANG

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Attention": lambda: layers.Attention("gatv2", hidden=5, d_q=D, d_k=D),
    "MultiHeadAttention": lambda: layers.MultiHeadAttention(D, 2, kv_heads=1, score="additive"),
    "AdditiveAttention": lambda: layers.AdditiveAttention(5, query_size=D, key_size=D),
    "DotProductAttention": lambda: layers.DotProductAttention(),
    "MLPAttention": lambda: layers.MLPAttention(5),
}


@pytest.mark.parametrize("mask", MASKS)
def test_traced_by_jit(mask: str) -> None:
    """A trace can be saved, loaded, and called with other sizes and lengths."""
    model = Scores(mask).eval()
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, inputs([0, 4], 3, 7)), file)
    file.seek(0)
    traced = torch.jit.load(file)
    for xs in inputs([4, 0], 3, 7), inputs([9, 0, 5], 5, 11):
        torch.testing.assert_close(traced(*xs), model(*xs))


@pytest.mark.parametrize("name", LAYERS)
def test_traced_layers(name: str) -> None:
    layer = LAYERS[name]().eval()
    q, k, _, n, _ = inputs([0, 4], 3, 7)
    layer(q, k, k, n)  # some layers learn their sizes here
    traced = torch.jit.trace(layer, (q, k, k, n))
    q, k, _, n, _ = inputs([9, 0, 5], 5, 11)
    torch.testing.assert_close(traced(q, k, k, n), layer(q, k, k, n))


def test_traced_self_attention() -> None:
    layer = layers.SelfAttention(D, 3).eval()
    x, n = torch.randn(2, 5, D), torch.tensor([0, 3])
    traced = torch.jit.trace(layer, (x, n))
    x, n = torch.randn(3, 7, D), torch.tensor([0, 3, 7])
    torch.testing.assert_close(traced(x, n), layer(x, n))


def test_traces_are_not_recorded() -> None:
    layer, x = layers.Attention("additive", hidden=5, d_q=D, d_k=D), torch.randn(2, 5, D)
    layer(x, x, x)
    assert layer.attention_weights is not None
    torch.jit.trace(layer, (x, x, x), check_trace=False)  # a check would call the layer again
    assert layer.attention_weights is None


def test_traced_gradients() -> None:
    layer = layers.Attention("additive", hidden=5, d_q=D, d_k=D)
    q, k, v, n, _ = inputs([3, 4], 3, 7)
    traced = torch.jit.trace(layer, (q, k, v, n))
    parameters = list(layer.parameters())
    found = torch.autograd.grad(traced(q, k, v, n).square().sum(), parameters)
    expected = torch.autograd.grad(layer(q, k, v, n).square().sum(), parameters)
    torch.testing.assert_close(found, expected)


QUIET = """
import warnings
warnings.simplefilter("always")
import os, torch, anyscore
from anyscore.torch import Attention
layer, x = Attention("additive", hidden=5, d_q=4, d_k=4), torch.randn(2, 5, 4)
with warnings.catch_warnings(record=True) as found:
    torch.jit.trace(layer, (x, x, x, torch.tensor([0, 3])))
ours = os.path.dirname(anyscore.__file__)  # the folder around it may be called anyscore too
assert not [x for x in found if x.filename.startswith(ours)], found
"""


def test_traces_are_quiet() -> None:
    """A trace raises no warnings; PyTorch would warn of each comparison of two sizes."""
    subprocess.run([sys.executable, "-c", QUIET], check=True, timeout=HANG)


def reason_under(transform: Callable[..., Any]) -> str:
    """Return the reason why `plan` takes the reference under a transform."""
    plans = []

    def f(x: Tensor) -> Tensor:
        plans.append(plan(x, x, x, score=Additive(None, None, torch.ones(D)), mask=Causal()))
        return x + 0

    transform(f)
    assert plans[0].route == "reference"
    return plans[0].reason


class Module(nn.Module):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


def test_plan_says_why() -> None:
    x = torch.randn(2, 5, D)

    def onnx(f: Callable[..., Any]) -> None:
        torch.onnx.export(Module(f).eval(), (x,), dynamo=True, verbose=False)

    assert "torch.jit.trace cannot hold it" in reason_under(lambda f: torch.jit.trace(f, x))
    assert "functionalize does not reach into it" in reason_under(lambda f: functionalize(f)(x))
    assert "ONNX cannot hold it" in reason_under(onnx)
    forward = reason_under(lambda f: torch.func.jvp(f, (x,), (x,)))
    assert "forward mode does not reach into it" in forward


@pytest.mark.parametrize("transform", ["trace", "functionalize"])
def test_the_core_by_name_raises(transform: str) -> None:
    x = torch.randn(2, 5, D)

    def f(x: Tensor) -> Tensor:
        return attention(x, x, x, impl="fused")

    with pytest.raises(NotImplementedError, match='impl="fused" cannot run'):
        torch.jit.trace(f, x) if transform == "trace" else functionalize(f)(x)


@machine.needs_core
def test_export_keeps_the_operator() -> None:
    """An export keeps the operator, which PyTorch can run; exports for others spell it out."""
    x = torch.randn(2, 5, D)
    program = torch.export.export(layers.Attention("gaussian", d_q=D, d_k=D), (x, x, x))
    assert "anyscore.forward" in str(program.graph)


@pytest.mark.parametrize("score", [ScaledDot(), Additive(None, None, torch.ones(D).double())])
@pytest.mark.parametrize("mask", [None, Lengths(torch.tensor([0, 3])), Causal()])
def test_functionalize(score: Any, mask: Any) -> None:
    """functionalize works alone, around derivatives and inside derivatives."""
    x = torch.randn(2, 5, D, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return attention(x, x, x, score=score, mask=mask).mul_(2).square().sum()

    expected = grad(f)(x)
    torch.testing.assert_close(functionalize(f)(x), f(x))
    torch.testing.assert_close(functionalize(grad(f))(x), expected)
    torch.testing.assert_close(grad(functionalize(f))(x), expected)
    many = torch.stack([x, 2 * x])
    torch.testing.assert_close(vmap(functionalize(f))(many), torch.stack([f(x), f(2 * x)]))


@pytest.mark.parametrize("name", [*LAYERS, "SelfAttention"])
def test_script_says_what_to_use(name: str) -> None:
    layer = layers.SelfAttention(D, 3) if name == "SelfAttention" else LAYERS[name]()
    sentence = (
        f"torch.jit.script cannot compile {name}: use torch.jit.trace, torch.export.export or "
        "torch.onnx.export."
    )
    for model in (layer, nn.Sequential(nn.Linear(D, D), layer)):
        with pytest.raises(NotImplementedError) as error:
            torch.jit.script(model)
        assert str(error.value) == sentence


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.heads = nn.Linear(D, D), layers.MultiHeadAttention(D, 2)
        self.own, self.attention = (
            layers.SelfAttention(D, D),
            layers.AdditiveAttention(5, query_size=D),
        )

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        y = self.heads(self.linear(x), mask=Causal() & Lengths(n))
        return self.attention(self.own(y, n), keys=x, values=x, valid_lens=n)


def test_layers_are_leaves_of_symbolic_traces() -> None:
    model, x, n = Model(), torch.randn(2, 5, D), torch.tensor([0, 4])
    model(x, n)
    traced = torch.fx.symbolic_trace(model)
    leaves = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert leaves == ["linear", "heads", "own", "attention"]
    torch.testing.assert_close(traced(x, n), model(x, n))
    more, n = torch.randn(3, 7, D), torch.tensor([7, 0, 2])
    torch.testing.assert_close(traced(more, n), model(more, n))


def test_a_symbolic_trace_of_a_call_says_what_to_do() -> None:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return anyscore.attention(x, x, x)

    with pytest.raises(TypeError, match=r'torch\.fx\.wrap\("attention"\)'):
        torch.fx.symbolic_trace(Calls())


torch.fx.wrap("attention")


def test_a_wrapped_call_is_traced() -> None:
    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(D))

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            score = Additive(None, None, self.w)
            return attention(x, x, x, score=score, mask=Causal(), valid_lens=n)

    model, x, n = Calls(), torch.randn(2, 5, D), torch.tensor([0, 4])
    traced = torch.fx.symbolic_trace(model)
    assert "attention" in [node.name for node in traced.graph.nodes]
    torch.testing.assert_close(traced(x, n), model(x, n))
