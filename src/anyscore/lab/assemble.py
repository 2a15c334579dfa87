"""A comparison as one record of plain data, the content of `comparison.json` and of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyscore.lab.comparison import Comparison
from anyscore.lab.finished import Finished
from anyscore.lab.records import FORMAT, finite
from anyscore.lab.trials import Trial
from anyscore.lab.tuning import search_results
from anyscore.lab.verdict.convergence import ceiling, convergence_warnings, overfitting
from anyscore.lab.verdict.judge import Measure, check_measured, choose, judge
from anyscore.lab.verdict.text import example_code

COMPARISON_FILE = "comparison.json"


def assemble(
    comparison: Comparison,
    about: Mapping[str, Any],
    measures: Sequence[Measure],
    *,
    planned: Sequence[Trial] = (),
    level: float = 0.95,
    interrupted: bool = False,
) -> dict[str, Any]:
    """Collect the results of the trials in a folder, and the verdict on them.

    Args:
        comparison: the folder.
        about: facts beside the trials: "anyscore", "created", "command", "machine", "formulas",
            "step_ms", "out_of_reach".
        measures: all are in the record. The first is judged, or the second where `judge.choose`
            takes it.
        planned: trials that should be in the folder; failed ones are named with their reason.
        level: of the verdict.
        interrupted: whether the comparison was stopped early.

    Returns:
        The record: plain data without NaN and infinities.

    Raises:
        InputError: a trial or a search in the folder is damaged.
    """
    finished = comparison.finished()
    check_measured(finished, measures)
    shared = comparison.shared()
    rounds = [trial for trial in finished if trial.trial.learning_rate is None]
    order = list(
        dict.fromkeys(trial.score for trial in [*planned, *(other.trial for other in rounds)])
    )
    failed = {trial: comparison.failure(trial) for trial in planned if not comparison.has(trial)}
    by_name = {measure.name: measure for measure in measures}
    steps = about.get("step_ms", {})
    sizes = {
        trial.trial.score: trial.facts["score_parameters"]
        for trial in rounds
        if trial.facts.get("score_parameters") is not None
    }
    verdict = judge(
        rounds,
        choose(measures, rounds) if rounds else measures[0],
        level=level,
        costs=steps,
        sizes=sizes,
        warnings=convergence_warnings(rounds),
    )
    overfits = None if verdict["warnings"] else overfitting(rounds)
    remarks = filter(
        None, (ceiling(about.get("out_of_reach", 0), shared.get("task", {})), overfits)
    )
    verdict["sentences"][-1:-1] = remarks
    record: dict[str, Any] = finite(
        {
            "format": FORMAT,
            **about,
            "interrupted": interrupted,
            "task": shared.get("task", {}),
            "settings": shared.get("settings", {}),
            "scores": order,
            "seeds": sorted({trial.trial.seed for trial in rounds}),
            "trials": [_trial(trial, by_name) for trial in finished]
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


def _trial(trial: Finished, measures: Mapping[str, Measure]) -> dict[str, Any]:
    known = {*trial.measures, *trial.statistics}
    record = {
        **_named(trial.trial),
        "test": {name: measure.of(trial) for name, measure in measures.items() if name in known},
        "epochs": trial.epochs,
    }
    taken = {*record, "examples", "failure"}
    return record | {name: x for name, x in trial.facts.items() if name not in taken}


def _examples(trials: Sequence[Finished], order: Sequence[str]) -> list[dict[str, Any]]:
    """Collect the answers of each score's first seed to the items that the report shows."""
    by_score: dict[str, Finished] = {}
    for trial in sorted(trials, key=lambda x: x.trial.seed):
        by_score.setdefault(trial.trial.score, trial)
    shown: list[dict[str, Any]] = []
    for score in (name for name in order if name in by_score):
        for number, example in enumerate(by_score[score].facts.get("examples", [])):
            if number == len(shown):
                item = {name: example[name] for name in ("source", "references")}
                shown.append({**item, "answers": {}})
            answer = {name: example[name] for name in ("output", "weights", "right")}
            shown[number]["answers"][score] = answer
    return shown
