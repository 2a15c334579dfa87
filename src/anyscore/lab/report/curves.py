"""Learning curves: a panel for each score, its trials in front of those of all the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Any

from anyscore.lab.report.axis import Axis, linear, losses, numbers


@dataclass(frozen=True)
class Curve:
    """The line of a trial.

    Attributes:
        points: in thousandths of the panel, as SVG has them.
        tested: place of the epoch that was tested, in percent.
        dashed: how the line is drawn.
    """

    points: str
    tested: tuple[float, float] | None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """The curves of one score."""

    score: str
    curves: tuple[Curve, ...]
    label: str


@dataclass(frozen=True)
class Figure:
    """Panels on the same axes."""

    name: str
    title: str
    note: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]

    @property
    def across(self) -> int:
        """The number of panels side by side, so that rows are about equally long."""
        rows = -(-len(self.panels) // 5)
        return -(-len(self.panels) // max(1, rows))


def figures(comparison: dict[str, Any], order: list[str]) -> list[Figure]:
    """Draw the curves for which any trial has values."""
    trials = [t for t in comparison["trials"] if t.get("epochs")]
    if not trials:
        return []
    drawn = []
    matches = list(_values(trials, "valid_exact_match"))
    if matches:
        y = linear([0.0, *(100 * m for m in matches)], at_most=4)
        y = Axis(0, 100, (0, 25, 50, 75, 100)) if y.high > 40 or not any(matches) else y
        title = "Validation items exactly right, %"
        lines = [("valid_exact_match", 100.0, False)]
        drawn.append(_figure("match", title, "after each epoch", trials, order, y, lines))
    loss = [*_values(trials, "valid_loss"), *_values(trials, "train_loss")]
    if loss:
        lines = [("valid_loss", 1.0, False), ("train_loss", 1.0, True)]
        note = "after each epoch; solid on the validation set, dashed on the training set"
        title = "Loss, nats per token"
        drawn.append(_figure("loss", title, note, trials, order, losses(loss), lines))
    return drawn


def _figure(
    name: str,
    title: str,
    note: str,
    trials: list[dict[str, Any]],
    order: list[str],
    y: Axis,
    lines: list[tuple[str, float, bool]],
) -> Figure:
    """Draw a panel for each score."""
    last = max([1, *_values(trials, "epoch")])
    steps = linear([0, last], at_most=4)
    x = Axis(min(1, last - 1), last, tuple(t for t in steps.ticks if t >= 1 and t == int(t)))
    panels = []
    for score in order:
        trials_of_score = [t for t in trials if t["score"] == score]
        curves = [
            curve
            for trial in trials_of_score
            for key, factor, dashed in lines
            if (curve := _curve(trial, key, factor, x, y, dashed)) is not None
        ]
        if curves:
            panels.append(Panel(score, tuple(curves), _label(score, trials_of_score, lines)))
    return Figure(name, title, note, x, y, tuple(panels))


def _curve(
    trial: dict[str, Any], key: str, factor: float, x: Axis, y: Axis, dashed: bool
) -> Curve | None:
    """Draw the curve of a trial; None if it has no values."""
    points = {
        epoch["epoch"]: (x.place(epoch["epoch"]), 100 - y.place(factor * epoch[key]))
        for epoch in trial["epochs"]
        if numbers([epoch.get(key)]) and numbers([epoch.get("epoch")])
    }
    if not points:
        return None
    tested = None if dashed else points.get(trial.get("best_epoch"), list(points.values())[-1])
    line = " ".join(f"{10 * across:.0f},{10 * down:.0f}" for across, down in points.values())
    return Curve(line, tested, dashed)


def _label(
    score: str, trials_of_score: list[dict[str, Any]], lines: list[tuple[str, float, bool]]
) -> str:
    """Describe a panel in words: the mean over trials after the last epoch of each."""
    words = {"valid_exact_match": "% right", "valid_loss": "validation loss"}
    words["train_loss"] = "training loss"
    parts = []
    for key, factor, _ in lines:
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
