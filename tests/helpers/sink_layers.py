"""Layers with a learned or fixed sink, and the expected results in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers import softcap_layers
from helpers.softcap_layers import HEADS, LAYERS, LENGTHS, Arrays, inputs

__all__ = ["FIXED", "LAYERS", "LENGTHS", "WRONG", "drawn", "expected", "inputs", "make", "sink_of"]

FIXED = [0, -0.75]
WRONG: list[tuple[Any, type[Exception], str]] = [
    ("1", TypeError, "sink must be True for a learned one, a number for a fixed one, or None"),
    ([1.0], TypeError, "sink must be True"),
    (np.zeros(2), TypeError, "sink must be True"),
    (float("nan"), ValueError, "sink must be finite, got nan"),
    (float("-inf"), ValueError, "sink must be finite"),
]


def make(module: Any, name: str, sink: Any = True, **options: Any) -> Any:
    """Return a layer of a front, with a sink and no cap."""
    return softcap_layers.make(module, name, sink=sink, softcap=0.0, **options)


def sink_of(name: str) -> tuple[str, tuple[int, ...]]:
    """Return (name, shape) of a layer's sink."""
    inner = "attention." if name in ("heads", "self") else ""
    return f"{inner}sink.weight", (HEADS,) if name == "heads" else ()


def drawn(name: str, parameters: Arrays) -> dict[str, np.ndarray]:
    """Assert that a new layer's sink is 0, and return its parameters with another sink."""
    key, shape = sink_of(name)
    assert np.array_equal(parameters[key], np.zeros(shape))
    assert np.shape(parameters[key]) == shape
    return {**parameters, key: np.random.normal(size=shape).astype("float32")}


def expected(name: str, parameters: Arrays, given: list[np.ndarray], sink: Any = None) -> Any:
    """Return (output, weights) of a layer with these parameters; `sink` fixes the sink."""
    sink = parameters[sink_of(name)[0]] if sink is None else sink
    return softcap_layers.expected(name, parameters, given, 0.0, sink)
