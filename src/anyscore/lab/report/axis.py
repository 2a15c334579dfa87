"""Where a number stands on an axis, in percent of its length, and which numbers are written there.

Percentages let a picture be as wide as its place while its letters keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, by logarithms if `log`; `ticks` are the numbers written at it."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Percent of the way from `low` to `high`, within 0 and 100."""
        low, high, at = (
            math.log(max(v, 1e-300)) if self.log else v for v in (self.low, self.high, value)
        )
        return round(min(100.0, max(0.0, 100 * (at - low) / (high - low))), 2)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Place and words of each tick."""
        decimals = max((_decimals(tick) for tick in self.ticks), default=0)
        return [
            (self.place(t), f"{t:g}" if self.log else minus(f"{t:.{decimals}f}"))
            for t in self.ticks
        ]


def minus(text: str) -> str:
    """The text with the sign of a negative number as it is printed."""
    return text.replace("-", "\u2212")


def numbers(values: Iterable[object]) -> list[float]:
    """Those of the values that are finite numbers."""
    return [
        float(v)
        for v in values
        if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
    ]


def linear(values: Iterable[object], *, room: float = 0.0, at_most: int = 6) -> Axis:
    """An axis over the finite ones of `values`, and `room` of its length more at both ends."""
    found = numbers(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):
        low, high = low - 1, high + 1
    low, high = low - room * (high - low), high + room * (high - low)
    step = _step((high - low) / at_most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(i * step for i in range(first, last + 1)))


def losses(values: Iterable[object]) -> Axis:
    """An axis of losses: by logarithms where the largest is over four times the smallest."""
    found = numbers(values)
    if not found or min(found) <= 0 or max(found) / min(found) <= 4:
        return linear([0.0, *found], at_most=4)
    return logarithmic(found)


def logarithmic(values: Iterable[object]) -> Axis:
    """An axis by logarithms over the positive ones of `values`, and a tenth more at both ends."""
    found = [x for x in numbers(values) if x > 0] or [1.0]
    low, high = min(found) / 1.1, max(found) * 1.1
    steps = (1,) if high / low > 400 else (1, 3) if high / low > 20 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return Axis(low, high, tuple(t for t in ticks if low <= t <= high), log=True)


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(s * power for s in (1, 2, 5, 10) if s * power >= least * (1 - 1e-9))


def _decimals(value: float) -> int:
    """How many digits after the point `value` needs, of six."""
    text = f"{value:.6f}".rstrip("0")
    return len(text) - text.index(".") - 1
