"""The verdict on a comparison as plain data: standings, differences of all pairs, sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from anyscore.lab.errors import InputError
from anyscore.lab.finished import Finished
from anyscore.lab.train.metrics import SCORE_OF_SUMS
from anyscore.lab.verdict import text
from anyscore.lab.verdict.statistics import (
    Spread,
    holm,
    items_needed,
    pseudo_values,
    seeds_needed,
)
from anyscore.ops.checks import brief

LEVEL = 0.95
_FEW_RIGHT = 1 / 3
"""Below this share of right answers, exact match says little of how wrong the others are."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measure:
    """A measure that scores are judged by.

    Attributes:
        name: of the results of items in a trial, or of their statistics.
        title: for readers.
        scale: points for a result of 1.
        span: points from an item's worst result to its best.
        bounded: whether the measure lies between 0 and `span`.
        matters: two scores are equal where the interval of their difference is within so many
            points; None: they never are.
    """

    name: str
    title: str
    scale: float = 100.0
    span: float = 100.0
    bounded: bool = False
    matters: float | None = 1.0

    def of_items(self, trial: Finished) -> Values:
        """Return each item's contribution (items,); the mean is the measure."""
        if self.name in trial.measures:
            return self.scale * trial.measures[self.name]
        return self.scale * pseudo_values(trial.statistics[self.name], SCORE_OF_SUMS[self.name])

    def of(self, trial: Finished) -> float:
        """Return the measure of the whole test set, in points."""
        if self.name in trial.measures:
            return self.scale * float(trial.measures[self.name].mean())
        sums = trial.statistics[self.name].sum(0)
        return self.scale * float(SCORE_OF_SUMS[self.name](sums))


def check_measured(trials: Iterable[Finished], measures: Sequence[Measure]) -> None:
    """Check that trials can be judged, by the first of `measures` or the second.

    Raises:
        InputError: a trial lacks one of these.
    """
    for trial in trials:
        has = [*trial.measures, *trial.statistics]
        for measure in measures[:2]:
            if measure.name not in has:
                raise InputError(
                    f"{trial.trial.name}: expected results named {brief(measure.name)}, found "
                    f"{brief(has)}; judge by a measure that all trials have, or remove the trial"
                )


def choose(measures: Sequence[Measure], trials: Sequence[Finished]) -> Measure:
    """Return the first measure, or the second if that is exact match and most outputs are wrong."""
    first = measures[0]
    if first.name != "exact_match" or len(measures) == 1:
        return first
    by_score: dict[str, list[float]] = {}
    for trial in trials:
        by_score.setdefault(trial.trial.score, []).append(float(trial.measures[first.name].mean()))
    best = max(float(np.mean(x)) for x in by_score.values())
    return first if best >= _FEW_RIGHT else measures[1]


def judge(
    trials: Sequence[Finished],
    measure: Measure,
    *,
    level: float = LEVEL,
    costs: Mapping[str, Mapping[str, float]] | None = None,
    sizes: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Judge trials by `measure`; two scores are compared over the seeds that both have.

    Args:
        level: 1 − the chance of calling any pair different that is not, over all pairs.
        costs: of a training step, by score: "median", "low", "high", in milliseconds.
        sizes: how many parameters the score itself has, by score.
        warnings: sentences against any recommendation.

    Returns:
        "measure", "title", "unit", "items", "level", "matters", "decimals" (of points),
        "standings" (best first), "differences" (of all pairs, in the order of the standings),
        "warnings", "recommendation", "sentences".
    """
    tables, remarks = _tables(trials, measure), []
    if _beyond(trials, measure):
        remarks.append(_contradicted(measure))
        measure = replace(measure, bounded=False, matters=None)
    if _ignores_seeds(tables):
        remarks.append(
            "Every seed gave the same results: pass the seed to all that is random in training."
        )
    standings = sorted(
        (_standing(score, table, level, measure) for score, table in tables.items()),
        key=lambda s: (-s["mean"], s["score"]),
    )
    names = [s["score"] for s in standings]
    pairs = [(a, b, _spread(tables[a], tables[b], measure.span)) for a, b in combinations(names, 2)]
    known = [i for i, (_, _, spread) in enumerate(pairs) if spread is not None]
    adjusted = dict(zip(known, holm([pairs[i][2].p for i in known]), strict=True))  # type: ignore[union-attr]
    differences = [
        _difference(a, b, spread, adjusted.get(i), level, len(known), measure)
        for i, (a, b, spread) in enumerate(pairs)
    ]
    decimals = _decimals(measure, [pairs[i][2].margin(level) for i in known])  # type: ignore[union-attr]
    for difference in differences:
        shared = tables[difference["better"]].keys() & tables[difference["worse"]].keys()
        difference["seeds"] = len(shared)
        difference["sentence"] = text.difference(difference, measure.title, level, decimals)
    verdict = {
        "measure": measure.name,
        "title": measure.title,
        "unit": "points",
        "items": max((len(x) for table in tables.values() for x in table.values()), default=0),
        "level": level,
        "matters": measure.matters,
        "decimals": decimals,
        "standings": standings,
        "differences": differences,
        "warnings": list(warnings),
    }
    conclusion = text.conclude(verdict, costs or {}, sizes or {})
    conclusion["sentences"][-1:-1] = remarks
    return verdict | conclusion


def _tables(trials: Sequence[Finished], measure: Measure) -> dict[str, dict[int, Values]]:
    """Collect each item's contribution by score and seed; trials must be of the rounds."""
    tables: dict[str, dict[int, Values]] = {}
    for trial in trials:
        tables.setdefault(trial.trial.score, {})[trial.trial.seed] = measure.of_items(trial)
    return tables


def _standing(
    score: str, table: Mapping[int, Values], level: float, measure: Measure
) -> dict[str, Any]:
    """Return the mean of a score over its seeds, with its interval."""
    spread = Spread.of(np.array([table[seed] for seed in sorted(table)]), measure.span)
    low = high = None
    if _varies(spread):
        margin = spread.margin(level)
        low, high = spread.mean - margin, spread.mean + margin
        if measure.bounded:
            low, high = max(low, 0.0), min(high, measure.span)
    return {
        "score": score,
        "mean": spread.mean,
        "low": low,
        "high": high,
        "seeds": {str(seed): float(table[seed].mean()) for seed in sorted(table)},
    }


def _spread(a: Mapping[int, Values], b: Mapping[int, Values], span: float) -> Spread | None:
    """Return the spread of a − b over the seeds of both; None if they do not show it."""
    seeds = sorted(a.keys() & b.keys())
    if len(seeds) < 2:
        return None
    spread = Spread.of(np.array([a[s] - b[s] for s in seeds]), span)
    few = spread.items == 1 and spread.seeds < text.FEWEST_NUMBERS
    return spread if _varies(spread) and not few else None


def _varies(spread: Spread) -> bool:
    """Return whether the error of a mean is known.

    One number for the whole test set has the spread of its seeds alone, and equal numbers none.
    """
    return spread.seeds > 1 and (spread.items > 1 or spread.seed > 0)


def _beyond(trials: Sequence[Finished], measure: Measure) -> bool:
    """Return whether results contradict the span of the measure."""
    of_items = [measure.of_items(x) for x in trials if measure.name in x.measures]
    by_size = [[x for x in of_items if len(x) == n] for n in {len(x) for x in of_items}]
    if measure.bounded and any(x.min() < 0 or x.max() > measure.span for x in of_items if x.size):
        return True
    return any(np.ptp(np.array(x), axis=0).max(initial=0.0) > measure.span for x in by_size)


def _contradicted(measure: Measure) -> str:
    """Return a sentence on results that contradict the span."""
    span = "between 0 and 1" if measure.bounded else f"a span of {measure.span:g} points"
    return f"Results do not fit {span}, so that no scores are called equal: say scale= and span=."


def _ignores_seeds(tables: Mapping[str, Mapping[int, Values]]) -> bool:
    """Return whether results differ between items, but not between seeds."""
    by_score = [list(table.values()) for table in tables.values()]
    same = all(len(x) > 1 and all(np.array_equal(x[0], y) for y in x) for x in by_score)
    return same and any(np.ptp(x[0]) > 0 for x in by_score)


def _decimals(measure: Measure, margins: Sequence[float]) -> int:
    """Return the decimals that show a thousandth of the span, and the smallest margin."""
    least = min([measure.span / 1000, *(margin for margin in margins if margin > 0)])
    return min(max(0, math.ceil(round(-math.log10(least), 6))), 9)


def _difference(
    a: str,
    b: str,
    spread: Spread | None,
    adjusted: float | None,
    level: float,
    pairs: int,
    measure: Measure,
) -> dict[str, Any]:
    """Return the difference of a and b as plain data.

    Score a has the larger mean over all its seeds; "better" is the one that is better over the
    seeds of both.
    """
    difference: dict[str, Any] = {
        "better": a,
        "worse": b,
        "difference": None,
        "low": None,
        "high": None,
        "p": None,
        "holm": None,
        "verdict": "undecided",
        "bound": None,
        "more_seeds": None,
        "more_items": None,
        "seeds": 0,
        "items": 0,
    }
    if spread is not None and adjusted is not None:
        if spread.mean < 0:
            difference |= {"better": b, "worse": a}
        mean, margin = abs(spread.mean), spread.margin(level)
        low, high = mean - margin, mean + margin
        if measure.bounded:
            low, high = max(low, -measure.span), min(high, measure.span)
        difference |= {
            "difference": mean,
            "low": low,
            "high": high,
            "p": spread.p,
            "holm": adjusted,
            "items": spread.items,
            "bound": high,
        }
        if adjusted < 1 - level:
            difference["verdict"] = "differs"
        elif measure.matters is not None and high <= measure.matters:
            difference["verdict"] = "equal"
        else:
            strict = 1 - (1 - level) / max(pairs, 1)
            needed = seeds_needed(spread, strict, measure.matters)
            difference["more_seeds"] = None if needed is None else max(1, needed - spread.seeds)
            if needed is None:
                difference["more_items"] = items_needed(spread, strict, measure.matters)
    return difference
