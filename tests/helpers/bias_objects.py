"""One bias object of each kind, and its entries by a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from anyscore import ALiBi, Relative
from anyscore.modifiers.biases import Bias
from helpers.samples import normal

H, T_Q, T_K = 4, 5, 7


def distance(i: int, j: int) -> int:
    """Return the distance of key j from query i, with queries at the end of the keys."""
    return j - (i + T_K - T_Q)


def clipped(table: np.ndarray) -> Callable[..., float]:
    half = table.shape[-1] // 2
    return lambda h, i, j: table[h, min(max(distance(i, j), -half), half) + half]


def t5(table: np.ndarray, bidirectional: bool, end: int) -> Callable[..., float]:
    """Return T5's bias, with buckets in floating point as in the paper's code, far from ties."""

    def bucket(away: int) -> int:
        count, first = table.shape[-1], 0
        if bidirectional:
            count //= 2
            first, away = (count, away) if away > 0 else (0, -away)
        else:
            away = max(-away, 0)
        near = count // 2
        if away < near:
            return first + away
        far = near + int(math.log(away / near) / math.log(end / near) * (count - near) + 1e-9)
        return first + min(far, count - 1)

    return lambda h, i, j: table[h, bucket(distance(i, j))]


def objects() -> dict[str, tuple[np.ndarray, Callable[[Any], Bias], Callable[..., float]]]:
    """Return by kind (learned numbers, function from numbers to the bias, formula of an entry)."""
    few, many, slopes = normal(H, 5), normal(H, 8), np.abs(normal(H))
    return {
        "clipped": (few, lambda x: Relative(x, align="end"), clipped(few)),
        "t5": (
            many,
            lambda x: Relative(x, "t5", max_distance=6, align="end"),
            t5(many, True, 6),
        ),
        "t5 one way": (
            many,
            lambda x: Relative(x, "t5", False, max_distance=6, offset=T_K - T_Q),
            t5(many, False, 6),
        ),
        "alibi": (
            slopes,
            lambda x: ALiBi(x, align="end"),
            lambda h, i, j: -slopes[h] * abs(distance(i, j)),
        ),
    }
