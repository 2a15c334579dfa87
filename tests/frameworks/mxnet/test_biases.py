"""In MXNet, calls, layers and hybridized parents take bias= and bias_after=."""

from __future__ import annotations

import re
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import anyscore.mxnet as layers
from anyscore import ALiBi, Relative, attention
from frameworks.mxnet.arrays import numbers, to
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
from helpers.wrong_biases import TABLE
from helpers.wrong_calls import given


@pytest.mark.parametrize("name", LAYERS)
def test_values_weights_and_slopes(name: str, kind: str) -> None:
    layer, xs, arrays = make(layers, name), inputs(name), drawn(name)
    layer.initialize()
    tensors = [to(x, kind=kind) for x in arrays]
    for x in tensors:
        x.attach_grad()
    tokens = [to(x, kind=kind) for x in xs]
    with autograd.record():
        output = layer(*tokens, valid_lens=LENGTHS, **of(*tensors))
        loss = (output**2).sum()
    loss.backward()
    assert type(output) is type(tensors[0])
    parameters = layer.numpy_parameters()
    want = expected(name, parameters, xs, *arrays)
    np.testing.assert_allclose(numbers(output), want[0], atol=1e-5)
    np.testing.assert_allclose(numbers(layer.attention_weights), want[1], atol=1e-6)
    close([numbers(x.grad) for x in tensors], arrays, slope(name, parameters, xs, *arrays))


def test_scores_have_them(kind: str) -> None:
    layer, (q, k, v) = make(layers, "trilinear"), (to(x, kind=kind) for x in inputs("trilinear"))
    layer.initialize()
    biases = of(*(to(x, kind=kind) for x in drawn("trilinear")))
    layer(q, k, v, **biases)
    found = np.exp(numbers(layer.scores(q, k, **biases)))
    found /= found.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, numbers(layer.attention_weights), atol=1e-6)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("number", range(3))
def test_calls_take_the_objects(number: int, impl: str, kind: str) -> None:
    x = np.random.normal(size=(2, 2, 5, 4)).astype("float32")
    exact = objects(np.asarray)[number]
    bias = exact.map(lambda x: to(x, kind=kind))
    (table,) = bias.tensors().values()
    table.attach_grad()
    with autograd.record():
        output = attention(*[to(x, kind=kind)] * 3, bias=bias, bias_after=ALiBi(), impl=impl)
    output.backward()
    want = attention(x, x, x, bias=exact, bias_after=ALiBi())
    np.testing.assert_allclose(numbers(output), want, atol=1e-5)
    assert numbers(table.grad).any()


class Parent(nn.HybridBlock):
    """Parent with a parameter as bias."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = layer
            self.bias = self.params.get("bias", shape=(2, 5, 5), init="zeros")

    def hybrid_forward(self, F: Any, x: Any, bias: Any) -> Any:
        return self.layer(x, bias=bias, bias_after=ALiBi())


@pytest.mark.parametrize("hybrid", [False, True])
def test_in_parents_it_is_trained(hybrid: bool, kind: str) -> None:
    x = to(np.random.normal(size=(3, 5, 6)).astype("float32"), kind=kind)
    net = Parent(layers.MultiHeadAttention(6, 2, dropout=0.1))
    net.initialize()
    if hybrid:
        net.hybridize()
    with autograd.predict_mode():
        before = numbers(net(x))
    np.testing.assert_allclose(before, numbers(net.layer(x, bias_after=ALiBi())), atol=1e-6)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0})
    with autograd.record():
        loss = ((net(x) - 1) ** 2).mean()
    loss.backward()
    trainer.step(1)
    moved = net.bias.data()
    assert np.all(numbers(moved))
    want = net.layer(x, bias=moved, bias_after=ALiBi())
    np.testing.assert_allclose(numbers(net(x)), numbers(want), atol=1e-6)


@pytest.mark.parametrize(("change", "error", "text"), TABLE)
def test_others_are_refused(change: Any, error: type[Exception], text: str) -> None:
    xs, options = given(change, to)
    layer = layers.Attention("additive", hidden=8)
    layer.initialize()
    with pytest.raises(error, match=re.escape(text)):
        layer(*xs, **options)


def test_of_both_kinds_of_arrays() -> None:
    x, bias = inputs("self")[0], np.random.normal(size=(5, 5)).astype("float32")
    layer = layers.SelfAttention(6, 3)
    layer.initialize()
    found = layer(mx.nd.array(x), bias=mx.np.array(bias))
    np.testing.assert_array_equal(
        found.asnumpy(), layer(mx.nd.array(x), bias=mx.nd.array(bias)).asnumpy()
    )
    with pytest.raises(TypeError, match="table must be a tensor"):
        Relative([1.0])
