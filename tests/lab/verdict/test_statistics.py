"""Differences over seeds and items are right in hand-made tables and honest in simulations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from anyscore.lab.verdict.statistics import (
    Spread,
    holm,
    items_needed,
    pseudo_values,
    seeds_needed,
)

pytestmark = pytest.mark.sample

TABLES = arrays(
    np.float64, st.tuples(st.integers(2, 6), st.integers(2, 12)), elements=st.integers(-3, 3)
)


@given(TABLES)
def test_symmetries(x: np.ndarray) -> None:
    """The order of seeds, of items and of scores changes no statistic."""
    spread = Spread.of(x)
    for other in (Spread.of(x[::-1]), Spread.of(x[:, ::-1]), Spread.of(-x)):
        assert other.p == pytest.approx(spread.p, rel=1e-9, abs=1e-12)
        assert other.error == pytest.approx(spread.error, rel=1e-9)
        assert abs(other.mean) == pytest.approx(abs(spread.mean), abs=1e-12)


@given(TABLES, st.floats(0.5, 100))
def test_units(x: np.ndarray, scale: float) -> None:
    """Points and shares give the same statistics."""
    one, other = Spread.of(x), Spread.of(scale * x, scale)
    assert other.mean == pytest.approx(scale * one.mean)
    assert other.error == pytest.approx(scale * one.error)
    assert other.p == pytest.approx(one.p, rel=1e-9, abs=1e-12)


def test_one_number_for_each_seed_is_a_t_test() -> None:
    x = np.array([[1.2], [0.4], [2.2], [-0.3]])
    spread = Spread.of(x)
    expected = stats.ttest_1samp(x[:, 0], 0)
    assert spread.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert spread.mean - spread.margin(0.95) == pytest.approx(low)
    assert spread.mean + spread.margin(0.95) == pytest.approx(high)


def test_seeds_that_agree_leave_a_test_over_items() -> None:
    """The test has the items' degrees of freedom, and the interval of the items alone."""
    rng = np.random.default_rng(0)
    items = rng.normal(0.1, 1, 400)
    x = np.tile(items, (6, 1)) + 1e-9 * rng.normal(size=(6, 400))
    expected = stats.ttest_1samp(items, 0)
    assert Spread.of(x).p == pytest.approx(expected.pvalue, rel=0.02)


def test_items_that_agree_leave_a_test_over_seeds() -> None:
    seeds = np.array([0.3, 1.0, 0.2, 0.9, 0.7])
    x = np.tile(seeds[:, None], (1, 500))
    assert Spread.of(x).p == pytest.approx(stats.ttest_1samp(seeds, 0).pvalue)


def test_nothing_told_apart_is_not_certainty() -> None:
    """Equal answers give an interval as wide as two unseen items."""
    spread = Spread.of(np.zeros((5, 1000)))
    assert spread.p == 1
    assert 0.002 < spread.margin(0.95) < 0.006


def _tables(kind: str, shift: float, seeds: int, count: int, items: int = 300) -> list[Spread]:
    """Return differences of two scores; an answer is right with a probability of seed and item."""
    rng, found = np.random.default_rng([seeds, count]), []
    luck, own = {"seeds": (0.6, 0.0), "items": (0.02, 1.5), "both": (0.2, 1.5)}.get(kind, (0.1, 0))
    for _ in range(count):
        common, answers = rng.normal(0, 2, items), []
        for score in range(2):
            trained = 2 + shift * score + rng.normal(0, luck, (seeds, 1))
            if kind == "now and then":  # one training in five fails
                trained -= 3 * (rng.random((seeds, 1)) < 0.2)
            logit = trained + common + rng.normal(0, own, items)
            answers.append(rng.random((seeds, items)) < 1 / (1 + np.exp(-logit)))
        found.append(Spread.of(answers[1].astype(float) - answers[0]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seeds", "now and then", "items", "both"])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_equal_scores_are_seldom_called_different(kind: str, seeds: int) -> None:
    """At most 5 of 100 comparisons differ, within the chance of 600 comparisons."""
    wrong = sum(spread.p < 0.05 for spread in _tables(kind, 0.0, seeds, 600))
    assert wrong <= stats.binom.ppf(0.999, 600, 0.05)


@pytest.mark.parametrize("kind", ["seeds", "items"])
def test_intervals_hold_the_difference(kind: str) -> None:
    """Intervals hold the true difference, of very many seeds and items."""
    true = np.mean([s.mean for s in _tables(kind, 0.5, 10, 400, items=1000)])
    found = _tables(kind, 0.5, 5, 400)
    held = sum(abs(s.mean - true) <= s.margin(0.95) for s in found)
    assert held >= stats.binom.ppf(0.001, 400, 0.95)


def test_large_differences_are_found() -> None:
    found = _tables("seeds", 2.0, 5, 200)
    assert sum(s.p < 0.05 for s in found) > 180


def test_holm() -> None:
    """In the usual example, the k-th smallest p is multiplied by the number of tests left."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_pseudo_values_of_a_mean_are_its_items() -> None:
    rows = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    assert pseudo_values(rows, lambda s: s[..., 0] / s[..., 1]) == pytest.approx([1, 0, 1])


def test_pseudo_values_vary_as_the_measure_does() -> None:
    """The pseudo-values of a ratio have the spread of the ratio over many test sets."""
    rng = np.random.default_rng(0)

    def draw() -> np.ndarray:
        length = rng.integers(1, 20, 400).astype(float)
        return np.stack([rng.binomial(length.astype(int), 0.6), length], 1)

    def ratio(total: np.ndarray) -> np.ndarray:
        return np.asarray(total[..., 0] / total[..., 1])

    true = np.std([ratio(draw().sum(0)) for _ in range(2000)])
    guessed = np.mean([pseudo_values(draw(), ratio).std(ddof=1) / 20 for _ in range(20)])
    assert guessed == pytest.approx(true, rel=0.1)


def test_as_many_seeds_as_are_said_to_be_needed_do() -> None:
    """With the needed seeds of equal spread, p < 0.05; with one seed less, p is larger."""
    settled = asked = 0
    for first in _tables("seeds", 0.6, 4, 60):
        needed = seeds_needed(first, 0.95, 0.0)
        if first.p < 0.05 or needed is None or needed > 30:
            continue
        asked += 1
        settled += first.with_size(needed, first.items).p < 0.05
        assert first.with_size(needed - 1, first.items).p >= 0.05
    assert asked > 10
    assert settled == asked


def test_items_where_seeds_do_not_help() -> None:
    """If items differ and seeds do not, more seeds cannot settle a difference of few items."""
    rng = np.random.default_rng(1)
    x = np.tile(rng.normal(0.1, 1, 100), (5, 1)) + 0.01 * rng.normal(size=(5, 100))
    spread = Spread.of(x)
    assert spread.p > 0.05
    assert seeds_needed(spread, 0.95, 0.0) is None
    items = items_needed(spread, 0.95, 0.0)
    assert items is not None
    assert items > 200
