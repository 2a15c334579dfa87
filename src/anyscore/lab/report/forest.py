"""The forest plot: each pair of scores as a line, its difference as a mark within its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyscore.lab.phrases import counted
from anyscore.lab.report.axis import Axis, linear, numbers

WORDS = {"differs": "differ", "equal": "no difference", "undecided": "undecided"}


@dataclass(frozen=True)
class Row:
    """A pair of scores.

    Attributes:
        better, worse: names of the scores.
        difference, low, high: in points; None where nothing could be computed.
        seeds: the difference of each seed of both.
        holm: adjusted p-value.
        verdict: "differs", "equal" or "undecided".
        note: on the verdict.
    """

    better: str
    worse: str
    difference: float | None
    low: float | None
    high: float | None
    seeds: tuple[float, ...]
    holm: float | None
    verdict: str
    note: str


@dataclass(frozen=True)
class Forest:
    """A forest plot.

    Attributes:
        rows: largest difference first.
        axis: shared by the rows; zero is always on it.
    """

    rows: tuple[Row, ...]
    axis: Axis


def forest(verdict: dict[str, Any]) -> Forest | None:
    """Make the forest plot of a comparison's verdict; None where there is no pair to compare."""
    seeds = {s["score"]: s.get("seeds") or {} for s in verdict.get("standings", [])}
    rows = [_row(difference, seeds) for difference in verdict.get("differences", [])]
    if not rows:
        return None
    rows.sort(key=lambda row: float("-inf") if row.difference is None else row.difference)
    values = [v for row in rows for v in (row.low, row.high, row.difference, *row.seeds)]
    return Forest(tuple(reversed(rows)), linear([0.0, *values], room=0.04))


def _row(record: dict[str, Any], seeds: dict[str, dict[str, Any]]) -> Row:
    """Make the row of a difference."""
    better, worse = record["better"], record["worse"]
    first, second = seeds.get(better, {}), seeds.get(worse, {})
    paired = [
        a - b
        for seed in first
        if seed in second and len(numbers((first[seed], second[seed]))) == 2
        for a, b in [(first[seed], second[seed])]
    ]
    paired = paired if len(paired) > 1 else []  # one alone is the difference itself
    difference, low, high, holm = (
        next(iter(numbers([record.get(name)])), None)
        for name in ("difference", "low", "high", "holm")
    )
    verdict = record.get("verdict", "undecided")
    return Row(better, worse, difference, low, high, tuple(paired), holm, verdict, _note(record))


def _note(record: dict[str, Any]) -> str:
    """Say what an "equal" rules out, or what would settle an "undecided"."""
    if record.get("bound") is not None and record.get("verdict") == "equal":
        return f"larger than {record['bound']:.1f}"
    if record.get("verdict") != "undecided":
        return ""
    wanted = [
        counted(record[key], noun)
        for key, noun in (("more_seeds", "more seed"), ("more_items", "more test item"))
        if record.get(key)
    ]
    return f"about {' or '.join(wanted)} would decide" if wanted else ""
