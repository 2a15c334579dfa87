"""`anyscore.keras.replace` copies a model of Keras with anyscore's multi-head layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyscore.keras import MultiHeadAttention, replace
from anyscore.score import SCORES
from helpers.by_pair import by_pair
from helpers.samples import normal

B, T, S, D = 3, 5, 7, 8


def model_of(**options: Any) -> Any:
    """Return causal self-attention in a model of its own, then attention to another sequence."""
    x, y = keras.Input((T, D), name="x"), keras.Input((S, 6), name="y")
    inside = keras.Input((T, D))
    mixed = keras.layers.MultiHeadAttention(2, 4, name="mixing", **options)(
        inside, inside, use_causal_mask=True
    )
    block = keras.Model(inside, keras.layers.LayerNormalization()(inside + mixed), name="block")
    keys = keras.layers.Dense(5)(y)
    z = keras.layers.MultiHeadAttention(3, 4, name="reading", **options)(block(x), y, keys)
    return keras.Model([x, y], keras.layers.Dense(2)(z))


INPUTS = [normal(B, T, D).astype("float32"), normal(B, S, 6).astype("float32")]


@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"output_shape": 9}])
def test_with_scaled_dot_products_it_computes_the_same(options: dict[str, Any]) -> None:
    model = model_of(**options) if "output_shape" not in options else None
    if model is None:
        x = keras.Input((T, D))
        model = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, **options)(x, x))
    inputs = INPUTS if len(model.inputs) == 2 else INPUTS[0]
    for weight in model.weights:
        weight.assign(normal(*weight.shape))
    ours = replace(model)
    np.testing.assert_allclose(ours.predict(inputs), model.predict(inputs), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(x, keras.layers.MultiHeadAttention) for x in ours._flatten_layers())


@by_pair("score", SCORES)
def test_every_score(score: str) -> None:
    assert np.isfinite(replace(model_of(), score).predict(INPUTS)).all()


def test_chosen_layers() -> None:
    ours = replace(model_of(), "additive", layers=["block/mixing"])
    assert isinstance(ours.get_layer("block").get_layer("mixing"), MultiHeadAttention)
    assert type(ours.get_layer("reading")) is keras.layers.MultiHeadAttention


def test_an_exchanged_score_trains_and_is_saved(tmp_path: Path) -> None:
    ours = replace(model_of(dropout=0.1), "additive")
    ours.compile("adam", "mse")
    targets = normal(B, T, 2).astype("float32")
    ours.optimizer.learning_rate = 0.01
    losses = ours.fit(INPUTS, targets, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    ours.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(INPUTS), ours.predict(INPUTS), rtol=1e-5, atol=1e-6)


def test_errors() -> None:
    model = model_of()
    with pytest.raises(ValueError, match="did you mean 'additive'"):
        replace(model, "aditive")
    with pytest.raises(TypeError, match=r"model is a Dense, expected a model of Keras"):
        replace(keras.layers.Dense(2))
    with pytest.raises(TypeError, match="dropout= is what the layers say"):
        replace(model, dropout=0.2)
    with pytest.raises(ValueError, match="no attention layer 'x': the model has block/mixing, rea"):
        replace(model, layers="x")
    x = keras.Input((T, D))
    with pytest.raises(ValueError, match=r"has no keras.layers.MultiHeadAttention that could"):
        replace(keras.Model(x, keras.layers.Dense(2)(x)))
    for option in ({"value_dim": 3}, {"attention_axes": (1, 2)}, {"kernel_regularizer": "l2"}):
        layer = keras.layers.MultiHeadAttention(2, 4, name="mixing", **option)
        x = keras.Input((T, T, D) if "attention_axes" in option else (T, D))
        with pytest.raises(ValueError, match=f"mixing has .*{next(iter(option))}"):
            replace(keras.Model(x, layer(x, x)))


class Subclassed(keras.Model):
    """A model whose structure only its `call` knows."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = keras.layers.MultiHeadAttention(2, 4)

    def call(self, x: Any) -> Any:
        return self.mixing(x, x)


def test_a_sequential_model() -> None:
    x = keras.Input((T, D))
    block = keras.Model(x, keras.layers.MultiHeadAttention(2, 4, name="mixing")(x, x), name="block")
    model = keras.Sequential([keras.Input((T, D)), keras.layers.Dense(D), block])
    ours = replace(model)
    assert isinstance(ours.get_layer("block").get_layer("mixing"), MultiHeadAttention)
    expected = model.predict(INPUTS[0])
    np.testing.assert_allclose(ours.predict(INPUTS[0]), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"is not built: give it a keras.Input, or call it once"):
        replace(keras.Sequential([keras.layers.Dense(D)]))


def test_what_is_not_looked_into() -> None:
    model, x = Subclassed(), keras.Input((T, D))
    model(INPUTS[0])
    with pytest.raises(TypeError, match=r"a Subclassed, .*expected a functional .* in yourself"):
        replace(model)
    with pytest.raises(ValueError, match="inside of other layers and of subclassed models are not"):
        replace(keras.Model(x, model(x)))
    with pytest.raises(ValueError, match="replaced already: give the model as it was before"):
        replace(replace(model_of(), "additive"), "gaussian")
