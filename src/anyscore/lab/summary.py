"""The outcome of a comparison in plain sentences: which score, by how much, at what cost.

Only what the numbers bear is said. Two scores differ when the difference is larger than what the
choice of test items alone would make of it (95 %); everything else is "within noise".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anyscore.lab.advice import recommendation, step_time
from anyscore.lab.pace import SAME_TIME, Pace, budget, pace
from anyscore.lab.wording import Measure, gap, listed, percent, points, quality

# Below this share of right answers, exact match says little: a hard task, such as translation.
_FEW_RIGHT = 0.05
# chrF is one number for the whole test set; for single items it spreads by about so many points.
_CHRF_SPREAD = 20.0


def summarise(metrics: dict[str, Any]) -> list[str]:
    """What ``metrics`` (the content of ``metrics.json``) says.

    The first sentence says who did best, the last, of two scores or more, which one to take.
    """
    scores = ranked(metrics)
    tested = {s["name"] for s in scores}
    asked = [*metrics["settings"]["scores"], *(s["name"] for s in metrics["scores"])]
    failed = [s["name"] for s in metrics["scores"] if "failure" in s]
    untested = [name for name in dict.fromkeys(asked) if name not in {*tested, *failed}]
    notes = _failures(metrics)
    if metrics["interrupted"] or untested:
        missing = f", without {listed(untested)}" if untested else ""
        notes.append(f"The run was interrupted: this covers what had finished{missing}.")
    if not scores:
        return [*notes, "No score has been tested, so nothing can be recommended."]
    measure = judged_by(metrics)
    if measure == "chrf":
        right = max(s["test"]["exact_match"] for s in scores)
        found = f"at most {percent(right)} match" if right else "none matches"
        notes.append(
            f"Of the test outputs {found} a reference exactly, "
            "so quality is judged by chrF (0 to 100)."
        )
    paces = paces_shown(metrics)
    if len(scores) == 1:
        first = f"{scores[0]['name']} reached {quality(scores[0], measure)}."
        if not untested:
            notes.append("With one score there is nothing to compare: give --scores more.")
        return [first, *_pace(scores, paces), *notes]
    equals = [s for s in scores[1:] if not differ(scores[0], s, metrics)]
    best, *others = _best(scores, equals, metrics)
    costs = [*_pace(scores, paces), *_cost(scores)]
    return [best, *notes, *others, *costs, recommendation(scores, equals, paces)]


def _failures(metrics: dict[str, Any]) -> list[str]:
    """Why training failed, and with which scores."""
    reasons: dict[str, list[str]] = {}
    for score in metrics["scores"]:
        if "failure" in score:
            reasons.setdefault(score["failure"], []).append(score["name"])
    return [f"Training failed with {listed(names)}: {why}." for why, names in reasons.items()]


def paces_shown(metrics: dict[str, Any]) -> dict[str, Pace]:
    """`pace`, where the scores are judged by exact match."""
    return pace(metrics) if judged_by(metrics) == "exact_match" else {}


def ranked(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The tested scores, best first; those of equal quality, fastest first."""
    measure = judged_by(metrics)
    other = "chrf" if measure == "exact_match" else "exact_match"

    def key(score: dict[str, Any]) -> tuple[float, float, float]:
        test = score["test"]
        return -test[measure], -test[other], score["step_ms"] or math.inf

    return sorted((s for s in metrics["scores"] if s["test"] is not None), key=key)


def judged_by(metrics: dict[str, Any]) -> Measure:
    """Exact match, or chrF where hardly any output is exactly right."""
    tested = [s["test"]["exact_match"] for s in metrics["scores"] if s["test"] is not None]
    return "chrf" if tested and max(tested) < _FEW_RIGHT else "exact_match"


def differ(a: dict[str, Any], b: dict[str, Any], metrics: dict[str, Any]) -> bool:
    """Whether two tested scores differ by more than the number of test items can make of it."""
    measure = judged_by(metrics)
    difference: float = abs(a["test"][measure] - b["test"][measure])
    return difference > margin(a, b, metrics)


def margin(a: dict[str, Any], b: dict[str, Any], metrics: dict[str, Any]) -> float:
    """The 95 % margin of the difference of two tested scores, in the measure they are judged by.

    For exact match it is that of two proportions, with one right and one wrong answer added to
    each (Agresti and Caffo 2000), so that 100 % is not taken for certainty. For chrF, which has no
    spread of its own, it is a rule of thumb.
    """
    items = metrics["task"]["test"]
    if judged_by(metrics) == "chrf":
        return 1.96 * _CHRF_SPREAD * math.sqrt(2 / items)
    shares = [(s["test"]["exact_match"] * items + 1) / (items + 2) for s in (a, b)]
    return 1.96 * math.sqrt(sum(p * (1 - p) for p in shares) / (items + 2))


def _best(
    scores: Sequence[dict[str, Any]], equals: Sequence[dict[str, Any]], metrics: dict[str, Any]
) -> list[str]:
    """Who is best, how far ahead of the next and of the last."""
    measure, items = judged_by(metrics), metrics["task"]["test"]
    best, second, last = scores[0], scores[1], scores[-1]
    level = [s for s in scores if s["test"][measure] == best["test"][measure]]
    if len(level) > 1:
        said = f"{listed([s['name'] for s in level])} tie at {quality(best, measure)}"
        rest = [s for s in equals if s not in level]
        second = next((s for s in scores if s not in level), best)
    else:
        ahead = gap(best, second, measure)
        said = (
            f"{best['name']} did best on the {items:,} test items with "
            f"{quality(best, measure)}, {ahead} ahead of {second['name']}"
        )
        rest = list(equals)
    if rest:
        noise = points(max(margin(best, s, metrics) for s in rest), measure)
        every = len(rest) == len(scores) - 1 > 1
        names = "all the others" if every else listed([s["name"] for s in rest])
        said += (
            f"; but {names} {'is' if len(rest) == 1 else 'are'} within noise of that "
            f"(with {items:,} items, differences under about {noise} can be chance)"
        )
    elif len(level) == 1:
        said += ", which is more than noise"
    sentences = [f"{said}."]
    if last is not second and last not in level:
        beyond = differ(best, last, metrics)
        sentences.append(
            f"{last['name']} came last with {quality(last, measure)}, "
            f"{gap(best, last, measure)} behind{'' if beyond else ', still within noise'}."
        )
    return sentences


def _pace(scores: Sequence[dict[str, Any]], paces: Mapping[str, Pace]) -> list[str]:
    """Who needed the least training to a validation quality that the best reach."""
    if not paces:
        losses = {s["name"]: [e["valid_loss"] for e in s["epochs"]] for s in scores if s["epochs"]}
        if len(losses) < 2:
            return []
        name = min(losses, key=lambda n: min(losses[n]))
        loss = f"{min(losses[name]):.3f} nats per token"
        return [f"The lowest validation loss, {loss}, is that of {name}."]
    reached = {name: found for name, found in paces.items() if found.epochs is not None}
    never = [name for name, found in paces.items() if found.epochs is None]
    order = sorted(reached, key=lambda name: budget(reached[name]))
    first, last = order[0], order[-1]
    ratio = budget(reached[last]) / budget(reached[first])
    if len(paces) == 1:
        parts = [f"after {_training(reached[first])}"]
    elif ratio < SAME_TIME:
        who = listed(order) if never else "every score"
        parts = [f"{who} after about {_training(reached[first])}"]
    else:
        parts = [
            f"{first} first, after {_training(reached[first])}",
            f"{last} last, after {_training(reached[last])}, {ratio:.2g} times as much",
        ]
    if never:
        parts.append(f"{listed(never)} never")
    share = percent(reached[first].share, 0)
    return [f"{share} of the validation items right: {'; '.join(parts)}."]


def _training(found: Pace) -> str:
    epochs = f"{found.epochs:.1f} epochs"
    return epochs if found.seconds is None else f"{found.seconds:.2g} s of training ({epochs})"


def _cost(scores: Sequence[dict[str, Any]]) -> list[str]:
    """Who is cheapest, in time per step and in parameters."""
    sentences = []
    timed = [s for s in scores if s["step_ms"]]
    if len(timed) > 1:
        fastest, slowest = min(timed, key=step_time), max(timed, key=step_time)
        level = [s["name"] for s in timed if step_time(s) <= SAME_TIME * step_time(fastest)]
        if len(level) == len(timed):
            said = f"A training step takes all of them about {step_time(fastest):.3g} ms"
        else:
            ratio = step_time(slowest) / step_time(fastest)
            said = (
                f"A training step is cheapest with {listed(level)} "
                f"(about {step_time(fastest):.3g} ms) and dearest with {slowest['name']} "
                f"({step_time(slowest):.3g} ms, {ratio:.2g} times as long)"
            )
        sentences.append(f"{said}.")
    counts = sorted({s["score_parameters"] for s in scores})
    if len(counts) > 1:
        least, most = (
            [s["name"] for s in scores if s["score_parameters"] == count]
            for count in (counts[0], counts[-1])
        )
        count = f"{counts[0]:,}" if counts[0] else "no"
        sentences.append(
            f"{listed(least)} {'has' if len(least) == 1 else 'have'} {count} parameters in the "
            f"attention, {listed(most)} {'has' if len(most) == 1 else 'have'} the most "
            f"({counts[-1]:,})."
        )
    return sentences
