"""Layers for PyTorch take bias= and bias_after=; biases are arguments of its transforms."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

import anyscore.torch as layers
from anyscore import ALiBi, Relative, attention
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from helpers.bias_layers import (
    LAYERS,
    LENGTHS,
    close,
    drawn,
    expected,
    inputs,
    make,
    objects,
    of,
    slope,
)
from helpers.by_pair import by_pair
from helpers.transformed import WARNINGS
from helpers.wrong_biases import TABLE
from helpers.wrong_calls import given

pytestmark = [pytest.mark.sample, pytest.mark.usefixtures("fresh_compiler"), *WARNINGS]
X = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("impl", ["auto", "reference"])
@by_pair("name", LAYERS)
def test_values_weights_and_slopes(name: str, impl: str) -> None:
    layer, xs, arrays = make(layers, name, impl=impl), inputs(name), drawn(name)
    tensors = [nn.Parameter(torch.tensor(x)) for x in arrays]
    lengths = torch.tensor(LENGTHS)
    output = layer(*map(torch.tensor, xs), valid_lens=lengths, **of(*tensors))
    parameters = layer.numpy_parameters()
    want = expected(name, parameters, xs, *arrays)
    np.testing.assert_allclose(output.detach(), want[0], atol=1e-5)
    np.testing.assert_allclose(layer.attention_weights, want[1], atol=1e-6)
    np.testing.assert_allclose(layer.last_weights(rows=[2, 0]), want[1][..., [2, 0], :], atol=1e-6)
    slopes = torch.autograd.grad(output.square().sum(), tensors)
    close(slopes, arrays, slope(name, parameters, xs, *arrays))


def test_scores_have_them() -> None:
    layer, (q, k, _) = make(layers, "trilinear"), map(torch.tensor, inputs("trilinear"))
    tensor, table = map(torch.tensor, drawn("trilinear"))
    found = layer.scores(q, k, **of(tensor, table)).log_softmax(-1).exp()
    layer(q, k, **of(tensor, table))
    torch.testing.assert_close(found, layer.attention_weights)


def test_a_table_that_is_trained() -> None:
    """A user's module owns the table, and passes the table at each call."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = MultiHeadAttention(8, 2)
            self.table = nn.Parameter(torch.zeros(2, 32))

        def forward(self, x: Tensor) -> Any:
            return self.attention(x, bias=Relative(self.table, buckets="t5"))

    block, x = Block(), torch.randn(2, 40, 8)
    optimizer, before = torch.optim.Adam(block.parameters(), 0.1), block(x)
    before.square().mean().backward()
    optimizer.step()
    assert block.table.abs().amax(0).count_nonzero() > 20
    assert not torch.allclose(block(x), before, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("bias", objects(torch.tensor), ids=lambda bias: type(bias).__name__)
def test_transforms_take_the_objects(bias: Any) -> None:
    def loss(bias: Any) -> Tensor:
        return attention(X, X, X, bias=bias).square().sum()

    ((name, tensor),) = bias.tensors().items()
    leaf = tensor.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(bias.map(lambda x: leaf)), leaf)
    torch.testing.assert_close(getattr(grad(loss)(bias), name), want)
    several = torch.stack([tensor, 2 * tensor])
    each = vmap(lambda x: loss(bias.map(lambda _: x)))(several)
    torch.testing.assert_close(
        each, torch.stack([loss(bias.map(lambda _, y=y: y)) for y in several])
    )
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = compiled(bias.map(lambda x: leaf))
    torch.testing.assert_close(found, loss(bias))
    torch.testing.assert_close(torch.autograd.grad(found, leaf)[0], want)


@pytest.mark.slow
def test_compiled_for_any_lengths() -> None:
    """Diagonals have lengths that are not known yet, and buckets of distances."""

    def run(x: Tensor, table: Tensor) -> Tensor:
        found = attention(
            x,
            x[..., 1:, :],
            x[..., 1:, :],
            bias=Relative(table, "t5", align="end"),
            bias_after=ALiBi(align="end"),
        )
        return found.square().sum()

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    table = torch.randn(2, 8, requires_grad=True)
    for n in (5, 40):
        x = torch.randn(2, 2, n, 4)
        found, want = compiled(x, table), run(x, table)
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(*(torch.autograd.grad(y, table) for y in (found, want)))


@pytest.mark.slow
def test_layers_compiled_and_exported() -> None:
    layer, table = Attention("gaussian", d_q=4, d_k=4), torch.randn(2, 9)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    options = {"bias": Relative(table), "bias_after": torch.randn(5, 5)}
    torch.testing.assert_close(compiled(X, X, **options), layer(X, X, **options))
    program = torch.export.export(layer, (X, X), options)
    torch.testing.assert_close(program.module()(X, X, **options), layer(X, X, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    table = torch.randn(2, 9, dtype=dtype, requires_grad=True)
    x = X.to(dtype)
    found, wide = Attention()(x, x, bias=Relative(table)), x.double()
    exact = attention(wide, wide, wide, bias=Relative(table.detach().double()))
    near = 1e-12 if dtype == torch.float64 else 2**-6
    torch.testing.assert_close(found.double(), exact, rtol=near, atol=near)
    found.sum().backward()
    assert table.grad.dtype == found.dtype == dtype


def test_autocast_leaves_it_alone() -> None:
    bias = torch.randn(5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = Attention()(X, X, bias=bias)
    rounded = X.bfloat16()
    assert torch.equal(found, attention(rounded, rounded, rounded, bias=bias))


@pytest.mark.parametrize(("change", "error", "text"), TABLE)
def test_a_wrong_one_makes_no_parameters(change: Any, error: type[Exception], text: str) -> None:
    layer, (tensors, options) = Attention("additive", hidden=8), given(change, torch.tensor)
    with pytest.raises(error, match=re.escape(text)):
        layer(*tensors, **options)
    with pytest.raises(ValueError, match="give the layer its sizes"):
        layer.numpy_parameters()


def test_one_of_another_framework_and_masks_of_floats() -> None:
    text = "bias is a NumPy array but query is a PyTorch tensor|query is .* but bias is"
    with pytest.raises(TypeError, match=text):
        SelfAttention(8, 4)(torch.randn(2, 5, 8), bias=np.zeros((5, 5), "float32"))
    with pytest.raises(TypeError, match=r"a float tensor is a bias, pass bias=\.$"):
        Attention()(X, X, mask=torch.zeros(5, 5))
