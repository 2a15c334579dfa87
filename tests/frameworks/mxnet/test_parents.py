"""Layers are right in eager and hybridized parents: training, gradients, dropout."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

from anyscore import Causal
from anyscore.mxnet import (
    AdditiveAttention,
    DotProductAttention,
    SelfAttention,
)
from frameworks.mxnet.arrays import numbers, to
from frameworks.mxnet.blocks import LAYERS, T_Q, B, D, Parent, inputs, normal


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_training(name: str, hybrid: bool, kind: str) -> None:
    """A few steps of a trainer, deferred shapes included, lower the loss."""
    mx.random.seed(0)
    net = Parent(LAYERS[name]())
    net.initialize()
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.03})
    given = inputs(kind)
    losses = []
    for _ in range(12):
        with autograd.record():
            loss = ((net(*given) - 1) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(numbers(loss)))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_hybridized_parents(name: str, static: bool, kind: str) -> None:
    """Outputs and all gradients of two passes, some added up, equal those of the eager parent."""
    net = Parent(LAYERS[name]())
    net.initialize()
    given = inputs(kind)
    found = []
    for hybrid in (False, True):
        if hybrid:
            net.hybridize(static_alloc=static, static_shape=static)
        for x in given[:3]:
            x.attach_grad(grad_req="add")
        net(*given)
        parameters = list(net.collect_params().values())
        for parameter in parameters[-1:]:
            parameter.grad_req = "write"
            parameter.grad_req = "add"  # resets its gradient to zero
        for _ in range(2):
            with autograd.record():
                output = net(*given)
            output.backward()
        grads = [x.grad for x in given[:3]] + [p.grad() for p in parameters]
        found.append([numbers(x) for x in (output, *grads)])
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert numbers(net(*given)).shape == found[0][0].shape


def test_hybridized_without_values_and_lengths(kind: str) -> None:
    """Values default to keys, and lengths and masks may be constants."""
    layer = AdditiveAttention(6)

    class Own(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.layer(x, x, None, [1, 3], mask=Causal())

    net = Own()
    net.initialize()
    net.hybridize()
    x = to(normal(B, T_Q, D), kind=kind)
    output = numbers(net(x))
    assert layer.attention_weights is None  # only eager calls keep weights
    net.hybridize(False)
    np.testing.assert_allclose(output, numbers(net(x)), atol=1e-6)
    assert layer.attention_weights.shape == (B, T_Q, T_Q)


def test_a_sequence_of_blocks(kind: str) -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(D, flatten=False), SelfAttention(D, 3, dropout=0.2), nn.Dense(1))
    net.initialize()
    x = to(normal(B, T_Q, 9), kind=kind)
    eager = numbers(net(x))
    net.hybridize()
    np.testing.assert_allclose(numbers(net(x)), eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybrid", [False, True])
def test_dropout_in_training_only(hybrid: bool, kind: str) -> None:
    """Dropout draws from MXNet's generator, and drops the same in the backward."""
    layer = DotProductAttention(0.5)

    class Own(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def hybrid_forward(self, F: Any, *given: Any) -> Any:
            return self.layer(*given)

    net = Own()
    net.initialize()
    if hybrid:
        net.hybridize()
    queries, keys, values, lengths = inputs(kind)
    still = numbers(net(queries, keys, values, lengths))
    np.testing.assert_array_equal(numbers(net(queries, keys, values, lengths)), still)
    values.attach_grad()
    outputs = []
    for _ in range(3):
        with autograd.record():
            output = net(queries, keys, values, lengths)
        output.backward()
        outputs.append(numbers(output))
        total = (numbers(values.grad) * numbers(values)).sum()
        np.testing.assert_allclose(total, outputs[-1].sum(), rtol=1e-4, atol=1e-5)
    assert not np.array_equal(outputs[0], outputs[1])
    with autograd.record(train_mode=False):
        same = net(queries, keys, values, lengths)
    np.testing.assert_array_equal(numbers(same), still)


def test_symbols_and_arrays_do_not_mix() -> None:
    layer = DotProductAttention()
    x = to(normal(B, T_Q, D), kind="nd")
    with pytest.raises(TypeError, match="got symbols and arrays"):
        layer(x, mx.sym.var("keys"), x)


def test_a_score_is_shared_by_no_graph_of_another_process() -> None:
    with pytest.raises(mx.MXNetError):
        mx.nd.Custom(mx.nd.ones((1, 2, 3)), op_type="anyscore_layer", token="unknown")
