"""Which parameters of a test are weekly."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.by_pair import by_pair
from helpers.cases import OPTIONS, SCORES
from helpers.samples import NAMES
from helpers.table_scores import PAIRS, TABLE

pytestmark = pytest.mark.sample


def daily(arguments: Any, values: Any, **options: Any) -> list[Any]:
    """Return the values of the parameters that are not weekly."""
    _, parameters = by_pair(arguments, values, **options).args
    return [x.values for x in parameters if not any(m.name == "weekly" for m in x.marks)]


def test_one_score_of_each_pair_is_left() -> None:
    assert [x for (x,) in daily("name", TABLE)] == [x for x in TABLE if x in PAIRS]
    assert len(daily("name", NAMES)) == len(PAIRS) == len({row.pair for row in TABLE.values()})


def test_cases_are_those_of_their_score() -> None:
    left = [x for (x,) in daily("name", [*SCORES, *OPTIONS])]
    assert {"scaled_dot", "gaussian_each", "additive_scale", "callable"} <= set(left)
    assert not {"dot", "bilinear", "concat_scale", "student_t"} & set(left)


def test_rows_several_arguments_and_other_values() -> None:
    rows = [("additive", "heads", "none"), ("concat", "heads", "none")]
    assert daily("row", rows) == [(rows[0],)]
    assert daily(("row", "kind"), [(row, 1) for row in rows]) == [(rows[0], 1)]
    pairs = [("float32", "additive"), ("float32", "concat")]
    assert daily(("mode", "score"), pairs, score=1) == [pairs[0]]
    assert daily("name", ["heads", "no score"]) == [("heads",), ("no score",)]


def test_marks_and_names_of_parameters_stay() -> None:
    given = [pytest.param(x, marks=pytest.mark.slow, id="one") for x in ("additive", "dot")]
    _, parameters = by_pair("name", given, ids=str).args
    assert [[m.name for m in x.marks] for x in parameters] == [["slow"], ["slow", "weekly"]]
    assert [x.id for x in parameters] == ["one", "one"]
