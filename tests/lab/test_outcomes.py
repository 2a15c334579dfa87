"""Everything beside results in a user's outcomes and settings is kept and read back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab import Outcome, compare
from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.report.exports import export
from anyscore.lab.session import rebuild

pytestmark = pytest.mark.sample

RIGHT = {"even": [1.0, 0.0, 1.0], "odd": [0.0, 1.0, 1.0]}


def outcome(score: str, **others: Any) -> Outcome:
    return Outcome({"accuracy": RIGHT[score]}, **others)


def run(folder: Path, settings: Any = None, **others: Any) -> dict[str, Any]:
    return compare(
        lambda score, *_: outcome(score, **others), [*RIGHT], seeds=2, out=folder, settings=settings
    )


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    epochs = [{"epoch": n, "valid_loss": x} for n, x in enumerate((3.0, math.nan, 2.0, math.inf))]
    found = run(tmp_path, epochs=epochs)
    assert [x["valid_loss"] for x in found["trials"][0]["epochs"]] == [3.0, None, 2.0, None]
    assert rebuild(tmp_path) == found


def test_facts_that_are_no_numbers_are_not_counted_with(tmp_path: Path) -> None:
    names = "score_parameters", "best_epoch", "related", "unrelated", "parameters"
    run(tmp_path, epochs=[{"epoch": 1}], facts=dict.fromkeys(names, math.nan))
    assert rebuild(tmp_path)["trials"][0]["parameters"] is None


def test_facts_take_the_place_of_nothing(tmp_path: Path) -> None:
    names = "score", "seed", "learning_rate", "test", "epochs", "failure"
    found = run(tmp_path, facts={**dict.fromkeys(names, "mine"), "own": [1]})
    assert [x["score"] for x in found["trials"]] == ["even", "even", "odd", "odd"]
    assert found["trials"][0]["test"] == {"result": pytest.approx(200 / 3)}
    assert found["trials"][0]["own"] == [1]
    assert "failure" not in found["trials"][0]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"epochs": [{"valid_loss": "low"}]}, "trial.epochs[0].valid_loss: expected a number"),
        ({"facts": {"best_epoch": "last"}}, "trial.facts.best_epoch: expected a number, found"),
        ({"facts": {"examples": [{"source": ["a"]}]}}, "expected references, output, weights,"),
        ({"statistics": {"mine": [[1.0]] * 3}}, "statistics: expected chrf or bleu, got 'mine'"),
        ({"statistics": {"bleu": [[1.0]] * 3}}, "'bleu': expected 10 numbers in a row, got 1"),
        ({"statistics": {"bleu": [[0.5] * 10] * 3}}, "expected rows of finite numbers, counts"),
    ],
)
def test_what_could_not_be_read_is_not_kept(tmp_path: Path, others: Any, said: str) -> None:
    """The first trial reports an unreadable outcome, not the report after the last trial."""
    with pytest.raises(TrialFailure, match="every trial failed") as failure:
        run(tmp_path, **others)
    assert said in str(failure.value)


@pytest.mark.parametrize("text", ["\ud800", "é\u2028\x00", "\U0001f600"])
def test_any_text_is_read_as_it_was_kept(tmp_path: Path, text: str) -> None:
    run(tmp_path, outputs=[text] * 3, facts={text: text}, settings={text: text})
    (found, *_) = Comparison(tmp_path).finished()
    assert found.outputs == [text] * 3
    assert found.facts == {text: text}
    assert Comparison(tmp_path).shared()["settings"] == {text: text}
    assert json.loads((tmp_path / "comparison.json").read_text())["settings"] == {text: text}


@pytest.mark.parametrize(
    "rate", ["cosine", [1e-3, 1e-4], math.nan, pytest.param(10**400, id="huge"), True]
)
def test_settings_may_be_anything(tmp_path: Path, rate: Any) -> None:
    found = run(tmp_path / "run", settings={"learning_rate": rate, "items": 3})
    assert run(tmp_path / "run", settings={"learning_rate": rate, "items": 3}) == found
    assert export(found, tmp_path / "exported")


def test_a_run_is_not_continued_by_a_measure_that_its_trials_lack(tmp_path: Path) -> None:
    run(tmp_path)
    asked = []
    with pytest.raises(InputError, match="even-seed0: expected results named 'f1', found"):
        compare(lambda *x: asked.append(x), ["even"], seeds=3, out=tmp_path, measure="f1")
    assert not asked


def test_a_damaged_trial_is_told_before_others_are_trained(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "trials" / "odd-seed1" / "items.json").write_text("{}")
    asked = []
    with pytest.raises(InputError, match=r"odd-seed1/items\.json: damaged|odd-seed1: damaged"):
        compare(lambda *x: asked.append(x), [*RIGHT], seeds=3, out=tmp_path)
    assert not asked
