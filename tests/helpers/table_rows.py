"""The rows of the table of scores × shapes × masks, and the check of a row with the oracle.

The full product of the three tables tests little more than its faces. The faces are all scores ×
all shapes with and without a mask, all scores × all masks, and all masks × all shapes. The last
face is for a product and for a sum. `make parity` measures each row in every dtype and
implementation, with and without gradients. Here the rows are dealt among such modes, see `dealt`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

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
    """Deal rows among modes, such as dtypes and implementations, so that pairs are covered.

    Each row is in one mode or more, so pairs of score, shape and mask are those of the rows. Each
    mode has each shape, and each score and each mask with leading axes of each rank. A score with
    parameters of the batch or the heads meets each shape in each mode.
    """
    rows = list(rows)
    hands: dict[str, list[Row]] = {mode: [] for mode in modes}
    seen: set[Any] = set()

    def new(row: Row, mode: str) -> set[Any]:
        score, shape, mask = row
        rank = len(SHAPES[shape].lead)
        lead = shape if (SCORES | OPTIONS)[score].each else rank  # lead of the score's parameters
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


def modes_and_scores(hands: dict[str, list[Row]]) -> list[tuple[str, str]]:
    """Return each (mode, score) that some row has."""
    return sorted({(mode, row[0]) for mode, rows in hands.items() for row in rows})


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
    """Assert that all results of a row, and the output alone, are within the budget."""
    tensors, score = [to(x) for x in (c.query, c.key, c.value)], c.score.build(c.parameters, to)
    call = partial(attention, *tensors, score=score, **c.masking(xp.asarray), **options)
    with np.errstate(all="ignore"):
        same = plain.attend(xp, *tensors, score, xp.asarray(keep(*row[1:])))
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    found = call(return_weights=True, return_lse=True)
    for name, actual, expected, simple in zip(found._fields, found, exact(*row), same, strict=True):
        assert_within_budget(actual, expected, simple, f"{name} of {row}", dtype)
    assert_within_budget(call(), exact(*row).output, same[0], f"output alone of {row}", dtype)
