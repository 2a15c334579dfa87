"""Arrays and masks for calls of layers, shared by several files of tests of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from helpers.samples import normal

B, T_Q, T_K, D, D_V = 2, 3, 5, 4, 7
KEEP = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0]], bool)
QUERIES = np.array([[1, 1, 0], [1, 0, 0]], bool)
PAIRS = normal(B, T_Q, T_K) > 0
PAIRS[0, 1] = False  # a query without keys


def arrays() -> list[np.ndarray]:
    shapes = (B, T_Q, D), (B, T_K, D), (B, T_K, D_V)
    return [normal(*shape).astype("float32") for shape in shapes]


def numpy(x: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def near(x: Any, y: Any) -> None:
    np.testing.assert_allclose(numpy(x), numpy(y), rtol=2e-5, atol=2e-6)
