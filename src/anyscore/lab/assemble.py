"""A comparison as one record of plain data: what its report is made of, and `comparison.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyscore.lab.comparison import FORMAT, Comparison, Finished, finite
from anyscore.lab.trials import Trial
from anyscore.lab.tuning import search_results
from anyscore.lab.verdict.convergence import doubts, overfitting
from anyscore.lab.verdict.judge import Measure, choose, judge
from anyscore.lab.verdict.text import example_code

COMPARISON_FILE = "comparison.json"


def assemble(
    comparison: Comparison,
    about: Mapping[str, Any],
    measures: Sequence[Measure],
    *,
    asked: Sequence[Trial] = (),
    level: float = 0.95,
    interrupted: bool = False,
) -> dict[str, Any]:
    """Everything known of the trials in a folder, and the verdict on them.

    Args:
        about: what is known beside the trials: "anyscore", "created", "command", "machine",
            "formulas", "step_ms".
        measures: what to judge by: the first, or where `judge.choose` says so the second; all of
            them are in the record.
        asked: trials that should be there; those that failed are named with their reason.
        level: of the verdict.
    """
    found = comparison.finished()
    shared = comparison.shared()
    rounds = [x for x in found if x.trial.learning_rate is None]
    order = list(dict.fromkeys(x.score for x in [*asked, *(y.trial for y in rounds)]))
    failed = {x: comparison.failure(x) for x in asked if not comparison.has(x)}
    by_name = {measure.name: measure for measure in measures}
    steps = about.get("step_ms", {})
    sizes = {
        x.trial.score: x.facts["score_parameters"] for x in rounds if "score_parameters" in x.facts
    }
    verdict = judge(
        rounds,
        choose(measures, rounds) if rounds else measures[0],
        level=level,
        costs=steps,
        sizes=sizes,
        warnings=doubts(rounds),
    )
    remark = overfitting(rounds)
    if remark:
        verdict["sentences"].insert(-1, remark)
    record: dict[str, Any] = finite(
        {
            "format": FORMAT,
            **about,
            "interrupted": interrupted,
            "task": shared.get("task", {}),
            "settings": shared.get("settings", {}),
            "scores": order,
            "seeds": sorted({x.trial.seed for x in rounds}),
            "trials": [_trial(x, by_name) for x in found]
            + [
                {**_named(trial), "failure": reason}
                for trial, reason in failed.items()
                if reason is not None
            ],
            "searches": search_results(comparison.folder),
            "examples": _examples(rounds, order),
            "verdict": verdict,
            "code": example_code(verdict["recommendation"]["score"]),
        }
    )
    return record


def _named(trial: Trial) -> dict[str, Any]:
    return {"score": trial.score, "seed": trial.seed, "learning_rate": trial.learning_rate}


def _trial(found: Finished, measures: Mapping[str, Measure]) -> dict[str, Any]:
    have = {*found.measures, *found.statistics}
    facts = {name: x for name, x in found.facts.items() if name != "examples"}
    return {
        **_named(found.trial),
        "test": {name: m.of(found) for name, m in measures.items() if name in have},
        "epochs": found.epochs,
        **facts,
    }


def _examples(found: Sequence[Finished], order: Sequence[str]) -> list[dict[str, Any]]:
    """Collect what each score's first seed said to the items that the report shows."""
    first: dict[str, Finished] = {}
    for one in sorted(found, key=lambda x: x.trial.seed):
        first.setdefault(one.trial.score, one)
    shown: list[dict[str, Any]] = []
    for score in (name for name in order if name in first):
        for number, example in enumerate(first[score].facts.get("examples", [])):
            if number == len(shown):
                item = {name: example[name] for name in ("source", "references")}
                shown.append({**item, "answers": {}})
            answer = {name: example[name] for name in ("output", "weights", "right")}
            shown[number]["answers"][score] = answer
    return shown
