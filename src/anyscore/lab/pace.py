"""How much training each score needs to reach a given quality."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

# Times closer than this are called equal: a busy machine moves them as much.
SAME_TIME = 1.05
# Where even the best gets fewer right than this, the moment of reaching a share is mostly chance.
_FEWEST = 0.2


@dataclass(frozen=True)
class Pace:
    """When a score first got `share` of the validation items right; None if it never did.

    epochs: a fraction of one is taken from the straight line between two measurements. seconds: of
    training steps alone; None where the time of a step is not known.
    """

    share: float
    epochs: float | None
    seconds: float | None


def pace(metrics: dict[str, Any]) -> dict[str, Pace]:
    """The pace of each score that was tested, to a share that the best of them reach.

    The share is 90 %, or, where no score gets there, five points less than the highest. Nothing is
    said where the highest is below 20 %.
    """
    curves = {
        score["name"]: [epoch["valid_exact_match"] for epoch in score["epochs"]]
        for score in metrics["scores"]
        if score["epochs"] and score["test"] is not None
    }
    peak = max((share for curve in curves.values() for share in curve), default=0.0)
    if peak < _FEWEST:
        return {}
    goal = 0.9 if peak >= 0.9 else math.floor(round(100 * peak - 5, 6)) / 100
    steps = math.ceil(metrics["task"]["train"] / metrics["settings"]["batch_size"])
    milliseconds = {score["name"]: score["step_ms"] for score in metrics["scores"]}
    found = {}
    for name, curve in curves.items():
        epochs = _crossing(curve, goal)
        known = epochs is not None and milliseconds[name]
        seconds = epochs * steps * milliseconds[name] / 1000 if epochs and known else None
        found[name] = Pace(goal, epochs, seconds)
    return found


def budget(found: Pace) -> float:
    """What a pace is compared by: the time, or where that is not known the epochs."""
    return found.seconds or found.epochs or math.inf


def _crossing(curve: list[float], goal: float) -> float | None:
    """The epoch at which the curve, 0 before the first one, reaches the goal."""
    before = 0.0
    for number, share in enumerate(curve):
        if share >= goal:
            return number + (goal - before) / (share - before)
        before = share
    return None
