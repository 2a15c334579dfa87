"""A forest plot, as data, has a row for each pair of scores: their difference and its interval."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anyscore.lab.forms import numbers
from anyscore.lab.phrases import at_most, counted, rounded

WORDS = {"differs": "differ", "equal": "no difference", "undecided": "undecided"}


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, ready to be drawn.

    Attributes:
        value, low, high: None where nothing could be computed.
        seeds: the number under each seed.
        verdict: "differs", "equal" or "undecided".
    """

    value: float | None
    low: float | None
    high: float | None
    seeds: tuple[float, ...]
    verdict: str = "differs"


@dataclass(frozen=True)
class Row:
    """A pair of scores: the estimate of their difference in points, adjusted p-value, a note."""

    better: str
    worse: str
    estimate: Estimate
    holm: float | None
    note: str


def standing_estimate(standing: dict[str, Any] | None) -> Estimate:
    """Return the mean of a score as an estimate."""
    record = standing or {}
    return _estimate(record, "mean", (record.get("seeds") or {}).values(), "differs")


def forest(verdict: dict[str, Any]) -> list[Row]:
    """Return the pairs of a comparison's verdict, the largest difference first."""
    seeds = {s["score"]: s.get("seeds") or {} for s in verdict.get("standings", [])}
    decimals = verdict.get("decimals", 1)
    rows = [_row(difference, seeds, decimals) for difference in verdict.get("differences", [])]
    rows.sort(key=lambda row: float("-inf") if row.estimate.value is None else row.estimate.value)
    return rows[::-1]


def _row(record: dict[str, Any], seeds: dict[str, dict[str, Any]], decimals: int) -> Row:
    """Make the row of a difference."""
    better, worse = record["better"], record["worse"]
    first, second = seeds.get(better, {}), seeds.get(worse, {})
    paired = [
        first[seed] - second[seed]
        for seed in first
        if seed in second and len(numbers((first[seed], second[seed]))) == 2
    ]
    paired = paired if len(paired) > 1 else []  # one alone is the difference itself
    estimate = _estimate(record, "difference", paired, record.get("verdict", "undecided"))
    return Row(better, worse, estimate, _number(record, "holm"), _note(record, decimals))


def _estimate(record: dict[str, Any], key: str, seeds: Iterable[object], verdict: str) -> Estimate:
    value, low, high = (_number(record, name) for name in (key, "low", "high"))
    return Estimate(value, low, high, tuple(numbers(seeds)), verdict)


def _number(record: dict[str, Any], name: str) -> float | None:
    return next(iter(numbers([record.get(name)])), None)


def _note(record: dict[str, Any], decimals: int) -> str:
    """Name the difference that "equal" rules out, or the seeds or items for "undecided"."""
    if record.get("bound") is not None and record.get("verdict") == "equal":
        return f"larger than {at_most(record['bound'], decimals)}"
    if record.get("verdict") != "undecided":
        return ""
    if record.get("more_seeds"):
        return f"about {counted(record['more_seeds'], 'more seed')} would decide"
    if record.get("more_items"):
        return f"about {rounded(record['more_items'])} test items in all would decide"
    return ""
