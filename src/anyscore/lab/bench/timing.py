"""Calls are timed in rounds; each call has a turn in a round, in an order drawn anew."""

from __future__ import annotations

import gc
import math
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
    """The limits of timing.

    rounds: the most rounds. seconds: about the time of each call in all its turns. turn: seconds of
    a turn, long beside the clock's resolution. slow: a call that takes more seconds gets one turn.
    """

    rounds: int = 25
    seconds: float = 4.0
    turn: float = 0.02
    slow: float = 20.0

    def turns(self, call: float) -> int:
        """Return the number of turns for a call of `call` seconds: at least 3, or 1 if too slow."""
        lasts = max(call, self.turn)
        if lasts > self.slow:
            return 1
        return min(self.rounds, max(3, int(self.seconds / lasts)))


class Deadline:
    """The end of a measurement.

    seconds: until the end; None: there is none. reserve: of them, seconds for the report. clock:
    seconds that only grow.
    """

    def __init__(
        self,
        seconds: float | None,
        reserve: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock, self.begin = clock, clock()
        self.end = math.inf if seconds is None else self.begin + seconds - reserve

    def left(self) -> float:
        """Return the seconds left, without those for the report."""
        return self.end - self.clock()

    def allows(self, seconds: float) -> bool:
        """Return whether so many seconds are left."""
        return self.left() >= seconds

    def after(self, share: float) -> Deadline:
        """Return the deadline after a share of the whole time, between 0 and 1."""
        return Deadline(self.begin + share * (self.end - self.begin) - self.clock(), 0, self.clock)


def interleave(
    turns: Sequence[Callable[[], float | None] | None],
    counts: Sequence[int],
    times: Sequence[dict[int, float]],
    busy: Callable[[str], None] = lambda text: None,
) -> None:
    """Run `counts[i]` turns of each, spread evenly over the rounds; the first runs in all rounds.

    The order is drawn for each round, and is the same in every run. In a rotating order each call
    would always find the caches as the same other call left them. Seconds by round are in `times`,
    also when an exception ends the measurement early.

    turns: each returns the seconds of a call, or None without a result. A None takes no part.
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
    """Return median and quartiles.

    >>> spread([1.0, 2.0, 3.0, 4.0, 10.0])
    {'median': 3.0, 'low': 2.0, 'high': 4.0, 'rounds': 5}
    """
    low, middle, high = (float(x) for x in np.percentile(values, [25, 50, 75]))
    return {"median": middle, "low": low, "high": high, "rounds": len(values)}


class WallClock:
    """Measures the mean seconds of a call on the processor, over `repeats` calls in a row."""

    def __call__(self, call: Callable[[], Any], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats


class EventClock:
    """Measures the median seconds of a call on the GPU, between events.

    A buffer of twice the size of the L2 cache is filled before each call, so that the cache holds
    no inputs.
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
    """Switch the garbage collector off: its pauses belong to no call."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
