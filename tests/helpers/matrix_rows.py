"""The rows of the matrix of scores: `scores`, `log_weights`, `log_sum_exp`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from anyscore import log_sum_exp, log_weights, scores
from helpers import oracle, plain
from helpers.budget import assert_within_budget
from helpers.by_pair import by_pair
from helpers.cases import OPTIONS, SCORES, SHAPES, applicable, case
from helpers.table_rows import Row, keep
from helpers.table_shapes import Shape

MATRIX_ROWS = sorted(
    {(score, "heads", mask) for score in SCORES for mask in ("none", "four")}
    | {(score, "grouped_6_2", "boolean_full") for score in ("trilinear", "gaussian_each", "gatv2")}
    | {(score, shape, mask) for score in ("dot", "additive") for shape in SHAPES
       for mask in ("none", "lengths_full")}
    | {(score, "heads", "lengths_full") for score in OPTIONS}
)  # fmt: skip


def _without_value(shape: Shape) -> bool:
    """Return whether queries and keys alone have the leading dimensions of the shape."""
    return Shape(shape.query, shape.key, shape.key).lead == shape.lead


MATRIX_ROWS = [
    row for row in MATRIX_ROWS if applicable(*row[1:]) and _without_value(SHAPES[row[1]])
]
SLOPES = [row for row in MATRIX_ROWS if row[1] in ("heads", "grouped_6_2") and row[2] != "none"]
"""Rows with tested gradients."""

each_matrix_row = by_pair("row", MATRIX_ROWS, ids="-".join)
each_matrix_slope = by_pair("row", SLOPES, ids="-".join)


@cache
def exact_scores(row: Row) -> np.ndarray:
    c = case(*row)
    built = c.score.build(c.parameters, np.asarray)
    return oracle.scores(c.query, c.key, built, **c.masking(np.asarray))


def check_matrix(row: Row, dtype: str, to: Any, masks: Any, numbers: Any, **options: Any) -> None:
    """Assert that the three functions agree with the oracle.

    to, masks: turn numbers and masks into tensors. numbers: turns a tensor into an array.
    """
    c = case(*row)
    call = {"score": c.score.build(c.parameters, to), **c.masking(masks), **options}
    s, kept = exact_scores(row), keep(*row[1:])
    with np.errstate(all="ignore"):
        lse = np.empty(s.shape[:-1])
        for n in np.ndindex(*lse.shape):
            _, lse[n] = oracle.softmax(s[n][kept[n]].tolist())
        exact = {"scores": s, "log_weights": np.where(kept, s - lse[..., None], -np.inf)}
        exact["log_sum_exp"] = lse
        same = _plainly(row, dtype)
    for function in (scores, log_weights, log_sum_exp):
        name = function.__name__
        found = numbers(function(to(c.query), to(c.key), **call))
        assert_within_budget(found, exact[name], same[name], f"{name} of {row}", dtype)


def _plainly(row: Row, dtype: str) -> dict[str, np.ndarray]:
    """Return the three matrices by the formula in NumPy, in a dtype."""
    c = case(*row)
    given = [np.asarray(x, dtype) for x in (c.query, c.key)]
    score = c.score.build(c.parameters, lambda x: np.asarray(x, dtype))
    s, _ = plain.matrix(np, *given, given[1], score)
    s = np.where(keep(*row[1:]), s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    lse = (top + np.log(np.exp(s - top).sum(-1, keepdims=True)))[..., 0]
    return {"scores": s, "log_weights": s - lse[..., None], "log_sum_exp": lse}


@cache
def projection(row: Row) -> np.ndarray:
    """Return a random weight for each entry of the matrix, 0 where masked."""
    kept = keep(*row[1:])
    return np.where(kept, np.random.default_rng(3).standard_normal(kept.shape), 0.0)
