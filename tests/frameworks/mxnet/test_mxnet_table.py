"""Scores × masks × shapes in MXNet against the oracle."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from arrays import numbers, to

import plain
from anyscore import attention
from budget import assert_within_budget
from cases import SCORES, case
from table_rows import each_row, exact, keep, masks_of

pytestmark = pytest.mark.usefixtures("np_mode")


NOT_OURS = ("no_batch", "no_query", "no_key", "grouped_5d")
"""Where `@` of MXNet itself reads what is not there, which the callable is free to use."""


def check(row: tuple[str, str, str], dtype: str, impl: str) -> None:
    """Output, weights and log-sum-exp; and the output alone, whose way may be another."""
    if row[0] == "callable" and row[1] in NOT_OURS:
        return
    c, mx_array = case(*row), partial(to, dtype=dtype)
    tensors = [mx_array(x) for x in (c.query, c.key, c.value)]
    score = c.score.build(c.parameters, mx_array)
    array = np.asarray if row[2] == "array_and_interval" else to  # no `array & mask` in MXNet
    call = partial(attention, *tensors, score=score, **c.masking(array), impl=impl)
    simple = [np.asarray(x, dtype) for x in (c.query, c.key, c.value)]
    built = c.score.build(c.parameters, partial(np.asarray, dtype=dtype))
    with np.errstate(all="ignore"):
        same = plain.attend(np, *simple, built, keep(*row[1:]))
    found = call(return_weights=True, return_lse=True)
    for name, actual, expected, other in zip(found._fields, found, exact(*row), same, strict=True):
        assert_within_budget(numbers(actual), expected, other, f"{name} of {row}", dtype)
    assert_within_budget(numbers(call()), exact(*row).output, same[0], f"output of {row}", dtype)


def few(score: str, shape: str) -> list[str]:
    """All masks of one shape, and some of the others."""
    chosen = ("none", "four", "lengths_full", "boolean_heads")
    return [mask for mask in masks_of(score, shape) if shape == "heads" or mask in chosen]


@each_row
def test_values(score: str, shape: str) -> None:
    for mask in few(score, shape):
        check((score, shape, mask), "float32", "auto")


@pytest.mark.parametrize("score", SCORES)
def test_values_in_float64(score: str) -> None:
    for mask in ("none", "four", "lengths_floats"):
        check((score, "heads", mask), "float64", "auto")


@each_row
def test_values_by_definition(score: str, shape: str) -> None:
    for mask in few(score, shape):
        check((score, shape, mask), "float32", "reference")
