"""Learning rates are searched on validation data before the trials, equally long for each score."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.built_in import compare_pairs
from anyscore.lab.data.encoding import Encoded, encode
from anyscore.lab.data.task import Example, Task
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.options import TrialOptions
from anyscore.lab.report.exports import search_table
from anyscore.lab.report.rates import learning_rate, search_chart
from anyscore.lab.train import search
from anyscore.lab.train.search import Search
from anyscore.lab.train.settings import Settings
from anyscore.lab.trials import Trial
from anyscore.lab.tuning import SEED, search_results

WORDS = ["ab", "abc", "cab", "bcd", "dab", "acdb", "bad", "cda", "dcab", "bb", "ca", "adc"]
SETTINGS = Settings(epochs=3, batch_size=8, hidden=8)
TRAININGS = 7


def task() -> Task:
    examples = [Example(word, (word[::-1],)) for word in WORDS]
    return Task("reverse", "", "character", examples, examples[:4], examples[4:9])


@pytest.fixture(scope="module")
def data() -> Encoded:
    return encode(task())


def carried_out(data: Encoded, folder: Path, **others: Any) -> dict[str, Any]:
    one = Search(data, SETTINGS, TRAININGS, others.pop("widths", False), folder)
    return one(Trial("additive", SEED), others.pop("report", lambda told: None)).facts


def numbers(facts: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(x["learning_rate"], x["valid_loss"], x["state"]) for x in facts["tried"]]


def test_the_first_is_at_the_settings_numbers_and_the_best_is_chosen(
    data: Encoded, tmp_path: Path
) -> None:
    facts = carried_out(data, tmp_path)
    tried = facts["tried"]
    assert len(tried) == TRAININGS
    assert tried[0]["learning_rate"] == SETTINGS.learning_rate
    whole = [x for x in tried if x["state"] == "complete"]
    best = min(whole, key=lambda x: x["valid_loss"])
    assert facts["chosen"] == {"learning_rate": best["learning_rate"]}
    assert best["valid_loss"] < whole[0]["valid_loss"]  # three epochs of 4e-3 are too few
    assert all(
        SETTINGS.learning_rate / 8 <= x["learning_rate"] <= SETTINGS.learning_rate * 8
        for x in tried
    )


def test_widths_are_searched_if_asked(data: Encoded, tmp_path: Path) -> None:
    facts = carried_out(data, tmp_path, widths=True)
    assert {x["hidden"] for x in facts["tried"]} <= {4, 8, 16}
    assert facts["tried"][0]["hidden"] == 8
    assert set(facts["chosen"]) == {"learning_rate", "hidden"}


_DIES = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from lab.train.test_search import SEED, SETTINGS, TRAININGS, Search, Trial, encode, task
from anyscore.lab.train import training

def report(told):
    if told["step"] == {step}:
        os._exit(9)

training._SECONDS = 0.0  # tell of every step
one = Search(encode(task()), SETTINGS, TRAININGS, False, Path({folder!r}))
one(Trial("additive", SEED), report)
"""


@pytest.mark.weekly
def test_a_search_that_was_killed_goes_on_to_the_same_result(data: Encoded, tmp_path: Path) -> None:
    whole = carried_out(data, tmp_path / "whole")
    killed = tmp_path / "killed"
    for step in (2, 20):  # in the first training, and in a later one
        here = str(Path(__file__).parents[2])
        code = _DIES.format(here=here, step=step, folder=str(killed))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 9, done.stderr
    assert numbers(carried_out(data, killed)) == numbers(whole)


def test_trainings_that_fail_count_and_are_not_chosen(
    data: Encoded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: Any, **others: Any) -> list[dict[str, Any]]:
        rates.append(others)
        if len(rates) != 2:
            raise TrialFailure("the loss became nan")
        return [{"epoch": 1, "valid_loss": 0.5}]

    rates: list[Any] = []
    monkeypatch.setattr(search, "train", train)
    facts = carried_out(data, tmp_path)
    assert [x["state"] for x in facts["tried"]] == ["failed", "complete"] + ["failed"] * 5
    assert facts["chosen"]["learning_rate"] == facts["tried"][1]["learning_rate"]
    rates[:] = [None, None]
    with pytest.raises(TrialFailure, match="none of 7 trainings succeeded: the loss became nan"):
        carried_out(data, tmp_path / "other")


def test_a_damaged_journal_is_told_in_a_line(data: Encoded, tmp_path: Path) -> None:
    (tmp_path / "additive.journal").write_text('{"op_code": 7}\nnothing\n[]\n')
    with pytest.raises(TrialFailure, match=r"additive\.journal: damaged .*; remove it"):
        carried_out(data, tmp_path)


def test_trials_are_trained_with_what_the_searches_chose(tmp_path: Path) -> None:
    def tuned(scores: tuple[str, ...], trainings: int = 3) -> dict[str, Any]:
        record, _ = compare_pairs(
            task(), SETTINGS, TrialOptions(scores, 2, jobs=1, tune=trainings), out=tmp_path
        )
        return record

    first = tuned(("additive",))
    rate = search_results(tmp_path)["additive"]["chosen"]["learning_rate"]
    for seed in range(2):
        model = tmp_path / "trials" / f"additive-seed{seed}" / "model.json"
        assert json.loads(model.read_text())["settings"]["learning_rate"] == rate
    assert [learning_rate(x, first) for x in first["trials"]] == [rate, rate]
    assert all(x["learning_rate"] is None for x in first["trials"])  # no grid beside a search
    report = (tmp_path / "report.html").read_text()
    assert "Which learning rate did each score get?" in report

    journal = (tmp_path / "tuning" / "additive.journal").read_bytes()
    both = tuned(("additive", "dot"))
    assert (tmp_path / "tuning" / "additive.journal").read_bytes() == journal
    assert set(both["searches"]) == {"additive", "dot"}
    assert [len(x["tried"]) for x in both["searches"].values()] == [3, 3]
    chart = search_chart(both, ["additive", "dot"])
    assert chart is not None
    assert [panel.score for panel in chart.panels] == ["additive", "dot"]
    assert len(search_table(both)[1]) == 6
    with pytest.raises(InputError, match=r"settings\.tune was 3, is 4"):
        tuned(("additive",), trainings=4)


def test_a_score_whose_search_failed_is_left_out_and_named(tmp_path: Path) -> None:
    settings = Settings(
        epochs=1, batch_size=8, hidden=8, learning_rate=1e60
    )  # no step fits float32
    trials = TrialOptions(("additive",), seeds=1, jobs=1, tune=2)
    record, _ = compare_pairs(task(), settings, trials, out=tmp_path)
    (failed,) = record["trials"]
    assert failed["failure"].startswith("the search for its learning rate failed")
    assert "none of 2 trainings" in (
        tmp_path / "tuning" / "failures" / f"additive-seed{SEED}.txt"
    ).read_text()  # fmt: skip
