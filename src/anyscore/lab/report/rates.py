"""Results of trials and of searches are collected by learning rate."""

from __future__ import annotations

from statistics import mean
from typing import Any

from anyscore.lab.forms import numbers
from anyscore.lab.report.curves import Chart, Line, Panel, linear, logarithmic


def rates(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return mean test results by score and learning rate, if any score has several rates."""
    measure = comparison["verdict"].get("measure", "")
    results: dict[tuple[str, float | None], list[float]] = {}
    for trial in comparison["trials"]:
        value = numbers([(trial.get("test") or {}).get(measure)])
        results.setdefault((trial["score"], trial.get("learning_rate")), []).extend(value)
    if len(results) == len({score for score, _ in results}):
        return []
    usual = _usual(comparison)
    rows: list[dict[str, Any]] = [
        {
            "score": score,
            "learning_rate": usual if rate is None else rate,
            "seeds": len(values),
            "mean": mean(values) if values else None,
        }
        for (score, rate), values in results.items()
    ]
    order = {name: place for place, name in enumerate(comparison["scores"])}
    return sorted(rows, key=lambda r: (order.get(r["score"], 0), r["learning_rate"] or 0.0))


def searched(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the trainings of all searches, each with its score.

    Keys: "score", "learning_rate", "hidden", "valid_loss", "state", "failure", "chosen".
    """
    return [
        {"score": score, "hidden": None, **training, "chosen": _is_part(search["chosen"], training)}
        for score, search in (comparison.get("searches") or {}).items()
        for training in sorted(search["tried"], key=lambda x: float(x["learning_rate"]))
    ]


def learning_rate(trial: dict[str, Any], comparison: dict[str, Any]) -> float | None:
    """Return the learning rate of a trial: its own, a search's choice, or the settings'."""
    trial_rate = trial.get("learning_rate")
    search = (comparison.get("searches") or {}).get(trial["score"])
    if trial_rate is not None:
        return float(trial_rate)
    return float(search["chosen"]["learning_rate"]) if search else _usual(comparison)


def _usual(comparison: dict[str, Any]) -> float | None:
    """Return the learning rate of the settings; None if custom settings have no such number."""
    return next(iter(numbers([comparison["settings"].get("learning_rate")])), None)


def rate_chart(comparison: dict[str, Any], order: list[str], title: str) -> Chart | None:
    """Draw the measure `title` against the learning rate; a dot at the settings' rate."""
    usual = _usual(comparison)
    points = [
        (row["score"], row["learning_rate"], row["mean"], row["learning_rate"] == usual)
        for row in rates(comparison)
    ]
    note = "by learning rate; a dot marks the learning rate of the verdict"
    return _chart("rates", f"{title} of the test set", note, points, order)


def search_chart(comparison: dict[str, Any], order: list[str]) -> Chart | None:
    """Draw the validation loss against the learning rate of each training; a dot at the choice."""
    points = [
        (row["score"], row["learning_rate"], row["valid_loss"], row["chosen"])
        for row in searched(comparison)
    ]
    note = "lowest of each training, by learning rate; a dot marks the choice"
    return _chart("search", "Validation loss, nats per token", note, points, order)


def _chart(
    name: str, title: str, note: str, points: list[tuple[str, Any, Any, bool]], order: list[str]
) -> Chart | None:
    """Draw a panel for each score; None if there are fewer than two rates."""
    known = [
        point for point in points if numbers(point[1:2]) and point[1] > 0 and numbers(point[2:3])
    ]
    if len({rate for _, rate, _, _ in known}) < 2:
        return None
    x = logarithmic([rate for _, rate, _, _ in known])
    y = linear([value for _, _, value, _ in known], room=0.05)
    panels = []
    for score in order:
        points_of_score = [point for point in known if point[0] == score]
        line = tuple((rate, value) for _, rate, value, _ in points_of_score)
        dots = [(rate, value) for _, rate, value, dot in points_of_score if dot]
        if line:
            lines = (Line(line, dots[0] if dots else None),)
            panels.append(Panel(score, lines, _label(score, points_of_score)))
    return Chart(name, title, note, x, y, tuple(panels))


def _label(score: str, points: list[tuple[str, Any, Any, bool]]) -> str:
    return f"{score}: " + ", ".join(f"{value:.4g} at {rate:g}" for _, rate, value, _ in points)


def _is_part(chosen: dict[str, Any], training: dict[str, Any]) -> bool:
    """Return whether a training had the chosen numbers."""
    return all(training.get(name) == value for name, value in chosen.items())
