"""Every rank has the outputs, log-sum-exp and gradients of one process, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers.ranks import Ranks
from helpers.ranks_calls import ONE_OUTER, OPTIONS, SCORES, compare

LAYOUTS = [
    "zigzag",
    "empty ranks",
    "contiguous",
    *(pytest.param(x, marks=pytest.mark.weekly) for x in ("uneven", "without tokens")),
]
ONE_OF_EACH_PAIR = ["additive", "gatv2", "laplace", "gaussian", "scaled_dot", "trilinear"]
BUDGET = 1e-12


def scores_for(option: str, scores: list[str]) -> list[str]:
    """Return the scores that take an option."""
    return [x for x in scores if "cap" not in option or x not in ONE_OUTER]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ring(group: Callable[[int], Ranks], layout: str, option: str) -> None:
    scores = scores_for(option, list(SCORES))
    for errors in group(3).run(compare, "ring", layout, scores, option, "auto"):
        assert max(errors.values()) <= BUDGET, errors


@pytest.mark.weekly
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("layout", "ranks"), [("zigzag", 1), ("zigzag", 2), ("uneven", 2), ("zigzag", 4), ("uneven", 4)]
)
def test_numbers_of_ranks(
    group: Callable[[int], Ranks], layout: str, option: str, ranks: int
) -> None:
    scores = scores_for(option, ONE_OF_EACH_PAIR)
    for errors in group(ranks).run(compare, "ring", layout, scores, option, "auto"):
        assert max(errors.values()) <= BUDGET, errors


@pytest.mark.parametrize("option", OPTIONS)
def test_reference(group: Callable[[int], Ranks], option: str) -> None:
    scores = scores_for(option, ONE_OF_EACH_PAIR)
    for errors in group(2).run(compare, "ring", "zigzag", scores, option, "reference"):
        assert max(errors.values()) <= BUDGET, errors


@pytest.mark.parametrize("option", [x for x in OPTIONS if x != "documents"])
@pytest.mark.parametrize("layout", ["zigzag", "empty ranks"])
@pytest.mark.parametrize("scheme", ["stay", "gather"])
def test_few_queries(group: Callable[[int], Ranks], scheme: str, layout: str, option: str) -> None:
    scores = scores_for(option, ONE_OF_EACH_PAIR)
    for errors in group(2).run(compare, scheme, layout, scores, option, "auto"):
        assert max(errors.values()) <= BUDGET, errors


@pytest.mark.parametrize("option", ["causal", "alibi"])
def test_fewer_heads_of_keys(group: Callable[[int], Ranks], option: str) -> None:
    args = "ring", "zigzag", ONE_OF_EACH_PAIR, option, "auto", "float64", 1
    for errors in group(3).run(compare, *args):
        assert max(errors.values()) <= BUDGET, errors
