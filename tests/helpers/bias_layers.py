"""Biases for calls of layers with capped scores, and the expected results in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anyscore import ALiBi, Relative
from helpers import softcap_layers
from helpers.softcap_layers import HEADS, LAYERS, LENGTHS, Arrays, inputs, make

__all__ = [
    "LAYERS",
    "LENGTHS",
    "close",
    "drawn",
    "expected",
    "inputs",
    "make",
    "objects",
    "of",
    "slope",
]


def drawn(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw the numbers of two biases of a layer: a tensor, and the table of a `Relative`."""
    heads = (HEADS,) if name == "heads" else ()
    queries = 5 if name == "self" else 3
    tensor, table = np.random.normal(size=(*heads, queries, 5)), np.random.normal(size=(*heads, 5))
    return tensor.astype("float32"), table.astype("float32")


def of(tensor: Any, table: Any) -> dict[str, Any]:
    """Return the biases of a call."""
    return {"bias": tensor, "bias_after": Relative(table, align="end")}


def expected(name: str, parameters: Arrays, given: list[np.ndarray], *arrays: np.ndarray) -> Any:
    """Return (output, weights) of a layer with these parameters and numbers of `drawn`."""
    tensor, table = arrays
    queries = tensor.shape[-2]
    far = np.arange(5) - np.arange(queries)[:, None] - (5 - queries)
    after = table[..., np.clip(far, -2, 2) + 2]
    return softcap_layers.expected(name, parameters, given, biases=(tensor, after))


def slope(
    name: str, parameters: Arrays, given: list[np.ndarray], *arrays: np.ndarray
) -> list[float]:
    """Return the derivative of Σ output² by each array, in the direction of the array's signs."""
    found, step = [], 1e-6
    for i in range(len(arrays)):
        ends = []
        for side in (step, -step):
            moved = [np.asarray(x, np.float64) for x in arrays]
            moved[i] = moved[i] + side * np.sign(moved[i])
            ends.append((expected(name, parameters, given, *moved)[0] ** 2).sum())
        found.append((ends[0] - ends[1]) / (2 * step))
    return found


def close(slopes: Any, arrays: Any, want: list[float]) -> None:
    """Assert that gradients by arrays of `drawn` agree with `slope`."""
    for x, array, number in zip(slopes, arrays, want, strict=True):
        np.testing.assert_allclose((np.asarray(x) * np.sign(array)).sum(), number, rtol=1e-3)


def objects(to: Callable[[np.ndarray], Any]) -> list[Any]:
    """Return a bias of each kind for two heads, with tensors of a framework."""
    table = to(np.random.normal(size=(2, 8)).astype("float32"))
    return [
        Relative(table[:, :7], align="end"),
        Relative(table, buckets="t5", max_distance=9, align="end"),
        ALiBi(table[:, 0] ** 2, align="start"),
    ]
