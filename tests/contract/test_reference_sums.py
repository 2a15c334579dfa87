"""The definition in NumPy sums features as BLAS does, with a tensor as scale too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyscore import Gaussian, Laplace, attention

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_a_scale_that_is_a_tensor_costs_no_digits(kind: Any) -> None:
    """A score of 4,096 similar terms is within 8 roundings; a sum one by one has a hundred."""
    rng = np.random.default_rng(0)
    query, key = (rng.integers(-2, 3, (1, 1, 4096)).astype(np.float32) for _ in range(2))
    sigma = np.array([np.float32(12.7)])
    value = np.ones((1, 1, 1), np.float32)

    def lse(*xs: np.ndarray) -> float:
        score = kind(sigma=xs[3])
        found = attention(*xs[:3], score=score, impl="reference", return_lse=True)
        return float(found.lse.item())

    found, exact = (lse(*(x.astype(t) for x in (query, key, value, sigma))) for t in ("f4", "f8"))
    assert abs(found / exact - 1) < 8 * 2.0**-23
