"""The rows of the parity table, and the numbers of each, rounded to a dtype and held in float64.

All scores × all masks for heads; all shapes, and all masks where heads are grouped or broadcast,
for a product and for a sum; sums of 4,096 terms, for many queries and for one. What nobody may
attend, by a mask, holds NaN: keys, values, and the queries that attend nothing.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import oracle
from cases import MASKS, OPTIONS, SHAPES, WIDE, Lead, applicable, case
from cases import SCORES as CASES
from table_rows import keep

Row = tuple[str, str, str]
"""Score, shape and mask, by their names."""
Arrays = dict[str, np.ndarray]

NOT_YET = ("euclidean", "euclidean_each", "student_t", "lorentz")
"""Scores that the page lacks: it takes hours to make, and was made before them."""
SCORES = [score for score in CASES if score not in NOT_YET]
BOTH = ("scaled_dot", "additive")
"""The product and the sum that all shapes are tried with."""
ROWS: list[Row] = [
    *((score, "heads", mask) for score in SCORES for mask in MASKS),
    *((s, shape, m) for s in BOTH for shape in ("grouped_6_2", "broadcast") for m in MASKS),
    *((s, shape, m) for s in BOTH for shape in SHAPES for m in ("none", "lengths_full", "four")),
    *((score, shape, "four") for score in OPTIONS for shape in ("broadcast", "grouped_6_2")),
    *((score, shape, "four") for score in WIDE for shape in ("square", "one_query")),
]
ROWS = [row for row in dict.fromkeys(ROWS) if applicable(*row[1:])]
HALVES = ("float16", "bfloat16")


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """x as numbers of the dtype, in float64. All are float32 at first: float64 has the same."""
    x = np.asarray(x, np.float32)
    if dtype == "float16":
        x = x.astype(np.float16)
    elif dtype == "bfloat16":  # to nearest, ties to even; NumPy itself has none
        bits = x.view(np.uint32)
        x = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return x.astype(np.float64)


def clean(row: Row, dtype: str) -> Arrays:
    """Query, key, value and the parameters by name; 0 where nobody attends."""
    c = case(*row)
    found = {"query": c.query, "key": c.key, "value": c.value}
    found |= {name: x for name, x in c.parameters.items() if isinstance(x, np.ndarray)}
    return {name: _with(0.0, row, name, rounded(x, dtype)) for name, x in found.items()}


def padded(row: Row, dtype: str) -> Arrays:
    """The same with NaN where nobody attends."""
    return {name: _with(np.nan, row, name, x) for name, x in clean(row, dtype).items()}


def has_padding(row: Row) -> bool:
    return any(np.isnan(x).any() for x in padded(row, "float32").values())


def has_empty_rows(row: Row) -> bool:
    return bool((~keep(*row[1:]).any(axis=-1)).any())


def _with(fill: float, row: Row, name: str, x: np.ndarray) -> np.ndarray:
    if row[2] == "none" or name not in ("query", "key", "value"):
        return x
    attended = _attended(*row[1:])[name]
    return np.where(attended[..., None], x, fill)


@cache
def _attended(shape: str, mask: str) -> Arrays:
    """Which queries attend anything, and which keys and values anybody attends: (..., T)."""
    s, kept = SHAPES[shape], keep(shape, mask)

    def any_of(lead: Lead, tokens: int, axis: int) -> np.ndarray:
        found = np.zeros((*lead, tokens), bool)
        for n in np.ndindex(*s.lead):
            found[oracle.place(lead, n, s.lead)] |= kept[n].any(axis=axis)
        return found

    return {
        "query": any_of(s.query, s.queries, 1),
        "key": any_of(s.key, s.keys, 0),
        "value": any_of(s.value, s.keys, 0),
    }


@cache
def upstream(row: Row) -> tuple[np.ndarray, np.ndarray]:
    """What output and log-sum-exp are weighted by: numbers that every dtype has."""
    c, rng = case(*row), np.random.default_rng(3)
    lead = (*c.shape.lead, c.shape.queries)
    d_output = rounded(rng.standard_normal((*lead, c.value.shape[-1])), "bfloat16")
    return rounded(d_output, "float16"), rounded(rng.standard_normal(lead), "float16")
