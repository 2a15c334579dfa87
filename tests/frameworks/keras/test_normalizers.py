"""Layers for Keras keep normalizer= in configs and saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyscore import Gaussian, Sigmoid, attention
from anyscore.keras import Attention, SelfAttention
from frameworks.keras.arrays import numpy
from helpers.normalizing import ARRAYS, NORMALIZERS


@pytest.mark.parametrize("normalizer", [*NORMALIZERS, Sigmoid(-1.0)])
def test_layers_and_their_configs(normalizer: Any) -> None:
    layer = Attention("gaussian", normalizer=normalizer, sigma=1.5)
    xs = [x.astype("float32") for x in ARRAYS]
    exact = attention(*ARRAYS, score=Gaussian(1.5), normalizer=normalizer, return_weights=True)
    again = Attention.from_config(layer.get_config())
    for one in (layer, again):
        np.testing.assert_allclose(numpy(one(*xs)), exact.output, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            numpy(one.attention_weights), exact.weights, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("normalizer", ["entmax15", Sigmoid(-1.0)])
def test_saved_models(normalizer: Any, tmp_path: Path) -> None:
    x = ARRAYS[1][:, 0].astype("float32")
    data = keras.Input(x.shape[1:])
    model = keras.Model(data, SelfAttention(x.shape[-1], 4, normalizer=normalizer)(data))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(numpy(again(x)), numpy(model(x)), atol=1e-6)


def test_others_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'sparsemax'"):
        Attention("gaussian", normalizer="sparse")
