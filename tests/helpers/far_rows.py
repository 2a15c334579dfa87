"""Rows of scores far from 0, as with a mask that adds −1e9.

The scores themselves are exact here, as float32 has no number between −1e9 and −1e9 + 64. Results
of such scores must be as exact as of scores around 0: within the roundings of an exponent, a sum
over keys and a quotient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.budget import EPS

OFFSETS = 0.0, -1e9, 1e4, 1e8, -1e8, 4e8, -np.inf
"""Numbers added to the scores of a query; −∞ means the least finite number of the dtype."""
ROUNDINGS = 4
"""Roundings of a weight, beside those of its exponent and of the sum over keys."""


def bias(queries: int, keys: int, dtype: str) -> np.ndarray:
    """Return a bias (T_q, T_k) with one number a row, the `OFFSETS` in turn."""
    rows = np.resize(np.array(OFFSETS), queries)
    rows[np.isinf(rows)] = np.finfo(dtype).min
    return np.repeat(rows[:, None], keys, 1).astype(dtype)


def check(scores: np.ndarray, value: np.ndarray, upstream: np.ndarray, **found: Any) -> None:
    """Assert that given output, weights, log_weights, lse, d_value and d_bias are the scores'.

    scores (..., T_q, T_k), value (..., T_k, d_v) and upstream (..., T_q, d_v), the gradient of the
    output, have the dtype of the sums and all leading dimensions. d_bias has all of them too.
    """
    eps = EPS[str(scores.dtype)]
    s, v, d = (x.astype(np.longdouble) for x in (scores, value, upstream))
    x = s - s.max(-1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    keys = s.shape[-1] ** 0.5  # roundings of a sum over the keys
    p, roundings = np.exp(log_p), ROUNDINGS + np.abs(log_p) + keys
    band = eps * p * roundings
    turned = d @ v.swapaxes(-1, -2)
    total = (p * turned).sum(-1, keepdims=True)
    sizes = np.abs(d) @ np.abs(v).swapaxes(-1, -2)
    of_total = (p * sizes).sum(-1, keepdims=True)
    n = 4 + keys
    exact = {
        "weights": (p, band),
        "log_weights": (log_p, eps * roundings),
        "lse": ((log_p * 0 + s - log_p)[..., 0], eps * (4 + 2 * np.abs(s).max(-1))),
        "output": (p @ v, band @ np.abs(v) + n * eps * (p @ np.abs(v))),
        "d_value": (
            p.swapaxes(-1, -2) @ d,
            band.swapaxes(-1, -2) @ np.abs(d) + n * eps * (p.swapaxes(-1, -2) @ np.abs(d)),
        ),
        "d_bias": (
            p * (turned - total),
            (band + n * eps * p) * (sizes + of_total) + p * (band * sizes).sum(-1, keepdims=True),
        ),
    }
    for name, actual in found.items():
        expected, allowed = exact[name]
        error = np.abs(np.asarray(actual).astype(np.longdouble) - expected)
        assert (error <= allowed).all(), f"{name}: {(error / allowed).max():.3g} times the budget"


def example(keys: int = 11) -> dict[str, np.ndarray]:
    """Return query, key, value, bias and upstream gradient of two heads, in float32."""
    rng, rows = np.random.default_rng(0), len(OFFSETS)
    shapes = {"query": (2, rows, 4), "key": (2, keys, 4), "value": (2, keys, 3)}
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    made |= {"bias": np.stack([bias(rows, keys, "float32")] * 2)}
    made |= {"upstream": rng.standard_normal((2, rows, 3))}
    return {name: x.astype(np.float32) for name, x in made.items()}
