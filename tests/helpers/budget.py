"""What is near enough: asserting helpers with a stated budget.

An error may be twice that of the same formula in the framework's plain ops (largest entry against
largest entry), plus a band of `BAND` roundings of the largest entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from helpers import oracle

BAND = 16
"""Roundings that a result may be off even where the plain formula happens to be exact."""
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def dtype_of(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def assert_near(
    actual: Any, exact: np.ndarray, allowance: float, what: str = "result", dtype: str | None = None
) -> None:
    """`actual` has the shape of `exact`, and is it: NaN and ±∞ in the same places, and the rest
    within `allowance` (absolute). dtype: what it must have.
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
    """The largest error of finite entries; NaN of `actual` among them counts as none."""
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
    """The contract's budget: twice the error of `plain`, and the rounding band.

    band: in units of eps, BAND times the largest entry unless given.
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
    """The same for gradients, whose sums may cancel: then the band is of their terms as well.

    terms: roundings that the terms of each bring along, computed only if they are needed.
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
