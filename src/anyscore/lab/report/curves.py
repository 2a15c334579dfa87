"""Charts with a panel for each score, as data; learning curves become such charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from anyscore.lab.forms import numbers

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """An axis: its ends; whether it goes by logarithms; whether only whole numbers stand on it."""

    low: float
    high: float
    log: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Line:
    """The line of a trial; `tested` is the point of the epoch that was tested."""

    points: tuple[Point, ...]
    tested: Point | None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """The lines of one score, and the same in words."""

    score: str
    lines: tuple[Line, ...]
    label: str


@dataclass(frozen=True)
class Chart:
    """Panels on the same axes."""

    name: str
    title: str
    note: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]


def linear(values: Iterable[object], *, room: float = 0.0) -> Axis:
    """Make an axis over the numbers among `values`; `room` of its length is added at both ends."""
    known = numbers(values) or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-12):
        low, high = low - 1, high + 1
    return Axis(low - room * (high - low), high + room * (high - low))


def logarithmic(values: Iterable[object]) -> Axis:
    """Make an axis by logarithms over the positive values, a tenth longer at both ends."""
    positive = [x for x in numbers(values) if x > 0] or [1.0]
    return Axis(min(positive) / 1.1, max(positive) * 1.1, log=True)


def learning_curves(comparison: dict[str, Any], order: Sequence[str]) -> list[Chart]:
    """Return the charts for which any trial has values."""
    trials = [t for t in comparison["trials"] if t.get("epochs")]
    last = max([1, *_values(trials, "epoch")])
    x = Axis(1, last, whole=True) if last > 1 else Axis(0.5, 1.5, whole=True)
    charts = []
    if matches := list(_values(trials, "valid_exact_match")):
        y = linear([0.0, *(100 * m for m in matches)])
        y = Axis(0, 100) if y.high > 40 or not any(matches) else y
        title = "Validation items exactly right, %"
        panels = _panels(trials, order, [("valid_exact_match", 100.0, False)])
        charts.append(Chart("match", title, "after each epoch", x, y, panels))
    if losses := [*_values(trials, "valid_loss"), *_values(trials, "train_loss")]:
        by_logarithms = min(losses) > 0 and max(losses) > 4 * min(losses)
        y = logarithmic(losses) if by_logarithms else linear([0.0, *losses])
        note = "after each epoch; solid on the validation set, dashed on the training set"
        panels = _panels(trials, order, [("valid_loss", 1.0, False), ("train_loss", 1.0, True)])
        charts.append(Chart("loss", "Loss, nats per token", note, x, y, panels))
    return charts


def _panels(
    trials: list[dict[str, Any]], order: Sequence[str], kinds: list[tuple[str, float, bool]]
) -> tuple[Panel, ...]:
    """Return a panel for each score with values; a kind of line is (key, factor, dashed)."""
    panels = []
    for score in order:
        trials_of_score = [t for t in trials if t["score"] == score]
        lines = [
            line
            for trial in trials_of_score
            for key, factor, dashed in kinds
            if (line := _line(trial, key, factor, dashed)) is not None
        ]
        if lines:
            panels.append(Panel(score, tuple(lines), _label(score, trials_of_score, kinds)))
    return tuple(panels)


def _line(trial: dict[str, Any], key: str, factor: float, dashed: bool) -> Line | None:
    """Return the line of a trial; None if it has no values."""
    points = {
        epoch["epoch"]: (float(epoch["epoch"]), factor * epoch[key])
        for epoch in trial["epochs"]
        if len(numbers([epoch.get("epoch"), epoch.get(key)])) == 2
    }
    if not points:
        return None
    tested = None if dashed else points.get(trial.get("best_epoch"), list(points.values())[-1])
    return Line(tuple(points.values()), tested, dashed)


def _label(
    score: str, trials_of_score: list[dict[str, Any]], kinds: list[tuple[str, float, bool]]
) -> str:
    """Describe a panel in words: the mean over trials after the last epoch of each."""
    words = {"valid_exact_match": "% right", "valid_loss": "validation loss"}
    words["train_loss"] = "training loss"
    parts = []
    for key, factor, _ in kinds:
        ends = list(_values([{"epochs": t["epochs"][-1:]} for t in trials_of_score], key))
        if ends:
            value = factor * mean(ends)
            decimals = 1 if factor == 100 else 3
            parts.append(f"{value:.{decimals}f} {words[key]}")
    return f"{score}: {', '.join(parts) or 'no value'} after the last epoch, mean of its trials"


def _values(trials: list[dict[str, Any]], key: str) -> Iterator[float]:
    """Yield the values of all epochs of all trials."""
    for trial in trials:
        yield from numbers(epoch.get(key) for epoch in trial["epochs"])
