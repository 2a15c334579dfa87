"""The rows of the table, every score × shape × mask, and one row held against the oracle.

The full product of three tables would say little more than its faces: all scores × all shapes with
and without a mask, all scores × all masks, and all masks × all shapes for a product and for a sum.
A row in every dtype, by every implementation, with and without gradients, is in docs/parity.md
(`make parity`). Here the rows are dealt out among such modes, see `dealt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from anyscore import attention
from helpers import oracle, plain
from helpers.budget import assert_within_budget
from helpers.cases import MASKS, OPTIONS, SCORES, SHAPES, Case, applicable, case

ROWS = sorted(
    {(score, shape, mask) for score in SCORES for shape in SHAPES for mask in ("none", "four")}
    | {(score, "heads", mask) for score in SCORES for mask in MASKS}
    | {(s, shape, mask) for s in ("scaled_dot", "additive") for shape in SHAPES for mask in MASKS}
    | {(s, shape, mask) for s in OPTIONS for shape in SHAPES for mask in ("none", "four")}
)
ROWS = [row for row in ROWS if applicable(*row[1:])]

Row = tuple[str, str, str]


def dealt(modes: Sequence[str], rows: Iterable[Row] = ROWS) -> dict[str, list[Row]]:
    """Deal out rows among modes, such as dtypes and implementations, so that pairs are covered.

    Each row is in some mode: pairs of score, shape and mask are those of the rows. In each mode is
    each shape, and each score and each mask with leading axes of each rank; a score whose
    parameters are the batch's or the heads' own, with each shape.
    """
    rows = list(rows)
    hands: dict[str, list[Row]] = {mode: [] for mode in modes}
    seen: set[Any] = set()

    def new(row: Row, mode: str) -> set[Any]:
        score, shape, mask = row
        rank = len(SHAPES[shape].lead)
        lead = shape if (SCORES | OPTIONS)[score].each else rank  # that of the score's parameters
        return {(mode, shape), (mode, score, lead), (mode, mask, rank)} - seen

    def deal(row: Row, mode: str) -> None:
        seen.update(new(row, mode))
        hands[mode].append(row)

    for row in rows:
        deal(row, max(modes, key=lambda mode: (len(new(row, mode)), -len(hands[mode]))))
    for mode in modes:
        for row in rows:
            if new(row, mode):
                deal(row, mode)
    return hands


def each_hand(hands: dict[str, list[Row]]) -> pytest.MarkDecorator:
    """A test for each mode and score, of all rows that the mode was dealt of the score."""
    pairs = sorted({(mode, row[0]) for mode, rows in hands.items() for row in rows})
    return pytest.mark.parametrize(("mode", "score"), pairs, ids=["-".join(x) for x in pairs])


@cache
def exact(score: str, shape: str, mask: str) -> oracle.Result:
    c = case(score, shape, mask)
    built = c.score.build(c.parameters, np.asarray)
    return oracle.attend(c.query, c.key, c.value, built, **c.masking(np.asarray))


@cache
def keep(shape: str, mask: str) -> np.ndarray:
    c = case("dot", shape, mask)
    masking, sizes = c.masking(np.asarray), (c.shape.lead, c.shape.queries, c.shape.keys)
    lengths = oracle.lengths(masking.get("valid_lens"))
    return oracle.allowed(masking.get("mask"), *sizes) & oracle.allowed(lengths, *sizes)


def check(xp: Any, to: Any, c: Case, row: tuple[str, str, str], **options: Any) -> None:
    """Output, weights and log-sum-exp; and the output alone, whose way may be another."""
    tensors, score = [to(x) for x in (c.query, c.key, c.value)], c.score.build(c.parameters, to)
    call = partial(attention, *tensors, score=score, **c.masking(xp.asarray), **options)
    with np.errstate(all="ignore"):
        same = plain.attend(xp, *tensors, score, xp.asarray(keep(*row[1:])))
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    found = call(return_weights=True, return_lse=True)
    for name, actual, expected, simple in zip(found._fields, found, exact(*row), same, strict=True):
        assert_within_budget(actual, expected, simple, f"{name} of {row}", dtype)
    assert_within_budget(call(), exact(*row).output, same[0], f"output alone of {row}", dtype)
