"""The verdict of a comparison, in data and in words."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest

from anyscore.lab.trials import Trial
from anyscore.lab.verdict import judge as module
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
        ("Training ended too early: …", "training had not converged. Rerun with more --epochs."),
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


def test_it_is_plain_data() -> None:
    for seeds in (1, 3):
        found = judge(trials("worse", "better", "even", seeds=seeds), EXACT)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
