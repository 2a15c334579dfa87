"""A call with each normalizer, and its output in NumPy and gradients by differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from anyscore import Gaussian, attention

NORMALIZERS = "sigmoid", "sparsemax", "entmax15"
_MADE = np.random.default_rng(0)
ARRAYS = [_MADE.normal(size=(2, 3, *n)) for n in ((4, 5), (6, 5), (6, 2))]
LENGTHS = np.array([[0], [4]])


def call(*xs: Any, normalizer: str, **options: Any) -> Any:
    """Return the attention of the tested call: one example has no keys, others have padding."""
    given = {"score": Gaussian(1.5), "valid_lens": LENGTHS, **options}
    return attention(*xs, normalizer=normalizer, **given)


@cache
def expected(normalizer: str) -> list[np.ndarray]:
    """Return the output, and the gradients of Σ output² by query, key and value."""

    def loss(*xs: np.ndarray) -> float:
        return float((call(*xs, normalizer=normalizer) ** 2).sum())

    return [call(*ARRAYS, normalizer=normalizer), *(_slope(loss, i) for i in range(3))]


def _slope(loss: Callable[..., float], which: int, step: float = 1e-6) -> np.ndarray:
    xs = [x.copy() for x in ARRAYS]
    slope = np.empty_like(xs[which])
    for at in np.ndindex(*slope.shape):
        kept, both = xs[which][at], []
        for sign in (1, -1):
            xs[which][at] = kept + sign * step
            both.append(loss(*xs))
        xs[which][at] = kept
        slope[at] = (both[0] - both[1]) / (2 * step)
    return slope


def near(found: list[Any], normalizer: str, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Assert that output and gradients are the expected ones."""
    for x, y in zip(found, expected(normalizer), strict=True):
        np.testing.assert_allclose(np.asarray(x), y, rtol=rtol, atol=atol)
