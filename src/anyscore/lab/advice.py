"""Which score to take: the best, or of those as good the one that costs least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anyscore.lab.pace import SAME_TIME, Pace, budget
from anyscore.lab.wording import percent

# Training needed, measured once with one seed, tells two scores apart from this ratio on.
_TELLING = 1.25
_CAVEAT = "This is one seed; before much depends on it, repeat with another --seed."


def recommendation(
    scores: Sequence[dict[str, Any]], equals: Sequence[dict[str, Any]], paces: Mapping[str, Pace]
) -> str:
    """What to take of the tested `scores`, best first; `equals` are within noise of the best.

    Of those that are equally good it is the one that needs the least training where `paces` tell
    them apart, else the one with the cheapest step.
    """
    best = scores[0]
    candidates = [best, *equals]
    order = _by_training(candidates, paces)
    if order:
        cost = {s["name"]: budget(paces[s["name"]]) for s in order}
    else:
        cost = {s["name"]: step_time(s) for s in candidates}
    cheapest = min(cost.values())
    choice = min(
        (s for s in candidates if cost[s["name"]] <= SAME_TIME * cheapest),
        key=lambda s: (s["score_parameters"], scores.index(s)),
    )
    if len(candidates) == len(scores):
        if not order:
            reason = f"these data do not tell the scores apart, so take {choice['name']}, "
            return f"Recommendation: {reason}the cheapest. {_CAVEAT}"
        reason = "final quality does not tell the scores apart, but the training needed does: "
        reason += _training(choice, order[-1], paces)
        return f"Recommendation: take {choice['name']}; {reason}{_step(choice, scores)}. {_CAVEAT}"
    if not equals:
        reason = f"better than every other by more than noise{_step(choice, scores)}"
    elif order:
        near = "" if choice is best else f"within noise of {best['name']}, and "
        reason = f"{near}the quickest to train of those as good: "
        reason += _training(choice, order[-1], paces) + _step(choice, scores)
    elif choice is best:
        reason = f"nothing as good is cheaper{_step(choice, scores)}"
    else:
        reason = f"within noise of {best['name']}, and the cheapest of those"
    return f"Recommendation: take {choice['name']}; {reason}. {_CAVEAT}"


def step_time(score: dict[str, Any]) -> float:
    """Milliseconds of a training step, infinite where not known."""
    return float(score["step_ms"] or math.inf)


def _by_training(
    candidates: Sequence[dict[str, Any]], paces: Mapping[str, Pace]
) -> list[dict[str, Any]]:
    """The candidates by the training they need, or none where that does not tell them apart."""
    if any(s["name"] not in paces for s in candidates):
        return []
    order = sorted(candidates, key=lambda s: budget(paces[s["name"]]))
    least, most = (budget(paces[s["name"]]) for s in (order[0], order[-1]))
    return order if most > _TELLING * least else []


def _training(choice: dict[str, Any], last: dict[str, Any], paces: Mapping[str, Pace]) -> str:
    """The training that the choice needs, and how much more the last does."""
    found, other = paces[choice["name"]], paces[last["name"]]
    said = f"{_needed(found)} to {percent(found.share, 0)} with {choice['name']}, "
    if other.epochs is None:
        return f"{said}while {last['name']} never got there"
    ratio = budget(other) / budget(found)
    return f"{said}{_needed(other)} with {last['name']}, {ratio:.2g} times as much"


def _needed(found: Pace) -> str:
    return f"{found.epochs:.1f} epochs" if found.seconds is None else f"{found.seconds:.2g} s"


def _step(choice: dict[str, Any], scores: Sequence[dict[str, Any]]) -> str:
    """A warning where a step is dearer than it has to be."""
    fastest = min(scores, key=step_time)
    if not SAME_TIME * step_time(fastest) < step_time(choice) < math.inf:
        return ""
    ratio = step_time(choice) / step_time(fastest)
    return f", though a step takes {ratio:.2g} times as long as with {fastest['name']}"
