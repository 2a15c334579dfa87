"""The outcome of a comparison in plain sentences: which score, by how much, at what cost.

Only what the numbers bear is said. Two scores differ when the difference is larger than what the
choice of test items alone would make of it (95 %); everything else is "within noise".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from anyscore.lab.pace import Pace, pace

Measure = Literal["exact_match", "chrf"]

# Below this share of right answers, exact match says little: a hard task, such as translation.
_FEW_RIGHT = 0.05
# chrF is one number for the whole test set; for single items it spreads by about so many points.
_CHRF_SPREAD = 20.0
# Step times closer than this are called equal: a busy machine moves them as much.
_SAME_TIME = 1.05


def summarise(metrics: dict[str, Any]) -> list[str]:
    """What ``metrics`` (the content of ``metrics.json``) says.

    The first sentence says who did best, the last, of two scores or more, which one to take.
    """
    scores = ranked(metrics)
    tested = {s["name"] for s in scores}
    asked = [*metrics["settings"]["scores"], *(s["name"] for s in metrics["scores"])]
    failed = [s["name"] for s in metrics["scores"] if "failure" in s]
    untested = [name for name in dict.fromkeys(asked) if name not in {*tested, *failed}]
    notes = [f"Training failed with {_listed(failed)}."] if failed else []
    if metrics["interrupted"] or untested:
        missing = f", without {_listed(untested)}" if untested else ""
        notes.append(f"The run was interrupted: this covers what had finished{missing}.")
    if not scores:
        return [*notes, "No score has been tested yet, so nothing can be recommended."]
    measure = judged_by(metrics)
    if measure == "chrf":
        right = max(s["test"]["exact_match"] for s in scores)
        found = f"at most {_percent(right)} match" if right else "none matches"
        notes.append(
            f"Of the test outputs {found} a reference exactly, "
            "so chrF (0 to 100) is what tells the scores apart."
        )
    if len(scores) == 1:
        first = f"{scores[0]['name']} reached {_quality(scores[0], measure)}."
        if not untested:
            notes.append("With one score there is nothing to compare: give --scores more.")
        return [first, *_pace(metrics, scores, measure), *notes]
    equals = [s for s in scores[1:] if not differ(scores[0], s, metrics)]
    best, *others = _best(scores, equals, metrics)
    costs = [*_pace(metrics, scores, measure), *_cost(scores)]
    return [best, *notes, *others, *costs, _recommendation(scores, equals)]


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
        said = f"{_listed([s['name'] for s in level])} tie at {_quality(best, measure)}"
        rest = [s for s in equals if s not in level]
        second = next((s for s in scores if s not in level), best)
    else:
        ahead = _gap(best, second, measure)
        said = (
            f"{best['name']} did best on the {items:,} test items with "
            f"{_quality(best, measure)}, {ahead} ahead of {second['name']}"
        )
        rest = list(equals)
    if rest:
        noise = _points(margin(best, second, metrics), measure)
        names = _listed([s["name"] for s in rest])
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
            f"{last['name']} came last with {_quality(last, measure)}, "
            f"{_gap(best, last, measure)} behind{'' if beyond else ', still within noise'}."
        )
    return sentences


def _pace(metrics: dict[str, Any], scores: Sequence[dict[str, Any]], measure: Measure) -> list[str]:
    """Who needed the least training to a validation quality that the best reach."""
    curves = {s["name"]: s["epochs"] for s in scores if s["epochs"]}
    if not curves:
        return []
    if measure == "chrf":
        lowest = {name: min(e["valid_loss"] for e in epochs) for name, epochs in curves.items()}
        name = min(lowest, key=lambda n: lowest[n])
        loss = f"{lowest[name]:.3f} nats per token"
        return (
            [f"The lowest validation loss, {loss}, is that of {name}."] if len(curves) > 1 else []
        )
    paces = pace(metrics)
    reached = {name: found for name, found in paces.items() if found.epochs is not None}
    never = [name for name, found in paces.items() if found.epochs is None]
    if not reached:
        return []
    order = sorted(reached, key=lambda name: _budget(reached[name]))
    first, last = order[0], order[-1]
    ratio = _budget(reached[last]) / _budget(reached[first])
    if len(paces) == 1:
        parts = [f"after {_training(reached[first])}"]
    elif ratio < _SAME_TIME:
        who = _listed(order) if never else "every score"
        parts = [f"{who} after about {_training(reached[first])}"]
    else:
        parts = [
            f"{first} first, after {_training(reached[first])}",
            f"{last} last, after {_training(reached[last])}, {ratio:.2g} times as much",
        ]
    if never:
        parts.append(f"{_listed(never)} never")
    share = _percent(reached[first].share, 0)
    return [f"{share} of the validation items right: {'; '.join(parts)}."]


def _budget(found: Pace) -> float:
    """What a pace is compared by: the time, or where that is not known the epochs."""
    return found.seconds or found.epochs or math.inf


def _training(found: Pace) -> str:
    epochs = f"{found.epochs:.1f} epochs"
    return epochs if found.seconds is None else f"{found.seconds:.2g} s of training ({epochs})"


def _cost(scores: Sequence[dict[str, Any]]) -> list[str]:
    """Who is cheapest, in time per step and in parameters."""
    sentences = []
    timed = [s for s in scores if s["step_ms"]]
    if len(timed) > 1:
        fastest, slowest = min(timed, key=_step), max(timed, key=_step)
        level = [s["name"] for s in timed if _step(s) <= _SAME_TIME * _step(fastest)]
        if len(level) == len(timed):
            said = f"A training step takes all of them about {_step(fastest):.3g} ms"
        else:
            said = (
                f"A training step is cheapest with {_listed(level)} "
                f"(about {_step(fastest):.3g} ms) and dearest with {slowest['name']} "
                f"({_step(slowest):.3g} ms, {_step(slowest) / _step(fastest):.2g} times as long)"
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
            f"{_listed(least)} {'has' if len(least) == 1 else 'have'} {count} parameters in the "
            f"attention, {_listed(most)} {'has' if len(most) == 1 else 'have'} the most "
            f"({counts[-1]:,})."
        )
    return sentences


def _recommendation(scores: Sequence[dict[str, Any]], equals: Sequence[dict[str, Any]]) -> str:
    """The cheapest of those that are not worse than the best."""
    best = scores[0]
    candidates = [best, *equals]
    cheapest = min(_step(s) for s in candidates)
    choice = min(
        (s for s in candidates if _step(s) <= _SAME_TIME * cheapest),
        key=lambda s: (s["score_parameters"], scores.index(s)),
    )
    caveat = "This is one seed; before much depends on it, repeat with another --seed."
    if len(candidates) == len(scores):
        return (
            f"Recommendation: these data do not tell the scores apart, so take {choice['name']}, "
            f"the cheapest. {caveat}"
        )
    if choice is best:
        reason = (
            "better than every other by more than noise"
            if not equals
            else "nothing as good is cheaper"
        )
        fastest = min(scores, key=_step)
        if _SAME_TIME * _step(fastest) < _step(best) < math.inf:
            ratio = _step(best) / _step(fastest)
            reason += f", though a step takes {ratio:.2g} times as long as with {fastest['name']}"
    else:
        reason = f"within noise of {best['name']}, and the cheapest of those"
    return f"Recommendation: take {choice['name']}; {reason}. {caveat}"


def _step(score: dict[str, Any]) -> float:
    return float(score["step_ms"] or math.inf)


def _quality(score: dict[str, Any], measure: Measure) -> str:
    test = score["test"]
    if measure == "chrf":
        return f"chrF {test['chrf']:.1f}"
    return f"{_percent(test['exact_match'])} exact match (chrF {test['chrf']:.1f})"


def _gap(better: dict[str, Any], worse: dict[str, Any], measure: Measure) -> str:
    return _points(better["test"][measure] - worse["test"][measure], measure)


def _points(difference: float, measure: Measure) -> str:
    points = difference * 100 if measure == "exact_match" else difference
    return "less than 0.1 points" if points < 0.05 else f"{points:.1f} points"


def _percent(share: float, digits: int = 1) -> str:
    # Never round up to a perfect result.
    if share < 1 and round(share * 100, digits) == 100:
        return "just under 100 %"
    return f"{share * 100:.{digits}f} %"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
