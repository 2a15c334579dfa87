"""Axes: the place of a number in percent of the length, and the numbers written along it.

Percentages let a picture be as wide as its place while its letters keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from anyscore.lab.forms import is_number


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        low, high: its ends.
        ticks: the numbers written along it.
        log: whether places go by logarithms.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return how far `value` is on the way from `low` to `high`, in percent, 0 to 100."""
        low, high, at = (
            math.log(max(v, 1e-300)) if self.log else v for v in (self.low, self.high, value)
        )
        return round(min(100.0, max(0.0, 100 * (at - low) / (high - low))), 2)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """The place and the text of each tick."""
        decimals = max((_decimals(tick) for tick in self.ticks), default=0)
        return [
            (self.place(t), f"{t:g}" if self.log else minus(f"{t:.{decimals}f}"))
            for t in self.ticks
        ]


def minus(text: str) -> str:
    """Return the text with a minus sign in place of a hyphen."""
    return text.replace("-", "\u2212")


def numbers(values: Iterable[object]) -> list[float]:
    """Return the values that are numbers, as `is_number` has them."""
    return [float(v) for v in values if is_number(v)]


def linear(values: Iterable[object], *, room: float = 0.0, at_most: int = 6) -> Axis:
    """Make an axis over the finite ones of `values`.

    Args:
        room: of the length, added at both ends.
        at_most: ticks, about.
    """
    finite = numbers(values) or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):
        low, high = low - 1, high + 1
    low, high = low - room * (high - low), high + room * (high - low)
    step = _step((high - low) / at_most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(i * step for i in range(first, last + 1)))


def losses(values: Iterable[object]) -> Axis:
    """Make an axis of losses, by logarithms if the largest is over four times the smallest."""
    finite = numbers(values)
    if not finite or min(finite) <= 0 or max(finite) / min(finite) <= 4:
        return linear([0.0, *finite], at_most=4)
    return logarithmic(finite)


def logarithmic(values: Iterable[object]) -> Axis:
    """Make an axis by logarithms over the positive values, a tenth longer at both ends."""
    positive = [x for x in numbers(values) if x > 0] or [1.0]
    low, high = min(positive) / 1.1, max(positive) * 1.1
    steps = (1,) if high / low > 400 else (1, 3) if high / low > 20 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return Axis(low, high, tuple(t for t in ticks if low <= t <= high), log=True)


def _step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(s * power for s in (1, 2, 5, 10) if s * power >= least * (1 - 1e-9))


def _decimals(value: float) -> int:
    """Return how many digits after the point `value` needs, of six."""
    text = f"{value:.6f}".rstrip("0")
    return len(text) - text.index(".") - 1
