"""Layers for Keras return the last call's weights of chosen queries and heads."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from anyscore import Causal
from anyscore.keras import Attention, MultiHeadAttention, SelfAttention
from frameworks.keras.arrays import near, numpy

X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")
CHOSEN: list[Any] = [None, 3, -1, slice(1, 4), [2, 0, 2], [], np.array([4, 1]), range(2)]
PAIRS = [(rows, CHOSEN[(i + n) % 8]) for n in range(8) for i, rows in enumerate(CHOSEN)]
"""All pairs of rows and heads, dealt out among scores."""


@pytest.mark.parametrize(
    ("score", "pairs"),
    [
        ("additive", PAIRS[:24]),
        ("trilinear", PAIRS[24:48]),
        (lambda q, k: q @ keras.ops.swapaxes(k, -1, -2), PAIRS[48:]),
    ],
    ids=["additive", "trilinear", "callable"],
)
def test_they_are_those_of_all_indexed(score: Any, pairs: list[Any]) -> None:
    layer = MultiHeadAttention(12, 6, kv_heads=2, score=score, sink=True)
    assert layer.last_weights(0) is None
    mask = np.random.default_rng(1).random((2, 6, 5, 5)) < 0.6
    layer(X, valid_lens=[5, 2], mask=Causal() & mask)
    full = numpy(layer.attention_weights)
    near(layer.last_weights(), full)
    for rows, heads in pairs:
        expected = full if heads is None else full[:, heads]
        expected = expected if rows is None else expected[..., rows, :]
        near(layer.last_weights(rows, heads), expected)


def test_without_heads() -> None:
    layer = SelfAttention(12, 4)
    layer(X)
    near(layer.last_weights(-2), numpy(layer.attention_weights)[:, -2])
    with pytest.raises(IndexError, match="heads= chooses of weights"):
        layer.last_weights(heads=0)


def test_errors() -> None:
    layer = Attention()
    layer(X, X)
    with pytest.raises(IndexError, match="rows has 5, expected integers from -5 to 4"):
        layer.last_weights(5)
    with pytest.raises(TypeError, match="rows must be an integer, a slice or a sequence of int"):
        layer.last_weights(np.True_)
