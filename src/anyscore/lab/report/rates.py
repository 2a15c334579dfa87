"""Results by learning rate: those of the trials, and of the searches before them."""

from __future__ import annotations

from statistics import mean
from typing import Any

from anyscore.lab.report.axis import Axis, linear, logarithmic, numbers
from anyscore.lab.report.curves import Curve, Figure, Panel


def rates(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean test results for each score and learning rate, where any score has several rates."""
    measure = comparison["verdict"].get("measure", "")
    found: dict[tuple[str, float | None], list[float]] = {}
    for trial in comparison["trials"]:
        value = numbers([(trial.get("test") or {}).get(measure)])
        found.setdefault((trial["score"], trial.get("learning_rate")), []).extend(value)
    if len(found) == len({score for score, _ in found}):
        return []
    usual = comparison["settings"].get("learning_rate")
    rows: list[dict[str, Any]] = [
        {
            "score": score,
            "learning_rate": usual if rate is None else rate,
            "seeds": len(values),
            "mean": mean(values) if values else None,
        }
        for (score, rate), values in found.items()
    ]
    order = {name: place for place, name in enumerate(comparison["scores"])}
    return sorted(rows, key=lambda r: (order.get(r["score"], 0), r["learning_rate"] or 0.0))


def searched(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The trainings of all searches: "score", "learning_rate", "hidden", "valid_loss", "state"."""
    return [
        {"score": score, "hidden": None, **one, "chosen": _is_part(search["chosen"], one)}
        for score, search in (comparison.get("searches") or {}).items()
        for one in sorted(search["tried"], key=lambda x: float(x["learning_rate"]))
    ]


def learning_rate(trial: dict[str, Any], comparison: dict[str, Any]) -> float | None:
    """What a trial was trained with: its own, that which a search chose, or the settings'."""
    own = trial.get("learning_rate")
    search = (comparison.get("searches") or {}).get(trial["score"])
    usual = comparison["settings"].get("learning_rate")
    found = (search["chosen"]["learning_rate"] if search else usual) if own is None else own
    return None if found is None else float(found)


def rate_figure(comparison: dict[str, Any], order: list[str], title: str) -> Figure | None:
    """The measure `title` against the learning rate; a dot at the one scores are judged by."""
    usual = comparison["settings"].get("learning_rate")
    points = [
        (r["score"], r["learning_rate"], r["mean"], r["learning_rate"] == usual)
        for r in rates(comparison)
    ]
    note = "against the learning rate; a dot at the one that the verdict is about"
    return _figure("rates", f"{title} of the test set", note, points, order)


def search_figure(comparison: dict[str, Any], order: list[str]) -> Figure | None:
    """Validation loss against the learning rate of each training; a dot at what was chosen."""
    points = [
        (r["score"], r["learning_rate"], r["valid_loss"], r["chosen"]) for r in searched(comparison)
    ]
    note = "lowest of each training, against its learning rate; a dot at what was chosen"
    return _figure("search", "Validation loss, nats per token", note, points, order)


def _figure(
    name: str, title: str, note: str, points: list[tuple[str, Any, Any, bool]], order: list[str]
) -> Figure | None:
    known = [p for p in points if numbers(p[1:2]) and p[1] > 0 and numbers(p[2:3])]
    if len({rate for _, rate, _, _ in known}) < 2:
        return None
    x = logarithmic([rate for _, rate, _, _ in known])
    y = linear([value for _, _, value, _ in known], room=0.05, at_most=4)
    panels = []
    for score in order:
        own = [p for p in known if p[0] == score]
        if own:
            panels.append(Panel(score, (_curve(own, x, y),), _label(score, own)))
    return Figure(name, title, note, x, y, tuple(panels))


def _curve(own: list[tuple[str, Any, Any, bool]], x: Axis, y: Axis) -> Curve:
    places = [(x.place(rate), 100 - y.place(value)) for _, rate, value, _ in own]
    line = " ".join(f"{10 * across:.0f},{10 * down:.0f}" for across, down in places)
    dots = [place for place, point in zip(places, own, strict=True) if point[3]]
    return Curve(line, dots[0] if dots else None)


def _label(score: str, own: list[tuple[str, Any, Any, bool]]) -> str:
    return f"{score}: " + ", ".join(f"{value:.4g} at {rate:g}" for _, rate, value, _ in own)


def _is_part(chosen: dict[str, Any], one: dict[str, Any]) -> bool:
    return all(one.get(name) == value for name, value in chosen.items())
