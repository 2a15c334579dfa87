"""The rows of the parity table, and the numbers of each, rounded to a dtype and held in float64.

Heads have all scores × all masks. A product and a sum have all shapes, and all masks with grouped
and broadcast heads. Sums of 4,096 terms have rows with many queries and with one. A product, a sum
and a distance have every extra. Masked inputs are NaN: keys, values, entries of a bias, and queries
without keys.
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
"""The product and the sum that have all shapes."""
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
"""The shapes and masks of extras, with padding and with queries without keys."""
OF_EDGES = [
    *(("heads", mask) for mask in ("none", "boolean", "boolean_queries", "sequences")),
    ("grouped_6_2", "sequences"),
]
"""The shapes and masks of edges: each mask is the same for all problems."""
OUTER = "euclidean"
"""The score with an outer function has biases without a cap; other scores have a cap."""
UNROUNDED = "additive_projected"
"""The sum for sparsemax, whose gradients jump where a score meets the threshold. Half precision
rounds no part of this sum, so no score of these rows is near enough to cross the threshold."""


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
    """Return the textbook call of a row."""
    return case(*row[:3])


def kept(row: Row) -> np.ndarray:
    """Return True where a query attends a key."""
    return keep(*row[1:3])


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return x rounded to float32 and then to the dtype, in float64; float64 stays at float32."""
    x = np.asarray(x, np.float32)
    if dtype == "float16":
        x = x.astype(np.float16)
    elif dtype == "bfloat16":  # to nearest, ties to even; NumPy has no bfloat16
        bits = x.view(np.uint32)
        x = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return x.astype(np.float64)


def clean(row: Row, dtype: str) -> Arrays:
    """Return query, key, value, parameters and tensors of the extra; 0 where masked."""
    return {
        name: np.where(attended(row, name), rounded(x, dtype), 0.0)
        for name, x in _drawn(row).items()
    }


def padded(row: Row, dtype: str) -> Arrays:
    """Return the arrays of `clean` with NaN where masked."""
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
    """Return True for attended entries of an input, to broadcast; True for all of a parameter."""
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
    """Return the upstream gradient of each result of a loss; every dtype holds the numbers."""
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
