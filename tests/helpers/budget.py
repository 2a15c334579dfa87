"""Helpers assert that results are within a stated budget.

The budget is twice the error of the same formula in the framework's plain operations, plus `BAND`
roundings of the largest entry. Errors are the largest ones of all entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from helpers import oracle

BAND = 16
"""Roundings that a result may be off even if the plain formula is exact."""
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def dtype_of(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def assert_near(
    actual: Any, exact: np.ndarray, allowance: float, what: str = "result", dtype: str | None = None
) -> None:
    """Assert that `actual` has the shape, NaN and ±∞ of `exact`, and is within `allowance`
    elsewhere.

    allowance: absolute error. dtype: expected dtype of `actual`, or None.
    """
    assert dtype in (None, dtype_of(actual)), f"{what} is {dtype_of(actual)}, expected {dtype}"
    x = oracle.numbers(actual)
    assert x.shape == exact.shape, f"{what} has shape {x.shape}, expected {exact.shape}"
    finite = np.isfinite(exact)
    same = np.array_equal(x[~finite], exact[~finite], equal_nan=True)
    assert same, f"{what} is {x[~finite]} where {exact[~finite]} is expected"
    assert np.isfinite(x[finite]).all(), f"{what} is not finite where it should be: {x}"
    worst = np.abs(x[finite] - exact[finite]).max(initial=0.0)
    assert worst <= allowance, f"{what} is off by {worst:.3g}, allowed are {allowance:.3g}"


def size(exact: np.ndarray) -> float:
    return float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))


def error(actual: Any, exact: np.ndarray) -> float:
    """Return the largest error of finite entries; NaN in `actual` counts as no error."""
    x, finite = oracle.numbers(actual), np.isfinite(exact)
    x = np.broadcast_to(x, exact.shape)
    differences = np.abs(x[finite] - exact[finite])
    return float(differences[np.isfinite(differences)].max(initial=0.0))


def assert_within_budget(
    actual: Any,
    exact: np.ndarray,
    plain: Any,
    what: str = "result",
    dtype: str | None = None,
    band: float | None = None,
) -> None:
    """Assert that `actual` is within the budget: twice the error of `plain`, plus the band.

    band: in units of eps; None = BAND times the largest entry.
    """
    kind = dtype or dtype_of(actual)
    allowance = 2 * error(plain, exact)
    allowance += EPS[kind] * (BAND * size(exact) if band is None else band)
    assert_near(actual, exact, allowance, what, kind)


def assert_gradients_within_budget(
    actual: dict[str, Any],
    exact: dict[str, np.ndarray],
    plain: dict[str, Any],
    terms: Callable[[], dict[str, float]],
    bands: dict[str, float] | None = None,
) -> None:
    """Assert that gradients are within the budget; a sum that cancels adds the band of its terms.

    terms: returns the roundings of the terms of each gradient; called only if needed.
    """
    for name, x in actual.items():
        what, band = f"gradient of {name}", (bands or {}).get(name)
        try:
            assert_within_budget(x, exact[name], plain[name], what, band=band)
        except AssertionError:
            largest = terms().get(name)
            if largest is None:
                raise
            band = (BAND * size(exact[name]) if band is None else band) + largest
            assert_within_budget(x, exact[name], plain[name], what, band=band)
