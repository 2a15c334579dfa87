"""Rows of scores that lie far from 0, as a mask that adds −1e9 makes them.

Scores are taken as they are, for float32 has none between −1e9 and −1e9 + 64. Whatever is made of
them is as exact as of scores around 0: within a few roundings of each weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.budget import EPS

OFFSETS = 0.0, -1e9, 1e4, 1e8, -1e8, 4e8, -np.inf
"""What is added to the scores of a query; −∞ stands for the least finite number of the dtype."""
ROUNDINGS = 4
"""Of a weight, beside those of its exponent."""


def bias(queries: int, keys: int, dtype: str) -> np.ndarray:
    """A bias (T_q, T_k) of one number a row, `OFFSETS` in turn."""
    rows = np.resize(np.array(OFFSETS), queries)
    rows[np.isinf(rows)] = np.finfo(dtype).min
    return np.repeat(rows[:, None], keys, 1).astype(dtype)


def check(scores: np.ndarray, value: np.ndarray, upstream: np.ndarray, **found: Any) -> None:
    """Hold output, weights, log_weights, lse, d_value and d_bias, those that came, to the scores.

    scores (..., T_q, T_k), value (..., T_k, d_v) and upstream (..., T_q, d_v), the gradient of the
    output, in the dtype of sums and with all leading dimensions; d_bias is of a bias that has them.
    """
    eps = EPS[str(scores.dtype)]
    s, v, d = (x.astype(np.longdouble) for x in (scores, value, upstream))
    x = s - s.max(-1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(-1, keepdims=True))
    p, roundings = np.exp(log_p), ROUNDINGS + np.abs(log_p)
    band = eps * p * roundings
    turned = d @ v.swapaxes(-1, -2)
    total = (p * turned).sum(-1, keepdims=True)
    sizes = np.abs(d) @ np.abs(v).swapaxes(-1, -2)
    of_total = (p * sizes).sum(-1, keepdims=True)
    n = 4 + s.shape[-1] ** 0.5  # roundings of a sum of so many
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
    """Query, key, value, bias and the gradient of an output, float32, of two heads."""
    rng, rows = np.random.default_rng(0), len(OFFSETS)
    shapes = {"query": (2, rows, 4), "key": (2, keys, 4), "value": (2, keys, 3)}
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    made |= {"bias": np.stack([bias(rows, keys, "float32")] * 2)}
    made |= {"upstream": rng.standard_normal((2, rows, 3))}
    return {name: x.astype(np.float32) for name, x in made.items()}
