"""Models with anyscore's masks and biases can be saved, described, cloned and made again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyscore import (
    ALiBi,
    Causal,
    Edges,
    Interval,
    Keys,
    Lengths,
    Mask,
    Relative,
    Sequences,
    Sigmoid,
    Window,
)
from anyscore.keras import MultiHeadAttention
from helpers.samples import normal

BATCH, T, D = 2, 4, 8
KEEP = np.tril(np.ones((T, T), bool))


def tensor(x: Any) -> Any:
    return keras.ops.convert_to_tensor(np.asarray(x))


@dataclass(frozen=True, eq=False)
class Odd(Mask):
    """A user's mask of keys at odd places, beside other masks."""

    others: Any

    def lower(self, call: Any) -> Any:
        odd = (np.arange(call.keys) % 2).astype(bool)
        return (Keys(odd) & self.others).lower(call)


MASKS: dict[str, Callable[[], Any]] = {
    "causal": Causal,
    "offset": lambda: Causal(offset=tensor([0, 1])),
    "window": lambda: Window(np.int64(1), 0),
    "lengths": lambda: Lengths([2, 4]),
    "lengths of NumPy": lambda: Lengths(np.array([2, 4])),
    "lengths of tensors": lambda: Lengths(tensor([2, 4])),
    "keys": lambda: Keys(tensor(KEEP[2])),
    "interval": lambda: Interval(1, None),
    "all": lambda: Causal() & Lengths([3, 4]) & KEEP,
    "sequences": lambda: Sequences([0, 3, 4]) & Causal(),
    "edges": lambda: Edges(np.arange(T + 1), np.arange(T)),
    "one of the user": lambda: Odd(Lengths([3, 4])),
}
BIASES: dict[str, Callable[[], Any]] = {
    "alibi": lambda: ALiBi(),
    "slopes": lambda: ALiBi(tensor(np.array([0.5, 0.25], "float32"))),
    "relative": lambda: Relative(tensor(normal(2, 5).astype("float32"))),
}
OBJECTS = {
    **{name: ("mask", make) for name, make in MASKS.items()},
    **{name: ("bias", make) for name, make in BIASES.items()},
    "after": ("bias_after", BIASES["alibi"]),
}


def saved(model: Any, folder: Path) -> Any:
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def with_weights(again: Any, model: Any) -> Any:
    again.set_weights(model.get_weights())
    return again


def exported(model: Any, folder: Path) -> Any:
    import tensorflow as tf

    model.export(str(folder / "exported"), verbose=False)
    loaded = tf.saved_model.load(str(folder / "exported"))
    return lambda x: loaded.serve(x)


FORMATS: dict[str, Callable[[Any, Path], Any]] = {
    ".keras": saved,
    "to_json": lambda m, _: with_weights(keras.models.model_from_json(m.to_json()), m),
    "from_config": lambda m, _: with_weights(type(m).from_config(m.get_config()), m),
    "clone_model": lambda m, _: with_weights(keras.models.clone_model(m), m),
    "pickle": lambda m, _: pickle.loads(pickle.dumps(m)),
    "deepcopy": lambda m, _: copy.deepcopy(m),
}


if keras.backend.backend() == "tensorflow":
    FORMATS["export"] = exported


def model_of(name: str, layer: Any | None = None) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return a model of one layer, which is called with an object, and the model's input."""
    argument, make = OBJECTS[name]
    batch = 1 if name in ("sequences", "edges") else BATCH
    x = keras.Input((T, D))
    layer = MultiHeadAttention(D, 2) if layer is None else layer
    return keras.Model(x, layer(x, **{argument: make()})), normal(batch, T, D).astype("float32")


def numbers(x: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = keras.ops.convert_to_numpy(x)
    return found


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", OBJECTS)
def test_made_again(name: str, form: str, tmp_path: Path) -> None:
    model, x = model_of(name)
    again = FORMATS[form](model, tmp_path)
    np.testing.assert_allclose(numbers(again(x)), numbers(model(x)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("normalizer", ["entmax15", Sigmoid(np.float32(0.25))])
def test_beside_options(normalizer: Any, tmp_path: Path) -> None:
    model, x = model_of("all", MultiHeadAttention(D, 2, score="gaussian", normalizer=normalizer))
    np.testing.assert_array_equal(numbers(saved(model, tmp_path)(x)), numbers(model(x)))


def test_a_class_that_is_not_there(tmp_path: Path) -> None:
    text = model_of("causal")[0].to_json().replace("anyscore.Causal", "elsewhere.Causal")
    with pytest.raises(Exception, match=r"mask or bias elsewhere.Causal, which is not known"):
        keras.models.model_from_json(text)


@pytest.mark.parametrize("many", [False, True])
def test_symbols_in_masks(many: bool) -> None:
    """Symbols in masks raise: Keras would not find the symbols, and its model could not run."""
    x, lengths = keras.Input((T, D)), keras.Input((), dtype="int32")
    mask = Causal() & Lengths(lengths) if many else Causal(offset=lengths)
    with pytest.raises(TypeError, match=r"holds a symbolic tensor, .*pass it as valid_lens="):
        MultiHeadAttention(D, 2)(x, mask=mask)
