"""Scores × masks × shapes in MXNet agree with the oracle."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from anyscore import attention
from frameworks.mxnet.arrays import numbers, to
from helpers import plain
from helpers.budget import assert_within_budget
from helpers.by_pair import by_pair
from helpers.cases import SCORES, case
from helpers.table_rows import ROWS, dealt, exact, keep, modes_and_scores

pytestmark = pytest.mark.usefixtures("np_mode")


NOT_OURS = ("no_batch", "no_query", "no_key", "grouped_5d")
"""Shapes for which MXNet's own `@`, which a callable may use, reads memory beyond the arrays."""


def check(row: tuple[str, str, str], dtype: str, impl: str) -> None:
    """Assert the budget of output, weights and log-sum-exp, and of a call for the output alone."""
    c, mx_array = case(*row), partial(to, dtype=dtype)
    tensors = [mx_array(x) for x in (c.query, c.key, c.value)]
    score = c.score.build(c.parameters, mx_array)
    array = np.asarray if row[2] == "array_and_interval" else to  # MXNet lacks `array & mask`
    call = partial(attention, *tensors, score=score, **c.masking(array), impl=impl)
    simple = [np.asarray(x, dtype) for x in (c.query, c.key, c.value)]
    built = c.score.build(c.parameters, partial(np.asarray, dtype=dtype))
    with np.errstate(all="ignore"):
        same = plain.attend(np, *simple, built, keep(*row[1:]))
    found = call(return_weights=True, return_lse=True)
    for name, actual, expected, other in zip(found._fields, found, exact(*row), same, strict=True):
        assert_within_budget(numbers(actual), expected, other, f"{name} of {row}", dtype)
    assert_within_budget(numbers(call()), exact(*row).output, same[0], f"output of {row}", dtype)


FEW = ("none", "four", "lengths_full", "boolean_heads")
"""Masks for shapes other than `heads`."""
HANDS = dealt(
    ["float32 auto", "float32 reference"],
    [
        row
        for row in ROWS
        if (row[1] == "heads" or row[2] in FEW)
        and not (row[0] == "callable" and row[1] in NOT_OURS)
    ],
)
HANDS["float64 auto"] = [
    (x, "heads", y) for x in SCORES for y in ("none", "four", "lengths_floats")
]


@by_pair(("mode", "score"), modes_and_scores(HANDS), score=1)
def test_values(mode: str, score: str) -> None:
    for row in HANDS[mode]:
        if row[0] == score:
            check(row, *mode.split())
