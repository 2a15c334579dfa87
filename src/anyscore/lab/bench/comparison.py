"""A comparison times the same work by several contestants; a wrong answer gets no time."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from anyscore.lab.bench.rivals import Rival
from anyscore.lab.bench.runner import Runner
from anyscore.lab.bench.timing import Pace, interleave, spread
from anyscore.lab.bench.work import Work


@dataclass(eq=False)
class Contestant:
    """A contestant in a comparison.

    answer: the record of `Runner.prepare`. times: seconds of a call, by round. problem: the reason
    for missing times, in a few words. mib: the memory, if measured.
    """

    label: str
    rival: Rival
    work: Work
    answer: dict[str, Any] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    problem: str | None = None
    mib: float | None = None

    @property
    def runs(self) -> bool:
        return self.problem is None and "seconds" in self.answer


@dataclass(eq=False)
class Comparison:
    """Contestants, all compared with the first.

    part: name of the part of the benchmark. work: the work of most contestants. title: special
    properties of the work. timed: whether contestants are timed; else they are only prepared or
    weighed. weighed: whether the memory of each contestant is measured in its own process.
    """

    part: str
    work: Work
    contestants: list[Contestant]
    title: str = ""
    timed: bool = True
    weighed: bool = False


def prepare(contestants: list[Contestant], runner: Runner, busy: Callable[[str], None]) -> None:
    """Prepare contestants in this process, one after the other."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # it stops compiling a function after many sizes
    for contestant in contestants:
        if contestant.problem is None:
            busy(f"{contestant.label}: check")
            answer = runner.prepare(contestant.rival, contestant.work)
            contestant.answer, contestant.problem = answer, answer["problem"]
            contestant.mib = answer.get("mib")


def measure(
    contestants: list[Contestant], runner: Runner, pace: Pace, busy: Callable[[str], None]
) -> None:
    """Time the contestants that run, in turns; `times` keeps finished turns after an interrupt."""
    turns = [
        partial(runner.turn, c.rival, c.work, pace.turn) if c.runs else None for c in contestants
    ]
    counts = [pace.turns(c.answer["seconds"]) if c.runs else 0 for c in contestants]
    interleave(turns, counts, [c.times for c in contestants], busy)


def result(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison's entry of the JSON file: the work, and each contestant's results.

    Ratios are taken between turns of the same round, `time ÷ time of the first`.
    """
    work, base, entrants = comparison.work, comparison.contestants[0].times, []
    for contestant in comparison.contestants:
        entry = {"name": contestant.label, "how": contestant.answer.get("how", "")}
        if comparison.timed or contestant.work.device == "cuda":
            times = contestant.times if contestant.problem is None else {}
            ratios = [t / base[turn] for turn, t in times.items() if turn in base]
            entry |= {
                "ways": contestant.answer.get("ways", {}),
                "ms": 1000 * statistics.median(times.values()) if times else None,
                "ratio": spread(ratios) if ratios else None,
                "error": contestant.answer.get("error"),
            }
        entry["problem"] = contestant.problem
        if comparison.weighed or contestant.work.device == "cuda":
            entry["mib"] = contestant.mib
        entrants.append(entry)
    about = {"part": comparison.part, **asdict(work), "prepared": work.prepared}
    return about | {"title": comparison.title, "entrants": entrants}
