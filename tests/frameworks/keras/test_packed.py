"""Layers of Keras take packed sequences: a mask on all backends, nested or ragged on some."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest

from anyscore import Sequences
from anyscore.keras import Attention, MultiHeadAttention, SelfAttention
from helpers import machine
from helpers.samples import normal

pytestmark = pytest.mark.sample

BACKEND = keras.backend.backend()
OFFSETS = [0, 3, 8]
X = normal(8, 6).astype("float32")


def packed(strided: bool = False) -> Any:
    """Return the two sequences as one tensor."""
    if BACKEND == "torch":
        import torch

        parts = [torch.tensor(X[a:b]) for a, b in pairwise(OFFSETS)]
        return torch.nested.nested_tensor(parts, layout=None if strided else torch.jagged)
    tf = machine.package("tensorflow")
    return tf.RaggedTensor.from_row_splits(X, OFFSETS)


@pytest.mark.parametrize(
    "make", [Attention, lambda: SelfAttention(6, 2), lambda: MultiHeadAttention(6, 2)]
)
def test_sequences_are_a_mask(make: Any) -> None:
    layer = make()
    tensors = 1 if isinstance(layer, SelfAttention) else 3
    found = layer(*[X[None]] * tensors, mask=Sequences(OFFSETS))
    for a, b in pairwise(OFFSETS):
        expected = layer(*[X[None, a:b]] * tensors)
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(found)[:, a:b],
            keras.ops.convert_to_numpy(expected),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no such tensors")
def test_what_takes_no_packed_tensors_says_so() -> None:
    x, dense = packed(), keras.ops.ones((2, 5, 6))
    layer = MultiHeadAttention(6, 2)
    match = r"MultiHeadAttention takes no (nested|ragged) tensor here: .* mask=Sequences\(offsets\)"
    for given in ((x,), (x, x, x), (dense, x, x), (x, dense, dense), ([x, x],)):
        with pytest.raises(TypeError, match=match):
            layer(*given)
    if BACKEND == "tensorflow":
        with pytest.raises(TypeError, match="SelfAttention takes no ragged tensor here"):
            SelfAttention(6, 2)(x)
        return
    with pytest.warns(UserWarning, match="prototype"):
        strided = packed(strided=True)
    for one in (Attention(), layer, SelfAttention(6, 2)):
        with pytest.raises(TypeError, match=r"strided layout: make it with layout=torch\.jagged"):
            one(strided)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no such tensors")
def test_what_takes_them() -> None:
    x = packed()
    layers = [Attention()] + ([SelfAttention(6, 2)] if BACKEND == "torch" else [])
    for layer in layers:
        tensors = 1 if isinstance(layer, SelfAttention) else 3
        found = layer(*[x] * tensors)
        found = found.values() if BACKEND == "torch" else found.values
        for a, b in pairwise(OFFSETS):
            expected = layer(*[X[None, a:b]] * tensors)[0]
            np.testing.assert_allclose(
                keras.ops.convert_to_numpy(found[a:b]),
                keras.ops.convert_to_numpy(expected),
                rtol=1e-4,
                atol=1e-5,
            )
