"""Scores, masks and biases in configs of Keras: encoding, decoding, and their arrays."""

from __future__ import annotations

from dataclasses import fields, replace
from numbers import Real
from typing import Any

import keras
import numpy as np

from anyscore.ops import framework
from anyscore.ops.checks import brief, is_finite
from anyscore.ops.pytrees import TREES, name_of
from anyscore.score import SCORES
from anyscore.score.base import Score


def encode(score: Any) -> Any:
    """Encode a score for a config: as a name, as a dictionary, or by Keras's serialisation."""
    if isinstance(score, str | dict):
        return score
    for name, known in SCORES.items():
        if score is known:
            return name
        if type(score) is known:
            values = {field.name: getattr(score, field.name) for field in fields(score)}
            return {
                "score": name,
                "fields": {x: _plain(f"{known.__name__}.{x}", y) for x, y in values.items()},
            }
    return keras.saving.serialize_keras_object(score)


def decode(score: Any) -> Any:
    """Decode a score from `encode`; tensors become NumPy arrays, or variables if trained."""
    if not isinstance(score, dict):
        return score
    if "fields" not in score:
        return keras.saving.deserialize_keras_object(score)
    values = score["fields"].items()
    return SCORES[score["score"]](**{name: _restored(x) for name, x in values})


def encode_tree(x: Any) -> Any:
    """Encode a mask or a bias by the name of its class and its fields."""
    cls = type(x)
    if isinstance(x, tuple):
        return {"tuple": [encode_tree(part) for part in x]}
    if cls not in TREES:
        return keras.saving.serialize_keras_object(x)
    values = {name: y for name, y in vars(x).items() if name not in getattr(cls, "derived", ())}
    return {"tree": name_of(cls), "fields": {name: encode_tree(y) for name, y in values.items()}}


def decode_tree(config: Any) -> Any:
    """Decode a mask or a bias from `encode_tree`. The constructor of its class checks the fields.

    Raises:
        ValueError: an unknown class of masks or biases.
    """
    if not isinstance(config, dict) or not {"tree", "tuple"} & config.keys():
        return keras.saving.deserialize_keras_object(config)
    if "tuple" in config:
        return tuple(map(decode_tree, config["tuple"]))
    classes = {name_of(cls): cls for cls in TREES}
    if config["tree"] not in classes:
        raise ValueError(
            f"the file has a mask or bias {config['tree']}, which is not known: import the module "
            "that defines it first."
        )
    return classes[config["tree"]](**{x: decode_tree(y) for x, y in config["fields"].items()})


def own_arrays(score: Any) -> tuple[Any, dict[str, tuple[np.ndarray[Any, Any], bool]]]:
    """Return (score with NumPy arrays, field → (array, True if trained))."""
    if not isinstance(score, Score):
        return score, {}
    arrays = {}
    for field in fields(score):
        x = getattr(score, field.name)
        if isinstance(x, keras.Variable):
            arrays[field.name] = to_numpy(x.value), bool(x.trainable)
        elif not isinstance(x, Real) and framework(x) is not None:
            arrays[field.name] = to_numpy(x), False
    return replace(score, **{name: x for name, (x, _) in arrays.items()}), arrays


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Convert a tensor to a NumPy array, half precision to float32."""
    array = np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(x)))
    return array.astype("float32") if array.dtype.name in ("bfloat16", "float16") else array


def _restored(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    array = np.array(x["array"], "float32")
    return keras.Variable(array) if x["trained"] else array


def _plain(name: str, x: Any) -> Any:
    if x is None or (isinstance(x, Real) and is_finite(x)):
        return None if x is None else float(x)
    if isinstance(x, Real) or not (isinstance(x, keras.Variable) or framework(x)):
        raise TypeError(f"{name} is {brief(x)}, expected a finite number or a tensor.")
    trained = isinstance(x, keras.Variable) and bool(x.trainable)
    return {"array": to_numpy(x).astype("float32").tolist(), "trained": trained}
