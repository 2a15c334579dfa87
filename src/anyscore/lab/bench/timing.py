"""Turns: calls are timed in rounds, in which each has a turn, in an order drawn anew."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

_MOST = 200  # calls in a turn on a GPU


@dataclass(frozen=True)
class Pace:
    """The time that timing may take.

    rounds: at most. seconds: about so many for each. turn: seconds that a turn lasts, so that the
    clock is no matter. slow: seconds of a call from which one turn must do.
    """

    rounds: int = 25
    seconds: float = 4.0
    turn: float = 0.02
    slow: float = 20.0

    def turns(self, call: float) -> int:
        """Say how many turns one has whose call takes so many seconds: three, even if slow."""
        lasts = max(call, self.turn)
        if lasts > self.slow:
            return 1
        return min(self.rounds, max(3, int(self.seconds / lasts)))


def interleave(
    turns: Sequence[Callable[[], float | None] | None],
    counts: Sequence[int],
    times: Sequence[dict[int, float]],
    busy: Callable[[str], None] = lambda text: None,
) -> None:
    """Let each take `counts[i]` turns, spread evenly over the rounds; the first has all rounds.

    The order is drawn for each round, and the same in every run: in one that rotated each would
    come after the same other, and find in the caches what that one left. What was measured is in
    `times`, seconds by round, also when an exception ends it early.

    turns: each gives the seconds of a call, or None where there is nothing to tell; None takes no
        part.
    """
    runners = [i for i, turn in enumerate(turns) if turn is not None]
    draw = random.Random(0)
    total = max((counts[i] for i in runners), default=0)
    with _no_collector():
        for number in range(total):
            busy(f"round {number + 1} of {total}")
            for i in draw.sample(runners, len(runners)):
                turn, n = turns[i], total if i == 0 else counts[i]
                if turn is not None and number * n // total != (number - 1) * n // total:
                    seconds = turn()
                    if seconds is not None:
                        times[i][number] = seconds


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles.

    >>> spread([1.0, 2.0, 3.0, 4.0, 10.0])
    {'median': 3.0, 'low': 2.0, 'high': 4.0, 'rounds': 5}
    """
    low, middle, high = (float(x) for x in np.percentile(values, [25, 50, 75]))
    return {"median": middle, "low": low, "high": high, "rounds": len(values)}


class WallClock:
    """Seconds of a call on the processor: so many calls in a row, divided."""

    def __call__(self, call: Callable[[], Any], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats


class EventClock:
    """Seconds of a call on the GPU, between events: the median of so many calls.

    Before each a buffer of twice the size of the L2 cache is filled, so that nobody's inputs are in
    it.
    """

    def __init__(self) -> None:
        import torch

        size = 2 * getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 2**26)
        self.torch = torch
        self.buffer = torch.empty(max(size, 2**26), dtype=torch.int8, device="cuda")

    def __call__(self, call: Callable[[], Any], repeats: int) -> float:
        event: Any = self.torch.cuda.Event
        count = min(repeats, _MOST)
        pairs: Any = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(count)]
        if count > 1:
            call()
        for start, end in pairs:
            self.buffer.zero_()
            start.record()
            call()
            end.record()
        self.torch.cuda.synchronize()
        return float(np.median([start.elapsed_time(end) / 1000 for start, end in pairs]))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Switch the garbage collector off: its pauses are nobody's."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
