"""Layers for MXNet take sink=, learned or fixed, alone and inside hybridized parents."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from mxnet.gluon import nn

import anyscore.mxnet as layers
from anyscore import Gaussian
from frameworks.mxnet.arrays import numbers, to
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


@pytest.mark.parametrize("name", LAYERS)
def test_a_learned_sink(name: str, kind: str) -> None:
    """A learned sink gives the expected values, a step changes the sink, and copies have it."""
    layer, arrays = make(layers, name), inputs(name)
    layer.initialize()
    given = [to(x, kind=kind) for x in arrays]
    layer(*given)
    parameters = drawn(name, layer.numpy_parameters())
    layer.load_numpy_parameters(parameters)
    want = expected(name, parameters, arrays)
    for one in (layer, copy.deepcopy(layer)):
        output = one(*given, valid_lens=LENGTHS)
        np.testing.assert_allclose(numbers(output), want[0], atol=1e-5)
        np.testing.assert_allclose(numbers(one.attention_weights), want[1], atol=1e-6)
    trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        loss = (layer(*given) ** 2).sum()
    loss.backward()
    trainer.step(1)
    key, shape = sink_of(name)
    moved = layer.numpy_parameters()[key]
    assert moved.shape == shape
    assert not np.allclose(moved, parameters[key], atol=1e-4)


@pytest.mark.parametrize("sink", FIXED)
@pytest.mark.parametrize("name", LAYERS)
def test_a_fixed_sink(name: str, sink: float) -> None:
    layer, arrays = make(layers, name, sink), inputs(name)
    layer.initialize()
    output = layer(*map(mx.nd.array, arrays), valid_lens=LENGTHS)
    parameters = layer.numpy_parameters()
    assert sink_of(name)[0] not in parameters
    want = expected(name, parameters, arrays, sink)
    np.testing.assert_allclose(output.asnumpy(), want[0], atol=1e-5)
    np.testing.assert_allclose(layer.attention_weights.asnumpy(), want[1], atol=1e-6)


def test_one_sequence_without_a_batch(kind: str) -> None:
    layer, x = layers.Attention(sink=True), inputs("self")[0]
    layer.load_numpy_parameters({"sink.weight": np.float32(0.5)})
    whole, one = numbers(layer(*[to(x, kind=kind)] * 2)), numbers(layer(*[to(x[0], kind=kind)] * 2))
    np.testing.assert_allclose(one, whole[0], rtol=1e-5, atol=1e-6)


def test_files_and_hybridized_parents(tmp_path: Path) -> None:
    x = mx.nd.array(inputs("self")[0])
    parent = nn.HybridSequential()
    parent.add(make(layers, "self"))
    parent.initialize()
    parent[0].load_numpy_parameters(drawn("self", parent[0].numpy_parameters()))
    plain = parent(x).asnumpy()
    parent.save_parameters(str(tmp_path / "sinks.params"))
    again = nn.HybridSequential()
    again.add(make(layers, "self"))
    again.load_parameters(str(tmp_path / "sinks.params"))
    np.testing.assert_array_equal(again(x).asnumpy(), plain)
    parent.hybridize()
    with autograd.record():
        output = parent(x)
    np.testing.assert_allclose(output.asnumpy(), plain, atol=1e-6)
    output.backward()
    assert parent[0].attention.sink.weight.grad().asnumpy().all()


@pytest.mark.parametrize("score", [Gaussian(2.0), lambda q, k: (q * k[..., :1, :]).sum(-1)])
def test_beside_scores_that_are_no_names(score: Any) -> None:
    many = layers.MultiHeadAttention(8, 2, score=Gaussian(2.0), sink=True)
    many.initialize()
    assert many.numpy_parameters()["attention.sink.weight"].shape == (2,)
    alone = layers.Attention(score, heads=1, sink=True)
    alone.initialize()
    assert alone.numpy_parameters()["sink.weight"].shape == (1,)  # not ()


def test_it_is_seen_taken_and_checked() -> None:
    assert repr(layers.Attention(sink=0)) == "Attention(ScaledDot, dropout=0.0, sink=0.0)"
    layer = layers.Attention(heads=2, sink=True)
    layer.load_numpy_parameters({"sinks": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(layer.numpy_parameters()["sink.weight"], [1.0, 2.0])
    for sink, error, text in WRONG:
        with pytest.raises(error, match=text):
            layers.MultiHeadAttention(8, 2, sink=sink)
