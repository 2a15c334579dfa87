"""Rounds of trials: every score with one seed, then with the next, until seeds or time end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import Event
from anyscore.lab.finished import Finished
from anyscore.lab.trials import Trial

FEWEST_SEEDS = 3
"""The seeds before the first verdict under a limit of time; fewer settle nothing."""

Run = Callable[[Sequence[Trial]], Iterator[Event]]


@dataclass(frozen=True)
class Plan:
    """The trials of a comparison.

    Attributes:
        scores: names of scores.
        seeds: the number of seeds, from `first_seed` on; with `minutes`, the most.
        minutes: no round begins that would probably end later; None for no limit.
        extra: trials beside the rounds, after them.
    """

    scores: tuple[str, ...]
    seeds: int = 3
    first_seed: int = 0
    minutes: float | None = None
    extra: tuple[Trial, ...] = ()

    def round(self, number: int) -> list[Trial]:
        """Return the trials of a round: every score with one seed."""
        return [Trial(score, self.first_seed + number) for score in self.scores]

    @property
    def trials(self) -> list[Trial]:
        """All trials in order."""
        rounds = [trial for number in range(self.seeds) for trial in self.round(number)]
        return [*rounds, *self.extra]


def look_level(look: int, level: float = 0.95) -> float:
    """Return the level of a look at growing data, so that all looks together keep `level`.

    All looks together are wrong no more often than 1 − `level`: look k spends 6/(πk)² of it.

    Args:
        look: the number of the look, from 1 on.
    """
    return 1 - (1 - level) * 6 / (math.pi * look) ** 2


@dataclass
class Looks:
    """The looks at growing data under a limit of time.

    count: the looks so far. last: the number of the round that was last looked at.
    """

    count: int = 0
    last: int = -1

    @property
    def level(self) -> float:
        """Return the level of the last look; 95 % before the first."""
        return look_level(self.count) if self.count else 0.95

    def level_of(self, trials: Sequence[Trial], plan: Plan) -> float:
        """Return the level of a verdict on trials: one more look if some are of later rounds."""
        last = plan.first_seed + self.last
        more = plan.minutes is not None and any(trial.seed > last for trial in trials)
        return look_level(self.count + 1) if more else self.level


def play(
    comparison: Comparison,
    plan: Plan,
    run: Run,
    looks: Looks,
    *,
    on_event: Callable[[Event], None],
    judge: Callable[[list[Finished], float], dict[str, Any]],
    on_verdict: Callable[[dict[str, Any]], None] = lambda verdict: None,
) -> None:
    """Run the missing trials. With a limit of time, stop when no pair of scores is undecided.

    A look judges the trials up to its round alone, so that the same call again repeats its looks.

    Args:
        run: runs trials, as `engine.run_processes` does.
        looks: counts the looks, also if this function is interrupted.
        on_event: takes the events.
        judge: (finished trials, level) → verdict.
        on_verdict: takes the verdict after each round.
    """
    if plan.minutes is None:
        carry_out(comparison, plan.trials, run, on_event)
        return
    start, longest = time.monotonic(), 0.0
    for number in range(plan.seeds):
        round_start = time.monotonic()
        if number and round_start - start + longest > 60 * plan.minutes:
            break
        carry_out(comparison, plan.round(number), run, on_event)
        longest = max(longest, time.monotonic() - round_start)
        if number + 1 >= FEWEST_SEEDS:
            looks.count += 1
        looks.last = number
        until = plan.first_seed + number
        seen = [trial for trial in comparison.finished() if trial.trial.seed <= until]
        verdict = judge(seen, looks.level)
        on_verdict(verdict)
        kinds = {d["verdict"] for d in verdict["differences"]}
        if number + 1 >= FEWEST_SEEDS and "undecided" not in kinds:
            break


def carry_out(
    comparison: Comparison, trials: Sequence[Trial], run: Run, on_event: Callable[[Event], None]
) -> None:
    """Run the trials that the comparison lacks, and pass their events on."""
    missing = [trial for trial in trials if not comparison.has(trial)]
    events = run(missing)
    try:
        for event in events:
            on_event(event)
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()
