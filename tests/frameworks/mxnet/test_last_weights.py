"""Layers for MXNet return the last call's weights of chosen queries and heads."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from anyscore import Causal
from anyscore.mxnet import Attention, MultiHeadAttention, SelfAttention
from frameworks.mxnet.arrays import numbers, to

X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")
CHOSEN: list[Any] = [None, 3, -1, slice(1, 4), [2, 0, 2], [], np.array([4, 1]), range(2)]


@pytest.mark.parametrize(
    "score", ["additive", "trilinear", lambda q, k: mx.np.matmul(q, k.swapaxes(-1, -2))]
)
def test_they_are_those_of_all_indexed(score: Any, kind: str) -> None:
    layer = MultiHeadAttention(12, 6, kv_heads=6 if callable(score) else 2, score=score, sink=True)
    layer.initialize()
    assert layer.last_weights(0) is None
    mask = np.random.default_rng(1).random((2, 6, 5, 5)) < 0.6
    layer(to(X, kind=kind), valid_lens=[5, 2], mask=Causal() & mask)
    full = numbers(layer.attention_weights)
    assert type(layer.last_weights([0])) is type(layer.attention_weights)
    for rows in CHOSEN:
        for heads in CHOSEN:
            expected = full if heads is None else full[:, heads]
            expected = expected if rows is None else expected[..., rows, :]
            found = numbers(layer.last_weights(rows, heads))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_without_heads_and_errors(kind: str) -> None:
    layer = SelfAttention(12, 4)
    layer.initialize()
    layer(to(X, kind=kind))
    expected = numbers(layer.attention_weights)[:, -2]
    np.testing.assert_allclose(numbers(layer.last_weights(-2)), expected, rtol=1e-4)
    with pytest.raises(IndexError, match="heads= chooses of weights"):
        layer.last_weights(heads=0)
    plain = Attention()
    plain(to(X, kind=kind), to(X, kind=kind))
    with pytest.raises(IndexError, match="rows has 5, expected integers from -5 to 4"):
        plain.last_weights(5)
    with pytest.raises(TypeError, match="rows must be an integer, a slice or a sequence of int"):
        plain.last_weights([True])
