"""Layers for Keras take bias= and bias_after=: tensors, symbols and trained tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyscore.keras as layers
from anyscore import ALiBi, Relative
from frameworks.keras.arrays import numpy
from helpers.bias_layers import LAYERS, LENGTHS, drawn, expected, inputs, make, of
from helpers.by_pair import by_pair
from helpers.wrong_biases import TABLE
from helpers.wrong_calls import given


def tensors(arrays: Any) -> list[Any]:
    return [keras.ops.convert_to_tensor(x) for x in arrays]


@by_pair("name", LAYERS)
def test_values_and_weights(name: str) -> None:
    """Outputs, weights and scores have the biases, also biases of NumPy arrays."""
    layer, xs, arrays = make(layers, name), inputs(name), drawn(name)
    biases = of(arrays[0], tensors(arrays)[1])
    output = layer(*xs, valid_lens=LENGTHS, **biases)
    want = expected(name, layer.numpy_parameters(), xs, *arrays)
    np.testing.assert_allclose(numpy(output), want[0], atol=1e-5)
    np.testing.assert_allclose(numpy(layer.attention_weights), want[1], atol=1e-6)
    if hasattr(layer, "scores"):
        found = keras.ops.softmax(layer.scores(*xs[:2], LENGTHS, **biases))
        np.testing.assert_allclose(numpy(found), want[1], atol=1e-6)


@keras.saving.register_keras_serializable("tests")
class Block(keras.layers.Layer):
    """Layer that passes its own table to attention as a bias."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(6, 2)

    def build(self, shape: Any) -> None:
        self.attention.build(shape)
        self.table = self.add_weight(name="table", shape=(2, 5), initializer="zeros")

    def call(self, x: Any) -> Any:
        table = keras.ops.convert_to_tensor(self.table)
        return self.attention(x, use_causal_mask=True, bias=Relative(table), bias_after=ALiBi())


@pytest.mark.parametrize("tokens", [5, None])
def test_a_table_is_trained_and_saved(tokens: int | None, tmp_path: Path) -> None:
    x = np.random.normal(size=(4, 5, 6)).astype("float32")
    data = keras.Input((tokens, 6))
    model = keras.Model(data, Block()(data))
    model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
    model.fit(x, x[:, ::-1], epochs=2, verbose=0)
    table = numpy(model.layers[-1].table)
    assert np.all(table[:, :3])
    assert not np.any(table[:, 3:])  # distances of keys after the query
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(again.layers[-1].table), table)
    np.testing.assert_allclose(numpy(again(x)), numpy(model(x)), atol=1e-6)


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "heads", "self"])
def test_functional_models_take_tensors(name: str) -> None:
    layer, xs, (bias, _) = make(layers, name), inputs(name), drawn(name)
    symbols = [keras.Input(x.shape[1:]) for x in xs]
    of_bias = keras.Input(bias.shape)
    output = layer(*symbols, bias=of_bias, bias_after=2 * of_bias)
    model = keras.Model([*symbols, of_bias], output)
    both = np.stack([bias, -bias])
    found = model([*xs, both])
    np.testing.assert_allclose(
        numpy(found), numpy(layer(*xs, bias=both, bias_after=2 * both)), atol=1e-6
    )
    assert not np.allclose(numpy(found), numpy(layer(*xs)), atol=1e-3)
    assert output.shape[1:] == found.shape[1:]


def test_beside_padding_masks() -> None:
    """Padding masks of earlier layers apply beside a bias, which has no mask."""
    tokens = np.array([[3, 1, 0, 0], [1, 2, 2, 0]])
    embedding, layer = keras.layers.Embedding(4, 6, mask_zero=True), layers.SelfAttention(6, 3)
    bias = np.random.normal(size=(4, 4)).astype("float32")
    found = layer(embedding(tokens), bias=bias)
    want = layer(embedding(tokens) * 1.0, mask=tokens[:, None] > 0, bias=bias)
    np.testing.assert_allclose(numpy(found)[tokens > 0], numpy(want)[tokens > 0], atol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
def test_mixed_precision(symbolic: bool) -> None:
    (x, *_), bias = inputs("self"), np.float32(np.eye(5))
    layer = layers.SelfAttention(6, 3, dtype="mixed_bfloat16")
    output = layer(x, bias=bias, bias_after=ALiBi())
    assert keras.backend.standardize_dtype(output.dtype) == "bfloat16"
    if symbolic:
        symbols = keras.Input((5, 6)), keras.Input((5, 5))
        model = keras.Model(symbols, layer(symbols[0], bias=symbols[1], bias_after=ALiBi()))
        found = model([x, np.stack([bias] * len(x))])
        np.testing.assert_allclose(
            numpy(keras.ops.cast(found, "float32")), numpy(keras.ops.cast(output, "float32"))
        )


@pytest.mark.parametrize(("change", "error", "text"), TABLE[1:])
def test_others_are_refused(change: Any, error: type[Exception], text: str) -> None:
    def made(x: np.ndarray) -> Any:
        return keras.ops.convert_to_tensor(x.astype("float32") if x.dtype == "float64" else x)

    xs, options = given(change, made)
    layer = layers.Attention()
    with pytest.raises(error, match=re.escape(text)):
        layer(*xs, **options)
