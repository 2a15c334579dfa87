"""A model of Keras, which has no hooks, records weights, and a recording leaves nothing behind."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from anyscore import record
from anyscore.keras import Attention, MultiHeadAttention
from frameworks.keras.arrays import numpy

X = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")


def made() -> keras.Model:
    inputs = keras.Input((5, 12))
    y = MultiHeadAttention(12, 3, score="additive", name="heads")(inputs)
    y = keras.layers.Dense(12)(y)
    return keras.Model(inputs, Attention("gaussian", name="last")([y, y]))


def test_it_has_the_weights_of_all_layers() -> None:
    model = made()
    wanted = numpy(model(X))
    with record(model) as recording:
        np.testing.assert_array_equal(numpy(model(X)), wanted)
        model(2 * X)
    assert [(name, w.shape) for name, w in recording.calls] == [
        ("heads", (2, 3, 5, 5)), ("last", (2, 1, 5, 5)),
    ] * 2  # fmt: skip
    for name, layer in (("heads", model.get_layer("heads")), ("last", model.get_layer("last"))):
        weights = numpy(layer.last_weights())
        found = recording[name][1]
        np.testing.assert_allclose(found.reshape(weights.shape), weights, rtol=1e-5, atol=1e-7)
        assert np.abs(recording[name][0] - found).max() > 1e-4
    model(X)
    assert len(recording.calls) == 4
    assert "call" not in vars(model.get_layer("last"))


def test_chosen_layers_heads_and_examples() -> None:
    model = made()
    with record(model, "heads", heads=[2], examples=-1) as recording:
        model(X)
        whole = numpy(model.get_layer("heads").last_weights())
    np.testing.assert_allclose(recording["heads"][0], whole[-1:, [2]], rtol=1e-5, atol=1e-7)


def test_fit_is_not_recorded_and_works() -> None:
    model = made()
    model.compile("sgd", "mse")
    with record(model) as recording:
        model.fit(X, np.zeros_like(X), verbose=0)
        model.predict(X, verbose=0)
    if keras.backend.backend() != "torch":  # PyTorch runs eagerly
        assert recording.calls == []


def test_a_model_without_attention_layers() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="has no attention layer"), record(model):
        pass
