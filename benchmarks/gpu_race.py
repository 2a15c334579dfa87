"""A race in turns: prepared side by side, timed one at a time, within a deadline."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

LIMIT = 150.0  # seconds that preparing one may take, compilation included
RESERVE = 8.0  # seconds that are left for ending processes and for the report
TURN = 0.05  # seconds of calls in a turn
ROUNDS = 15
SLOW = 10.0  # seconds of a call from which one turn must do


class Lost(Exception):
    """A worker is no more; the text says why."""


class Deadline:
    """An end for everything. clock: seconds, that only grow."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.end = clock, clock() + seconds

    def left(self) -> float:
        """Seconds left, with the report's taken off."""
        return self.end - RESERVE - self.clock()

    def allows(self, seconds: float) -> bool:
        return self.left() >= seconds


@dataclass(eq=False)
class Entrant:
    """One in a contest. way: a key of `gpu_ways.WAYS`; worker: the process that has it.

    answer: what preparing it gave. times: ms of one call, by round. problem: why it has none.
    """

    name: str
    way: str
    work: Any
    worker: Any
    answer: dict[str, Any] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    problem: str | None = None

    @property
    def runs(self) -> bool:
        return self.problem is None and "ms" in self.answer

    @property
    def seconds(self) -> float:
        """Of one call, roughly."""
        return self.answer["ms"] / 1000


@dataclass(eq=False)
class Contest:
    """Entrants of which the first is what others are compared with. timed: or only prepared."""

    key: str
    title: str
    entrants: list[Entrant]
    timed: bool = True


def prepare(
    entrants: Sequence[Entrant],
    limit: float,
    deadline: Deadline,
    say: Callable[[str], None] = lambda text: None,
    pause: Callable[[], None] = lambda: time.sleep(0.05),
) -> None:
    """Prepare all, each worker its own in order; one that takes longer than `limit` is given up."""
    queues: dict[Any, list[Entrant]] = {}
    for entrant in entrants:
        queues.setdefault(entrant.worker, []).append(entrant)
    began: dict[Any, float] = {}
    while any(queues.values()):
        for worker, queue in queues.items():
            try:
                if not queue:
                    continue
                if worker not in began:
                    began[worker] = deadline.clock()
                    worker.send("prepare", queue[0].way, queue[0].work)
                elif worker.ready():
                    _answered(queue[0], worker.receive(0), say)
                    del queue[0], began[worker]
                elif deadline.clock() - began[worker] > limit:
                    worker.end(f"given up after {limit:.0f} s of preparation")
                elif not deadline.allows(0):
                    worker.end("given up as the time was over")
            except Lost as lost:
                for entrant in queue:
                    entrant.problem = str(lost)
                    say(f"{entrant.name}: {lost}")
                queue.clear()
        pause()


def _answered(entrant: Entrant, answer: dict[str, Any], say: Callable[[str], None]) -> None:
    entrant.answer, entrant.problem = answer, answer["problem"]
    first = answer.get("first_s")
    took = "" if first is None else f" (first call {first:.1f} s)"
    say(f"{entrant.name}: {entrant.problem or 'ready'}{took}")


def race(entrants: Sequence[Entrant], seconds: float, rounds: int, deadline: Deadline) -> None:
    """Rounds in which each has a turn, in an order that rotates; the slow ones miss some.

    seconds: for each, about.
    """
    runners = [entrant for entrant in entrants if entrant.runs]
    turns = {runner: turns_of(runner.seconds, seconds, rounds) for runner in runners}
    total = max(turns.values(), default=0)
    if runners and runners[0] is entrants[0]:
        turns[runners[0]] = total  # what others are compared with has a turn in every round
    for number in range(total):
        start = number % len(runners)
        for runner in runners[start:] + runners[:start]:
            n = turns[runner]
            if number * n // total == (number - 1) * n // total or not runner.runs:
                continue
            if not deadline.allows(3 * runner.seconds + TURN):
                return
            try:
                runner.worker.send("turn", runner.way, runner.work, TURN)
                found = runner.worker.receive(min(deadline.left(), 30 + 20 * runner.seconds))
                if isinstance(found, dict):  # what it raised
                    runner.problem = found["problem"]
                else:
                    runner.times[number] = statistics.median(found)
            except Lost as lost:
                runner.problem = str(lost)


def turns_of(call: float, seconds: float, rounds: int) -> int:
    """How many turns one has, of whose calls each takes so long."""
    if call > SLOW:
        return 1
    return max(min(3, rounds), min(rounds, int(seconds / max(2 * call, TURN))))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles.

    >>> spread([1.0, 2.0, 3.0, 4.0, 10.0])
    {'median': 3.0, 'low': 2.0, 'high': 4.0, 'turns': 5}
    """
    x = sorted(values)

    def at(share: float) -> float:
        place = share * (len(x) - 1)
        low = math.floor(place)
        return x[low] + (place - low) * (x[min(low + 1, len(x) - 1)] - x[low])

    return {"median": at(0.5), "low": at(0.25), "high": at(0.75), "turns": len(x)}


def results(contest: Contest) -> list[dict[str, Any]]:
    """What is known of each entrant; ratios are taken between turns of the same round."""
    base, found = contest.entrants[0].times, []
    for entrant in contest.entrants:
        work, right = entrant.work, entrant.problem is None
        times = entrant.times if right else {}
        ratios = [ms / base[turn] for turn, ms in times.items() if turn in base]
        row = {
            "name": entrant.name,
            "size": list(work.size),
            "std": work.std if work.reach is None else None,
            "reach": work.reach,
            "training": work.training,
            "dtype": work.dtype,
            "ms": spread(list(times.values())) if times else None,
            "ratio": spread(ratios) if ratios else None,
            "elements": work.size.elements,
            "problem": entrant.problem,
        }
        for key in ("errors", "peak_bytes", "first_s"):
            row[key] = entrant.answer.get(key)
        found.append(row | entrant.answer.get("about", {}))
    return found
