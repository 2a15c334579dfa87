"""Rounds of trials skip finished trials, spend 5 % over all looks, and keep to the time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab import rounds
from anyscore.lab.comparison import Comparison, Finished
from anyscore.lab.engine import Event
from anyscore.lab.rounds import Looks, Plan, look_level, play
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.judge import Measure, judge
from lab.made_trials import made

pytestmark = pytest.mark.sample

EXACT = Measure("exact_match", "exact match")


class Played:
    """A comparison of made-up trials; each trial moves the clock."""

    def __init__(self, folder: Path, plan: Plan, seconds: float, patch: pytest.MonkeyPatch) -> None:
        self.comparison, self.ran, self.verdicts = Comparison(folder), list[Trial](), list[Any]()
        self.clock, self.seconds = 0.0, seconds
        patch.setattr(rounds.time, "monotonic", lambda: self.clock)
        with self.comparison.opened({}):
            looks = Looks()
            play(
                self.comparison, plan, self.run, looks, on_event=lambda event: None,
                judge=self.judge, on_verdict=self.verdicts.append,
            )  # fmt: skip
            self.level = looks.level

    def run(self, trials: Sequence[Trial]) -> Iterator[Event]:
        for trial in trials:
            self.comparison.keep(trial, made(trial))
            self.ran.append(trial)
            self.clock += self.seconds
            yield Event("finished", trial, {})

    def judge(self, found: list[Finished], level: float) -> dict[str, Any]:
        return judge(found, EXACT, level=level)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return partial(Played, tmp_path / "run", patch=monkeypatch)


def test_scores_take_turns_seed_by_seed(played: Any) -> None:
    plan = Plan(("worse", "better"), seeds=2, first_seed=5, extra=(Trial("worse", 5, 0.1),))
    found = played(plan, 1.0)
    names = ["worse-seed5", "better-seed5", "worse-seed6", "better-seed6", "worse-seed5-rate0.1"]
    assert [x.name for x in found.ran] == names
    assert found.level == 0.95
    more = played(Plan(("worse", "better", "even"), seeds=3, first_seed=5), 1.0)
    assert len(more.ran) == 9 - 4


def test_it_stops_when_all_is_settled(played: Any) -> None:
    found = played(Plan(("worse", "better"), seeds=20, minutes=1000), 1.0)
    assert len(found.ran) < 12
    assert found.verdicts[-1]["differences"][0]["verdict"] == "differs"
    assert len(found.verdicts) == len(found.ran) / 2
    assert found.level == look_level(len(found.verdicts) - 2)


def test_no_round_begins_that_would_end_too_late(played: Any) -> None:
    found = played(Plan(("even", "twin"), seeds=50, minutes=10), 60.0)
    assert len(found.ran) == 10  # rounds of two minutes
    assert found.clock <= 600


def test_the_first_round_is_played_however_short_the_time(played: Any) -> None:
    assert len(played(Plan(("even", "twin"), seeds=50, minutes=0.1), 60.0).ran) == 2


def test_looks_spend_five_percent_together() -> None:
    spent = [1 - look_level(look) for look in range(1, 2000)]
    assert 0.0499 < sum(spent) < 0.05
    assert spent == sorted(spent, reverse=True)
