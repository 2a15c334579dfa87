"""Layers for Keras cap scores by softcap=, and keep it in configs and saved models."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import anyscore.keras as layers
from helpers.by_pair import by_pair
from helpers.softcap_layers import CAP, LAYERS, LENGTHS, expected, inputs, make


def numbers(x: object) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(x))


@by_pair("name", LAYERS)
def test_scores_are_capped_and_configs_keep_the_cap(name: str) -> None:
    layer, arrays = make(layers, name), inputs(name)
    output = layer(*arrays, valid_lens=LENGTHS)
    want = expected(name, layer.numpy_parameters(), arrays)
    np.testing.assert_allclose(numbers(output), want[0], atol=1e-5)
    np.testing.assert_allclose(numbers(layer.attention_weights), want[1], atol=1e-6)
    assert layer.get_config()["softcap"] == CAP
    again = type(layer).from_config(layer.get_config())
    again(*arrays, valid_lens=LENGTHS)
    again.load_numpy_parameters(layer.numpy_parameters())
    np.testing.assert_allclose(numbers(again(*arrays, valid_lens=LENGTHS)), want[0], atol=1e-5)


def test_saved_models_keep_the_cap(tmp_path: Path) -> None:
    x = inputs("self")[0]
    data = keras.Input(x.shape[1:])
    model = keras.Model(data, make(layers, "heads")(data))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.layers[-1].get_config()["softcap"] == CAP
    np.testing.assert_allclose(numbers(again(x)), numbers(model(x)), atol=1e-6)


def test_other_caps_are_refused() -> None:
    for name in LAYERS:
        with pytest.raises(ValueError, match="softcap must be ≥ 0"):
            make(layers, name, softcap=-1.0)
