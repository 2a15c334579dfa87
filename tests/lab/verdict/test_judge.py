"""The verdict of a comparison, in data and in words."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from anyscore.lab.finished import Finished
from anyscore.lab.trials import Trial
from anyscore.lab.verdict import judge as module
from anyscore.lab.verdict import text
from anyscore.lab.verdict.judge import Measure, choose, judge
from lab.made_trials import finished

pytestmark = pytest.mark.sample

EXACT = Measure("exact_match", "exact match")
CHRF = Measure("chrf", "chrF", scale=1.0)


@pytest.fixture(autouse=True)
def _share_of_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the statistics of made-up trials be right answers and the number of answers."""
    share = {"chrf": lambda sums: 100 * sums[..., 0] / sums[..., 1]}
    monkeypatch.setattr(module, "SCORE_OF_SUMS", share)


def trials(*scores: str, seeds: int = 5, **how: float) -> list:
    return [finished(Trial(s, n), **how) for s, n in product(scores, range(seeds))]


def test_a_large_difference_is_said() -> None:
    found = judge(trials("worse", "better"), EXACT)
    (one,) = found["differences"]
    assert (one["better"], one["worse"], one["verdict"]) == ("better", "worse", "differs")
    assert one["low"] > 0
    assert one["sentence"].startswith("better beats worse by ")
    assert "5 seeds × 400 items; Holm p" in one["sentence"]
    assert found["recommendation"]["score"] == "better"
    assert found["sentences"][0].startswith("better beats every other score. It has the highest")


@pytest.mark.slow
def test_twins_are_equal_where_there_are_many_items() -> None:
    found = judge(trials("even", "twin", seeds=8, items=20_000, luck=0.0), EXACT)
    (one,) = found["differences"]
    assert one["verdict"] == "equal"
    assert one["bound"] < 1
    assert re.match(r"\w+ and \w+ differ by at most 0\.\d points of exact", one["sentence"])
    assert found["recommendation"]["score"] in ("even", "twin")
    assert "equal" in found["recommendation"]["sentence"]


def test_twins_are_undecided_where_there_are_few() -> None:
    found = judge(trials("even", "twin", seeds=3, items=100), EXACT)
    (one,) = found["differences"]
    assert one["verdict"] == "undecided"
    assert "would decide it" in one["sentence"]
    assert found["recommendation"]["score"] is None
    for sentence in (found["sentences"][0], found["recommendation"]["sentence"]):
        assert re.search(r"undecided which of \w+ and \w+ is better\.", sentence)


def test_one_seed_settles_nothing() -> None:
    found = judge(trials("worse", "better", seeds=1), EXACT)
    (one,) = found["differences"]
    assert (one["difference"], one["p"], one["holm"]) == (None, None, None)
    assert found["recommendation"]["score"] is None
    assert "better against worse is undecided" in one["sentence"]
    assert any("may be due to that seed alone" in sentence for sentence in found["sentences"])


def test_nothing_and_one_score() -> None:
    assert judge([], EXACT)["sentences"] == ["No trial has finished, so there is no verdict."]
    found = judge(trials("even"), EXACT)
    assert found["differences"] == []
    assert found["sentences"][0].startswith("even reached ")


def test_a_trial_that_is_missing_takes_its_seed_from_the_pair() -> None:
    some = [x for x in trials("worse", "better", "even") if x.trial != Trial("even", 2)]
    found = judge(some, EXACT)
    seeds = {frozenset((d["better"], d["worse"])): d["seeds"] for d in found["differences"]}
    assert seeds[frozenset(("worse", "better"))] == 5
    assert seeds[frozenset(("worse", "even"))] == 4


def test_better_is_better_over_the_seeds_of_both() -> None:
    """A difference over shared seeds is not negative, even if means over all seeds disagree."""
    both = [*trials("even", "twin", seeds=3), *trials("better", seeds=1)]
    both += [finished(Trial("worse", n)) for n in range(2, 5)]
    for one in judge(both, EXACT)["differences"]:
        assert one["difference"] is None or one["difference"] >= 0


def test_holm_grows_with_the_pairs() -> None:
    few = judge(trials("worse", "better"), EXACT)["differences"][0]
    many = judge(trials("worse", "better", "even", "twin", "third"), EXACT)["differences"]
    same = next(d for d in many if {d["better"], d["worse"]} == {"worse", "better"})
    assert same["p"] == pytest.approx(few["p"])
    assert few["holm"] == few["p"]
    assert same["holm"] > same["p"]


def test_exact_match_is_left_where_most_are_wrong() -> None:
    good, bad = trials("better", seeds=2), trials("worse", seeds=2)
    for one in bad:
        one.measures["exact_match"][:] = 0.2
    assert choose([EXACT, CHRF], [*good, *bad]) is EXACT
    assert choose([EXACT, CHRF], bad) is CHRF
    assert choose([EXACT], bad) is EXACT
    found = judge(trials("worse", "better"), CHRF)
    assert found["differences"][0]["difference"] == pytest.approx(
        judge(trials("worse", "better"), EXACT)["differences"][0]["difference"]
    )


def test_warnings_stand_in_the_way_of_a_recommendation() -> None:
    for warning, reason in (
        ("Nothing was learnt: …", "the models learnt nothing. Rerun with more pairs, "),
        ("Training ended too early: …", "training had not converged. Rerun with more epochs."),
    ):
        found = judge(trials("worse", "better"), EXACT, warnings=[warning])
        assert found["recommendation"]["score"] is None
        assert warning in found["sentences"]
        assert found["sentences"][-1].startswith(f"No recommendation: {reason}")


@pytest.mark.slow
def test_costs_decide_between_equals_where_they_part() -> None:
    def cost(median: float) -> dict[str, float]:
        return {"median": median, "low": 0.9 * median, "high": 1.1 * median}

    equal = trials("even", "twin", seeds=8, items=20_000, luck=0.0)
    found = judge(equal, EXACT, costs={"even": cost(9.0), "twin": cost(5.0)})
    assert found["recommendation"]["score"] == "twin"
    assert any("fastest with twin (5 ms" in sentence for sentence in found["sentences"])
    found = judge(
        equal, EXACT, costs={"even": cost(5.1), "twin": cost(5.0)}, sizes={"even": 3, "twin": 9}
    )
    assert found["recommendation"]["score"] == "even"
    assert any("about the same time" in sentence for sentence in found["sentences"])


def numbers(score: str, *values: float) -> list:
    return [
        Finished(Trial(score, seed), {"r": np.array([x])}, {}, None, [], {})
        for seed, x in enumerate(values)
    ]


SHARE = Measure("r", "accuracy", bounded=True)


def test_one_number_settles_nothing_where_its_spread_is_unknown() -> None:
    for values in ((0.812, 0.812), (0.812, 0.812, 0.812), (0.9, 0.95)):
        found = judge([*numbers("a", *values), *numbers("b", *[x - 0.3 for x in values])], SHARE)
        (one,) = found["differences"]
        assert (one["verdict"], one["difference"], one["p"]) == ("undecided", None, None)
        words = "needs 3 seeds or more" if len(values) == 2 else "every seed gave the same differ"
        assert words in one["sentence"]
        assert one["sentence"] in found["sentences"]
        assert found["recommendation"]["score"] is None
    alike = judge([*numbers("a", 0.8, 0.8), *numbers("b", 0.7, 0.71)], SHARE)["standings"]
    assert (alike[0]["low"], alike[0]["high"]) == (None, None)
    far = [*numbers("a", 0.91, 0.93, 0.92), *numbers("b", 0.51, 0.52, 0.5)]
    assert judge(far, SHARE)["differences"][0]["verdict"] == "differs"


def test_a_margin_has_the_unit_of_the_measure() -> None:
    """Errors of .1 and .17, which are in [−4, 0], were equal within ±1 of 4 points."""
    draw = np.random.default_rng(0)
    trials = [
        Finished(Trial(score, seed), {"e": -np.square(draw.normal(0, s, 1000))}, {}, None, [], {})
        for score, s in (("good", 0.316), ("bad", 0.412))
        for seed in range(8)
    ]
    errors = Measure("e", "negative squared error", 1.0, span=4.0, matters=0.04)
    assert judge(trials, errors)["differences"][0]["verdict"] != "equal"
    never = Measure("e", "negative squared error", 1.0, span=4.0, matters=None)
    twins = [
        Finished(replace(x.trial, score=score), x.measures, {}, None, [], {})
        for x in trials[:8]
        for score in ("one", "other")
    ]
    (one,) = judge(twins, errors)["differences"]
    assert one["verdict"] == "equal"
    assert "differ by at most 0.014 points" in one["sentence"]
    assert judge(twins, never)["differences"][0]["verdict"] == "undecided"


@pytest.mark.parametrize("beyond", [101.0, -0.5])
def test_results_that_contradict_the_span_are_never_equal(beyond: float) -> None:
    same = np.array([1.0, 0.0] * 500)
    odd = np.where(np.arange(1000) == 7, beyond, same)
    trials = [
        Finished(Trial(score, seed), {"r": odd}, {}, None, [], {})
        for score in "ab"
        for seed in range(8)
    ]
    found = judge(trials, SHARE)
    assert found["differences"][0]["verdict"] == "undecided"
    assert any("do not fit between 0 and 1" in sentence for sentence in found["sentences"])
    for trial in trials:
        trial.measures["r"] = same
    found = judge(trials, SHARE)
    assert found["differences"][0]["verdict"] == "equal"
    assert "Every seed gave the same results" in found["sentences"][-2]


def test_a_bounded_difference_stays_within_the_span() -> None:
    trials = [
        Finished(Trial(score, seed), {"r": np.array([x, x, float(seed)])}, {}, None, [], {})
        for score, x in (("a", 1.0), ("b", 0.0))
        for seed in range(2)
    ]
    (one,) = judge(trials, SHARE)["differences"]
    assert -100 <= one["low"] < one["high"] == one["bound"] == 100


def test_decimals_show_the_spread_and_zero_has_no_sign() -> None:
    assert judge(trials("worse", "better"), EXACT)["decimals"] == 1
    for span, decimals in ((1000.0, 0), (100.0, 1), (4.0, 3), (1.0, 3)):
        assert judge([], Measure("r", "r", 1.0, span=span))["decimals"] == decimals
    draw = np.random.default_rng(1)
    close = [
        Finished(Trial(s, n), {"r": 0.5 + 1e-6 * draw.normal(size=9)}, {}, None, [], {})
        for s, n in product("ab", range(3))
    ]
    assert judge(close, Measure("r", "r", 1.0, span=1e-5))["decimals"] >= 6
    record = {"low": -0.04, "high": 0.06}
    assert text.interval(record, 0.9996, 1) == "99.96 %: 0.0 to 0.1"
    assert text.interval(record, 0.95, 2) == "95 %: −0.04 to 0.06"


def test_it_is_plain_data() -> None:
    for seeds in (1, 3):
        found = judge(trials("worse", "better", "even", seeds=seeds), EXACT)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
