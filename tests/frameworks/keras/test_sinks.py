"""Layers for Keras take sink=, learned or fixed, and keep it in configs and saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import anyscore.keras as layers
import anyscore.torch as torch_layers
from anyscore import Gaussian
from helpers.by_pair import by_pair
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


def numbers(x: object) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(x))


@by_pair("name", LAYERS)
def test_a_learned_sink(name: str) -> None:
    """A learned sink gives the expected values, also in a layer from the config and in PyTorch."""
    layer, arrays = make(layers, name), inputs(name)
    layer(*arrays)
    parameters = drawn(name, layer.numpy_parameters())
    again = type(layer).from_config(layer.get_config())
    again(*arrays)
    want = expected(name, parameters, arrays)
    for one in (layer, again):
        one.load_numpy_parameters(parameters)
        output = one(*arrays, valid_lens=LENGTHS)
        np.testing.assert_allclose(numbers(output), want[0], atol=1e-5)
        np.testing.assert_allclose(numbers(one.attention_weights), want[1], atol=1e-6)
    theirs = make(torch_layers, name)
    theirs.load_numpy_parameters(layer.numpy_parameters())
    output = theirs(*map(torch.tensor, arrays), valid_lens=torch.tensor(LENGTHS)).detach()
    np.testing.assert_allclose(output, want[0], atol=1e-5)


@pytest.mark.parametrize("sink", FIXED)
@by_pair("name", LAYERS)
def test_a_fixed_sink(name: str, sink: float) -> None:
    layer, arrays = make(layers, name, sink), inputs(name)
    again = type(layer).from_config(layer.get_config())
    again(*arrays)
    output = again(*arrays, valid_lens=LENGTHS)
    assert sink_of(name)[0] not in again.numpy_parameters()
    want = expected(name, again.numpy_parameters(), arrays, sink)
    np.testing.assert_allclose(numbers(output), want[0], atol=1e-5)
    np.testing.assert_allclose(numbers(again.attention_weights), want[1], atol=1e-6)


@pytest.mark.parametrize("score", ["scaled_dot", Gaussian(2.0)])
def test_it_is_trained_and_saved(score: Any, tmp_path: Path) -> None:
    x = inputs("self")[0]
    data = keras.Input(x.shape[1:])
    options: dict[str, Any] = {"score": score, "sink": True, "kernel_initializer": "he_normal"}
    model = keras.Model(data, layers.MultiHeadAttention(6, 2, **options)(data))
    sink = model.layers[-1].parameters_by_name()["attention.sink.weight"]
    assert not numbers(sink.value).any()
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.fit(x, 0 * x, epochs=1, verbose=0)
    assert numbers(sink.value).all()
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.layers[-1].get_config()["sink"] is True
    np.testing.assert_allclose(numbers(again(x)), numbers(model(x)), atol=1e-6)


def test_mixed_precision_does_not_round_it() -> None:
    x, sink = inputs("self")[0], np.float32(1 + 2**-10)
    layer = layers.Attention("additive", hidden=8, sink=True, dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(layer(x, x).dtype) == "bfloat16"
    layer.load_numpy_parameters({**layer.numpy_parameters(), "sink.weight": sink})
    layer(x, x)
    assert numbers(layer.record.last.sink) == sink


def test_it_is_taken_and_checked() -> None:
    layer = layers.Attention(heads=2, sink=True, d_q=4, d_k=4)
    layer.load_numpy_parameters({"sinks": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(layer.numpy_parameters()["sink.weight"], [1.0, 2.0])
    for sink, error, text in WRONG:
        with pytest.raises(error, match=text):
            layers.MultiHeadAttention(8, 2, sink=sink)
