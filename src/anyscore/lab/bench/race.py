"""A race: the same work by several, interleaved; no time is given for a wrong answer."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyscore.lab.bench.memory import available_bytes
from anyscore.lab.bench.rival import Call, Rival, Unavailable
from anyscore.lab.bench.work import NAMES, Work, truth

# The largest error let pass, as a share of the largest entry of the right answer.
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}

_SHORTEST = 0.02  # seconds that a contender's turn lasts, so that the clock is no matter
_FEWEST = 3  # rounds, even of one that is slow
_SLOW = 20.0  # seconds; one that takes longer has one turn

Truths = dict[tuple[Work, str], list[Tensor]]


@dataclass(frozen=True)
class Pace:
    """How long a race may take: rounds at most, and about so many seconds for each contender."""

    rounds: int = 25
    seconds: float = 4.0


@dataclass(eq=False)
class Entrant:
    """One in a race. `problem` says in a few words why it has no times, if it has none."""

    label: str
    rival: Rival
    work: Work
    how: str = ""
    ways: dict[str, float | None] = field(default_factory=dict)  # rough ms; None where wrong
    call: Call | None = None
    seconds: float = math.inf  # of one call, roughly
    error: float | None = None
    problem: str | None = None
    times: dict[int, float] = field(default_factory=dict)  # by round

    def fails(self, problem: str) -> None:
        self.call, self.problem = None, self.problem or problem


def race(
    entrants: Sequence[Entrant],
    pace: Pace,
    busy: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Check and time all entrants; ratios are to the first of them, `time ÷ its time`.

    Ctrl-C goes through; what the rounds until then gave is in the entrants, for `results`.

    Args:
        busy: is told what goes on.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # it stops compiling a function that has met many sizes
    truths: Truths = {}
    for entrant in entrants:
        if entrant.problem is None:
            busy(f"{entrant.label}: check")
            enter(entrant, truths)
    truths.clear()
    _rounds([e for e in entrants if e.call is not None], entrants[0], pace, busy)
    return results(entrants)


def enter(entrant: Entrant, truths: Truths) -> None:
    """Set up the fastest way of the entrant whose answer is right, or say what is wrong."""
    work, rival = entrant.work, entrant.rival
    if not rival.installed:
        entrant.problem = f"{rival.package} is not installed"
        return
    if rival.bytes_held(work) > 0.8 * available_bytes():
        entrant.problem = f"would need about {rival.bytes_held(work) / 2**30:.0f} GiB"
        return
    score = rival.computes or work.score
    if (work, score) not in truths:
        truths[work, score] = truth(work, score)
    try:
        ways = rival.ways(work)
    except Unavailable as reason:
        entrant.problem = str(reason)
        return
    problems = []
    for way in ways:
        try:
            call = way.build()
            error, problem = check(call(), truths[work, score], work)
            if problem is None:
                seconds = _seconds(call)
        except Exception as failure:  # whatever a rival raises is its result
            problem = _failure(failure)
        entrant.ways[way.how] = None if problem is not None else 1000 * seconds
        if problem is not None:
            problems.append(problem)
        elif seconds < entrant.seconds:
            entrant.how, entrant.call, entrant.seconds = way.how, call, seconds
            entrant.error = error
    if entrant.call is None:
        entrant.problem = problems[0]


def check(found: Sequence[Any], right: Sequence[Tensor], work: Work) -> tuple[float, str | None]:
    """The largest error, as a share of the largest entry; and what is wrong, or None.

    Outputs and gradients of the query are compared in the rows that were checked.
    """
    worst = 0.0
    for place, (name, y) in enumerate(zip(NAMES, right, strict=False)):
        if place >= len(found):
            return math.inf, f"wrong: it gives no {name}"
        x = _float64(found[place])
        whole = (work.shape.batch, work.shape.queries)
        if name in NAMES[:2] and x.numel() == whole[0] * whole[1] * y.shape[-1]:
            x = x.reshape(*whole, -1)[:, work.checked_rows]
        if x.numel() != y.numel():
            return math.inf, f"wrong: its {name} has the shape {tuple(found[place].shape)}"
        if not bool(x.isfinite().all()):
            return math.inf, f"wrong: its {name} is not finite"
        error = float((x.reshape(y.shape) - y).abs().max() / y.abs().max().clamp_min(1e-300))
        worst = max(worst, error)
        if error > TOLERANCE[work.dtype]:
            return error, f"wrong: its {name} is off by {error:.2g} of the largest entry"
    return worst, None


def results(entrants: Sequence[Entrant]) -> list[dict[str, Any]]:
    """What is known of each entrant, as it is written to the JSON file."""
    base = entrants[0].times
    found = []
    for entrant in entrants:
        ratios = [t / base[turn] for turn, t in entrant.times.items() if turn in base]
        times = list(entrant.times.values())
        found.append(
            {
                "name": entrant.label,
                "how": entrant.how,
                "ways": entrant.ways,
                "ms": 1000 * statistics.median(times) if times else None,
                "ratio": _spread(ratios) if ratios else None,
                "error": entrant.error,
                "problem": entrant.problem,
            }
        )
    return found


def _rounds(
    runners: Sequence[Entrant], base: Entrant, pace: Pace, busy: Callable[[str], None]
) -> None:
    """Rounds in which each has a turn, in an order that rotates; the slow ones miss some."""
    turns = {runner: _turns(runner, pace) for runner in runners}
    total = max(turns.values(), default=0)
    with _no_collector():
        for number in range(total):
            busy(f"round {number + 1} of {total}")
            start = number % len(runners)
            for runner in [*runners[start:], *runners[:start]]:
                # n turns are spread evenly over the rounds; the base has one in every round.
                n = total if runner is base else turns[runner]
                if number * n // total != (number - 1) * n // total:
                    runner.times[number] = _turn(runner)


def _turns(runner: Entrant, pace: Pace) -> int:
    lasts = max(runner.seconds, _SHORTEST)
    if lasts > _SLOW:
        return 1
    return min(pace.rounds, max(_FEWEST, int(pace.seconds / lasts)))


def _turn(runner: Entrant) -> float:
    """Seconds per call."""
    assert runner.call is not None
    repeats = max(1, math.ceil(_SHORTEST / runner.seconds))
    call = runner.call
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _seconds(call: Call) -> float:
    """About how long a call takes, the first, in which it warmed up, not counted."""
    times: list[float] = []
    while not times or (len(times) < 5 and sum(times) < 0.2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return {"median": float(middle), "low": float(low), "high": float(high), "rounds": len(ratios)}


def _float64(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().double()
    return torch.from_numpy(np.asarray(x).astype(np.float64))


def _failure(failure: Exception) -> str:
    """The first line of an exception, or what kind it is."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    said = lines[0] if lines else ""
    return f"failed: {type(failure).__name__}{': ' if said else ''}{said}"[:200]


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without the garbage collector: its pauses are nobody's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
