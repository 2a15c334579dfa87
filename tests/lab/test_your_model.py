"""A user's own model runs in the laboratory, with any outcome, return value or exception."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyscore.lab import Outcome, compare
from anyscore.lab.errors import InputError, TrialFailure

pytestmark = pytest.mark.sample

QUALITY = {"good": 0.9, "bad": 0.5, "twin": 0.9}


def results(score: str, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *score.encode()]).random(300) < QUALITY[score]


def train(score: str, seed: int, report: Any) -> Any:
    report({"step": 1, "steps": 1})
    return results(score, seed)


def test_the_verdict_and_its_files(tmp_path: Path) -> None:
    found = compare(train, ["bad", "good", "twin"], seeds=4, out=tmp_path / "run")
    kinds = {
        frozenset((d["better"], d["worse"])): d["verdict"] for d in found["verdict"]["differences"]
    }
    assert kinds[frozenset(("good", "bad"))] == "differs"
    assert kinds[frozenset(("good", "twin"))] == "undecided"
    assert found["verdict"]["recommendation"]["score"] is None
    written = json.loads((tmp_path / "run" / "comparison.json").read_text(encoding="utf-8"))
    assert written == found
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "good beats bad by" in re.sub("</?(b|bdi)>", "", page)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_more_seeds_and_scores_add_to_it(tmp_path: Path, jobs: int) -> None:
    called: list[Any] = []

    def counting(score: str, seed: int, report: Any) -> Any:
        called.append((score, seed))
        return results(score, seed)

    function = counting if jobs == 1 else train
    compare(function, ["bad"], seeds=2, out=tmp_path, jobs=jobs)
    found = compare(function, ["bad", "good"], seeds=3, out=tmp_path, jobs=jobs)
    assert len(found["trials"]) == 6
    if jobs == 1:
        assert sorted(called) == [(s, n) for s in ("bad", "good") for n in range(3)]
    with pytest.raises(InputError, match=r"settings\.width was not given, is 3"):
        compare(function, ["bad"], out=tmp_path, settings={"width": 3})


def test_reported_epochs_are_curves(tmp_path: Path) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        for epoch in (1, 2):
            report({"epoch": np.int64(epoch), "valid_loss": np.float32(0.5), "odd": [1], "n": None})
        return results(score, seed)

    found = compare(train, ["good", "bad"], seeds=2, out=tmp_path)
    assert found["trials"][0]["epochs"] == [
        {"epoch": n, "valid_loss": 0.5, "n": None} for n in (1, 2)
    ]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "after each epoch" in page


@pytest.mark.parametrize("learnt", [True, False])
def test_one_sentence_on_the_end_of_training(tmp_path: Path, learnt: bool) -> None:
    """Where nothing was learnt, fewer epochs are no advice."""

    def train(score: str, seed: int, report: Any) -> Outcome:
        losses = [{"epoch": n, "valid_loss": abs(n - 1) + 1.0} for n in range(1, 11)]
        facts = {"related": 60.0 if learnt else 10.0, "unrelated": 9.0, "best_epoch": 1}
        return Outcome({"result": results(score, seed).astype(float)}, epochs=losses, facts=facts)

    sentences = compare(train, ["good", "bad"], seeds=3, out=tmp_path)["verdict"]["sentences"]
    said = [word in " ".join(sentences) for word in ("Every score overfits", "Nothing was learnt")]
    assert said == [learnt, not learnt]


def test_equal_has_the_unit_of_the_span(tmp_path: Path) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        return -np.square(np.random.default_rng(seed).normal(size=2000))

    for place, span, matters, verdict in (
        ("span", 20.0, None, "equal"),
        ("nobody", None, None, "undecided"),
        ("matters", 20.0, 1e-6, "undecided"),
    ):
        out = tmp_path / place
        found = compare(train, ["a", "b"], seeds=3, out=out, scale=1.0, span=span, matters=matters)
        assert found["verdict"]["differences"][0]["verdict"] == verdict
        again = compare(train, ["a", "b"], seeds=3, out=out, scale=1.0, span=span, matters=matters)
        assert again["verdict"] == found["verdict"]
    with pytest.raises(InputError, match=r"expected matters 0\.2, by which it was begun, got 5.0"):
        compare(
            train, ["a", "b"], seeds=3, out=tmp_path / "span", scale=1.0, span=20.0, matters=5.0
        )


@pytest.mark.parametrize("form", ["list", "mapping", "outcome", "number"])
def test_what_a_function_may_return(tmp_path: Path, form: str) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        x = results(score, seed)
        return {
            "list": x.tolist(),
            "mapping": {"accuracy": x, "other": x},
            "outcome": Outcome({"accuracy": x.astype(float)}),
            "number": float(x.mean()),
        }[form]

    measure = None if form in ("list", "number") else "accuracy"
    found = compare(train, ["good", "bad"], seeds=5, out=tmp_path, measure=measure)
    (one,) = found["verdict"]["differences"]
    assert one["verdict"] == "differs"
    assert one["items"] == (1 if form == "number" else 300)
    assert 30 < one["difference"] < 50


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "TypeError: expected results of the test items, got None"),
        ([], "expected one number per test item, got shape (0,)"),
        ([[1.0]], "expected one number per test item, got shape (1, 1)"),
        ([float("inf")], "expected finite numbers, got inf for item 0"),
        ("much", "could not convert string to float"),
        ([1.0, 2.0j], "expected real numbers"),
        (np.array([1.0, 2.0j]), "expected real numbers"),
        (torch.tensor([1.0, 2.0j]), "expected real numbers"),
        ({"result": np.array([1j])}, "expected real numbers"),
        (Outcome({"result": np.array([1j])}), "expected real numbers"),
        (
            Outcome({"result": np.array(["2020"], "M8[Y]")}),
            "expected real numbers, or rows of as many",
        ),
    ],
)
def test_a_function_that_returns_something_else(tmp_path: Path, given: Any, said: str) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        return given if score == "bad" else results(score, seed)

    with pytest.warns(UserWarning, match="2 trials failed; bad with seed 0: "):
        found = compare(train, ["good", "bad"], seeds=2, out=tmp_path)
    failed = [x for x in found["trials"] if "failure" in x]
    assert [(x["score"], x["seed"]) for x in failed] == [("bad", 0), ("bad", 1)]
    assert said in failed[0]["failure"]
    assert "\n" not in failed[0]["failure"]


@pytest.mark.parametrize("form", [dict, Outcome])
def test_the_measure_to_judge_by_must_be_among_the_results(tmp_path: Path, form: Any) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        return form({"f1" if score == "bad" else "accuracy": results(score, seed).tolist()})

    with pytest.warns(UserWarning, match="expected results named 'accuracy', got f1; let the"):
        compare(train, ["good", "bad"], seeds=2, out=tmp_path / "named", measure="accuracy")
    found = compare(train, ["good"], seeds=2, out=tmp_path / "first")  # the first result by default
    assert found["verdict"]["standings"][0]["mean"] > 50


def test_nothing_but_failures_raises_with_the_first_of_them(tmp_path: Path) -> None:
    def fails(score: str, seed: int, report: Any) -> Any:
        raise ValueError(f"no {score}")

    with pytest.raises(TrialFailure, match="every trial failed; good with seed 0: ValueError: no"):
        compare(fails, ["good", "bad"], seeds=2, out=tmp_path)
    assert len(list((tmp_path / "failures").iterdir())) == 4
    again = compare(train, ["good", "bad"], seeds=2, out=tmp_path)  # failed trials run again
    assert not [x for x in again["trials"] if "failure" in x]


def test_another_number_of_items_fails_the_trial_and_not_the_others(tmp_path: Path) -> None:
    def train(score: str, seed: int, report: Any) -> Any:
        return results(score, seed)[: 299 if (score, seed) == ("bad", 1) else None]

    with pytest.warns(UserWarning, match="1 trial failed; bad with seed 1: .*the same call tries"):
        found = compare(train, ["good", "bad"], seeds=3, out=tmp_path)
    (failed,) = [x for x in found["trials"] if "failure" in x]
    assert (failed["score"], failed["seed"]) == ("bad", 1)
    assert "299 test items, the other trials 300" in failed["failure"]
    assert found["verdict"]["differences"][0]["seeds"] == 2


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected different names"):
        compare(train, ["good", "good"], out=tmp_path)
    with pytest.raises(InputError, match="seeds: expected a whole number from 1 on, got 0"):
        compare(train, ["good"], seeds=0, out=tmp_path)
    with pytest.raises(InputError, match="cannot be sent to another process"):
        compare(lambda score, seed, report: 1.0, ["good"], out=tmp_path, jobs=2)
