"""The rows of the parity table, and the numbers of each, rounded to a dtype and held in float64.

All scores × all masks for heads; all shapes, and all masks where heads are grouped or broadcast,
for a product and for a sum; sums of 4,096 terms, for many queries and for one; and every extra for
a product, a sum and a distance. What nobody may attend, by a mask, holds NaN: keys, values, the
entries of a bias, and the queries that attend nothing.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from helpers import oracle
from helpers.cases import MASKS, OPTIONS, SCORES, SHAPES, WIDE, Case, Lead, applicable, case
from helpers.table_rows import keep
from parity.extras import EXTRAS, KINDS

Row = tuple[str, str, str, str]
"""Score, shape, mask and extra, by their names."""
Arrays = dict[str, np.ndarray]

BOTH = ("scaled_dot", "additive")
"""The product and the sum that all shapes are tried with."""
TEXTBOOK = [
    *((score, "heads", mask) for score in SCORES for mask in MASKS),
    *((s, shape, m) for s in BOTH for shape in ("grouped_6_2", "broadcast") for m in MASKS),
    *((s, shape, m) for s in BOTH for shape in SHAPES for m in ("none", "lengths_full", "four")),
    *((score, shape, "four") for score in OPTIONS for shape in ("broadcast", "grouped_6_2")),
    *((score, shape, "four") for score in WIDE for shape in ("square", "one_query")),
]
OF_EXTRAS = [
    *(("heads", mask) for mask in ("none", "lengths", "lengths_full", "four")),
    *(("grouped_6_2", mask) for mask in ("none", "lengths", "four")),
]
"""The shapes and masks that extras are tried with: padding and queries without keys among them."""
OF_EDGES = [
    *(("heads", mask) for mask in ("none", "boolean", "boolean_queries", "sequences")),
    ("grouped_6_2", "sequences"),
]
"""The shapes and masks that edges are tried with: masks that are the same for all problems."""
OUTER = "euclidean"
"""The score that ends in a function of its own; around others a bias meets a cap."""
UNROUNDED = "additive_projected"
"""The sum for sparsemax, whose gradients jump where a score meets the threshold: half precision
rounds no part of it, so that in these rows nothing is near enough to be on the wrong side."""


def _takes(score: str, extra: str) -> bool:
    if extra == "sparsemax":
        return score != "additive"
    if score == OUTER:
        return not extra.startswith("capped")
    return score != UNROUNDED and extra not in ("bias", "bias_after")


ROWS: list[Row] = [
    *((*row, "") for row in dict.fromkeys(TEXTBOOK) if applicable(*row[1:])),
    *(
        (score, *at, extra)
        for extra in EXTRAS
        for score in (*BOTH, UNROUNDED, OUTER)
        for at in (OF_EDGES if EXTRAS[extra].edges else OF_EXTRAS)
        if extra and _takes(score, extra)
    ),
]
HALVES = ("float16", "bfloat16")


def of(row: Row) -> Case:
    """The textbook call of a row."""
    return case(*row[:3])


def kept(row: Row) -> np.ndarray:
    """Which query attends which key."""
    return keep(*row[1:3])


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
    """Query, key, value, the parameters and the tensors of the extra; 0 where nobody attends."""
    return {
        name: np.where(attended(row, name), rounded(x, dtype), 0.0)
        for name, x in _drawn(row).items()
    }


def padded(row: Row, dtype: str) -> Arrays:
    """The same with NaN where nobody attends."""
    found = clean(row, dtype)
    return {name: np.where(attended(row, name), x, np.nan) for name, x in found.items()}


def has_padding(row: Row) -> bool:
    return any(np.isnan(x).any() for x in padded(row, "float32").values())


def has_empty_rows(row: Row) -> bool:
    return bool((~kept(row).any(axis=-1)).any())


@cache
def _drawn(row: Row) -> Arrays:
    c, extra, rng = of(row), EXTRAS[row[3]], np.random.default_rng(5)
    found = {name: getattr(c, name) for name in extra.inputs()}
    found |= {name: x for name, x in c.parameters.items() if isinstance(x, np.ndarray)}
    return found | {name: KINDS[kind].draw(rng, c.shape) for name, kind in extra.tensors.items()}


@cache
def attended(row: Row, name: str) -> np.ndarray:
    """Which entries of an input somebody attends; broadcasts to it. Of parameters, all."""
    s, every = SHAPES[row[1]], kept(row)
    kind = EXTRAS[row[3]].tensors.get(name)
    if kind is not None and KINDS[kind].pairs:
        shape = _drawn(row)[name].shape
        return every.any(axis=tuple(range(every.ndim - len(shape))))

    def any_of(lead: Lead, tokens: int, axis: int) -> np.ndarray:
        found = np.zeros((*lead, tokens, 1), bool)
        for n in np.ndindex(*s.lead):
            found[oracle.place(lead, n, s.lead)] |= every[n].any(axis=axis)[:, None]
        return found

    if row[2] == "none" or name not in ("query", "key", "value"):
        return np.array(True)
    return any_of(getattr(s, name), *((s.queries, 1) if name == "query" else (s.keys, 0)))


@cache
def upstream(row: Row) -> Arrays:
    """Draw the upstream gradient of each result of a loss: numbers that every dtype has."""
    c, rng = of(row), np.random.default_rng(3)
    lead = (*c.shape.lead, c.shape.queries)
    last = {"output": c.value.shape[-1:], "lse": (), "weights": (c.shape.keys,)}
    found = {
        name: rng.standard_normal((*lead, *last.get(name, last["weights"])))
        for name in ("output", "lse", "weights", "scores", "log_weights")
    }
    return {
        name: rounded(rounded(found[name], "bfloat16"), "float16") for name in EXTRAS[row[3]].losses
    }
