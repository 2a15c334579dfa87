"""Scores as the configs of layers hold them, and as the layers take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from numbers import Real
from typing import Any

import keras
import numpy as np

from anyscore.layers import SCORES, is_named
from anyscore.ops import framework
from anyscore.score import Score


def encode(score: Any) -> Any:
    """A score as a config holds it."""
    if isinstance(score, str | dict):
        return score
    for name, known in SCORES.items():
        if score is known:
            return name
        if type(score) is known:
            own = {field.name: getattr(score, field.name) for field in fields(score)}
            return {"score": name, "fields": {x: _plain(y) for x, y in own.items()}}
    return keras.saving.serialize_keras_object(score)


def decode(score: Any) -> Any:
    """Make again what `encode` was given, with NumPy arrays for tensors, variables if trained."""
    if not isinstance(score, dict):
        return score
    if "fields" not in score:
        return keras.saving.deserialize_keras_object(score)
    values = score["fields"].items()
    return SCORES[score["score"]](**{name: _restored(x) for name, x in values})


def own_arrays(score: Any) -> tuple[Any, dict[str, tuple[np.ndarray[Any, Any], bool]]]:
    """A score object with its tensors as NumPy arrays; those, and whether each is trained."""
    if not isinstance(score, Score):
        return score, {}
    found = {}
    for field in fields(score):
        x = getattr(score, field.name)
        if isinstance(x, keras.Variable):
            found[field.name] = to_numpy(x.value), bool(x.trainable)
        elif not isinstance(x, Real) and framework(x) is not None:
            found[field.name] = to_numpy(x), False
    return replace(score, **{name: x for name, (x, _) in found.items()}), found


def named_only(score: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes, for a score whose parameters a layer makes; others have their own."""
    return dict(sizes) if is_named(score) else {}


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """A tensor as a NumPy array, half precision as float32."""
    array = np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(x)))
    return array.astype("float32") if array.dtype.name in ("bfloat16", "float16") else array


def _restored(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    array = np.array(x["array"], "float32")
    return keras.Variable(array) if x["trained"] else array


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, Real):
        return None if x is None else float(x)
    trained = isinstance(x, keras.Variable) and bool(x.trainable)
    return {"array": to_numpy(x).astype("float32").tolist(), "trained": trained}
