"""`record` keeps the weights of a block of Gluon."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest

from anyscore import record
from anyscore.mxnet import MultiHeadAttention, SelfAttention
from frameworks.mxnet.arrays import numbers, to

X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")


def test_it_has_the_weights_of_all_layers(kind: str) -> None:
    model = mx.gluon.nn.Sequential()
    model.add(MultiHeadAttention(12, 3, score="additive"), SelfAttention(12, 4))
    model.initialize()
    wanted = numbers(model(to(X, kind=kind)))
    with record(model) as recording:
        np.testing.assert_array_equal(numbers(model(to(X, kind=kind))), wanted)
    assert [(name, w.shape) for name, w in recording.calls] == [
        ("0", (2, 3, 5, 5)), ("1", (2, 1, 5, 5)),
    ]  # fmt: skip
    for layer, (_, found) in zip(model, recording.calls, strict=True):
        weights = numbers(layer.attention_weights)
        np.testing.assert_allclose(found.reshape(weights.shape), weights, rtol=1e-5, atol=1e-7)
    with record(model, 0, heads=1, examples=-1) as chosen:
        model(to(X, kind=kind))
    np.testing.assert_allclose(chosen["0"][0], recording["0"][0][-1:, [1]], rtol=1e-4, atol=1e-7)
    assert len(recording.calls) == 2


def test_a_block_without_attention_layers() -> None:
    with pytest.raises(ValueError, match="has no attention layer"), record(mx.gluon.nn.Dense(2)):
        pass
