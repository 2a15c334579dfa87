"""Differences of two scores that were trained with the same seeds and tested on the same items.

A difference varies for two reasons: the luck of training (other seeds) and the choice of test items
(other items). Seeds and items are crossed, so an analysis of variance separates the two. A
difference is real if it is large beside both together.

docs/verdict.md derives the test. It also shows how often the bootstrap, and tests of one cause
alone, are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import special  # scipy.stats takes half a second longer to import

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Mean squares of a table of numbers x (seeds R, items n) of two crossed causes.

    seed      n Σ_r (x̄_r − x̄)² / (R − 1), but not less than the residual
    item      R Σ_i (x̄_i − x̄)² / (n − 1)
    residual  Σ_ri (x_ri − x̄_r − x̄_i + x̄)² / ((R − 1)(n − 1))

    Attributes:
        mean: x̄.
        seeds, items: R and n.
        seed, item, residual: the mean squares.
        unit: points from the worst result of an item to the best.
    """

    mean: float
    seeds: int
    items: int
    seed: float
    item: float
    residual: float
    unit: float = 1.0

    @classmethod
    def of(cls, x: Values, unit: float = 1.0) -> Spread:
        """Compute the spread of a table x (R, n)."""
        seeds, items = x.shape
        mean, by_seed, by_item = x.mean(), x.mean(1), x.mean(0)
        noise = 1e-26 * float(np.square(x).max(initial=0.0)) * x.size  # rounding errors

        def square(rest: Values, times: int, freedom: int) -> float:
            total = times * float(np.square(rest).sum())
            return total / freedom if freedom and total > noise else 0.0

        seed = square(by_seed - mean, items, seeds - 1)
        item = square(by_item - mean, seeds, items - 1)
        rest = x - by_seed[:, None] - by_item[None] + mean
        residual = square(rest, 1, (seeds - 1) * (items - 1))
        return cls(float(mean), seeds, items, max(seed, residual), item, residual, unit)

    def with_size(self, seeds: int, items: int) -> Spread:
        """Return the spread that is expected of a table of another size."""
        seed = self.residual + (self.seed - self.residual) * items / self.items
        item = self.residual + max(self.item - self.residual, 0.0) * seeds / self.seeds
        return replace(self, seeds=seeds, items=items, seed=seed, item=item)

    @property
    def error(self) -> float:
        """The standard error of the mean, over new seeds and new items.

        At least the error of two items, each right in one score alone. A test without any such item
        does not show that none exist.
        """
        variance = (self.seed + max(self.item - self.residual, 0.0)) / (self.seeds * self.items)
        least = self.unit * math.sqrt(2) / (self.items + 2) if self.items > 1 else 0.0
        return max(math.sqrt(variance), least)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of `error`: R − 1 if seeds are all of it, more if items are.

        Source: Hillis 2007, A comparison of denominator degrees of freedom methods for multiple
        observer ROC analysis; observers are seeds, cases are items.
        """
        items = max(self.item - self.residual, 0.0)
        return (self.seeds - 1) * (1 + items / self.seed) ** 2 if self.seed else self.seeds - 1

    def margin(self, level: float) -> float:
        """Return half the width of an interval that holds the true mean at this level."""
        return float(special.stdtrit(self.freedom, (1 + level) / 2)) * self.error

    @property
    def p(self) -> float:
        """The probability of a mean as far from 0 as this, were the true mean 0."""
        if not self.error:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * special.stdtr(self.freedom, -abs(self.mean) / self.error))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests so that 5 % is the chance of one wrong finding in all.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    adjusted = [0.0] * len(ps)
    highest = 0.0
    for place, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(ps) - place) * ps[i]))
        adjusted[i] = highest
    return adjusted


def pseudo_values(rows: Values, measure: Callable[[Values], Values]) -> Values:
    """Return each item's contribution (n,) to a measure of the whole test set, such as chrF.

        n · measure(Σ rows) − (n − 1) · measure(Σ rows but the item's)

    The mean is about the measure. A measure that is a mean over items gives the items' own values
    (Quenouille 1956).

    Args:
        rows: (n, k), statistics of each item that are added up.
        measure: sums (..., k) → measure (...).
    """
    total, n = rows.sum(0), len(rows)
    if n == 1:
        return measure(rows)
    return n * measure(total) - (n - 1) * measure(total - rows)


def seeds_needed(spread: Spread, level: float, bound: float | None, most: int = 100) -> int | None:
    """Return how many seeds in all would settle a difference, if nothing else changed.

    Settled: different with p below 1 − level, or within ±bound with 95 % where there is a bound.
    None: not with `most`.
    """
    for seeds in range(spread.seeds, most + 1):
        if _settles(spread.with_size(seeds, spread.items), level, bound):
            return seeds
    return None


def items_needed(spread: Spread, level: float, bound: float | None, most: int = 100) -> int | None:
    """Return how many test items in all would settle a difference with as many seeds.

    None: not with `most` times as many, or the test set has one number alone.
    """
    if spread.items == 1:
        return None
    for factor in np.geomspace(1, most, 60).tolist():
        items = math.ceil(spread.items * float(factor))
        if _settles(spread.with_size(spread.seeds, items), level, bound):
            return items
    return None


def _settles(spread: Spread, level: float, bound: float | None) -> bool:
    """Return whether a spread shows a difference, or equality within ±bound."""
    equal = bound is not None and abs(spread.mean) + spread.margin(0.95) <= bound
    return bool(spread.p < 1 - level or equal)
