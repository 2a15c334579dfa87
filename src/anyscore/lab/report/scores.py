"""The table of scores has each score's results and cost, over the seeds of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from anyscore.lab.forms import numbers
from anyscore.lab.report.rates import learning_rate

TITLES = {"exact_match": ("Exact match", "%"), "chrf": ("chrF", "0–100"), "bleu": ("BLEU", "0–100")}
COSTS = ("peak_memory_mib", "parameters", "score_parameters")


@dataclass
class Line:
    """A score in the table; values that were not measured are None or left out."""

    name: str
    formula: str
    standing: dict[str, Any] | None
    learning_rate: float | None
    measures: dict[str, float] = field(default_factory=dict)
    step_ms: dict[str, Any] | None = None
    costs: dict[str, float] = field(default_factory=dict)
    failures: int = 0


def lines(comparison: dict[str, Any]) -> list[Line]:
    """Return the scores of a comparison, best first; scores without a finished trial last."""
    standings = {s["score"]: s for s in comparison["verdict"].get("standings", [])}
    rest = [name for name in comparison["scores"] if name not in standings]
    return [_line(name, standings.get(name), comparison) for name in [*standings, *rest]]


def judged(verdict: dict[str, Any]) -> tuple[str, str]:
    """Return title and unit of the measure judged by, as they head a column."""
    title = verdict.get("title", "mean")
    usual = (title[:1].upper() + title[1:], "0–100")
    return TITLES.get(verdict.get("measure", ""), usual)


def measures(lines: Sequence[Line], by: str) -> list[tuple[str, str, str]]:
    """Return the measures other than the one judged by, with title and unit.

    A measure that is zero for every score is left out. BLEU counts runs of four words, so it is
    zero for single words.
    """
    names = dict.fromkeys(name for line in lines for name in line.measures)
    return [
        (name, *TITLES.get(name, (name.replace("_", " "), "")))
        for name in names
        if name != by and any(line.measures.get(name) for line in lines)
    ]


def bests(lines: Sequence[Line]) -> dict[str, float]:
    """Return the best value of each column in which at least two scores differ."""
    best = {}
    for name in dict.fromkeys(name for line in lines for name in line.measures):
        best[name] = [line.measures[name] for line in lines if name in line.measures]
    columns = {name: (max, values) for name, values in best.items()}
    for name in COSTS:
        columns[name] = (min, [line.costs[name] for line in lines if name in line.costs])
    times = [line.step_ms["median"] for line in lines if line.step_ms]
    columns["step_ms"] = (min, times)
    return {
        name: choose(values) for name, (choose, values) in columns.items() if len(set(values)) > 1
    }


def main_trials(name: str, comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the finished trials of a score at the learning rate that has most of them."""
    by_rate: dict[float | None, list[dict[str, Any]]] = {}
    for trial in comparison["trials"]:
        if trial["score"] == name and trial.get("test"):
            by_rate.setdefault(trial.get("learning_rate"), []).append(trial)
    return max(by_rate.values(), key=len, default=[])


def _line(name: str, standing: dict[str, Any] | None, comparison: dict[str, Any]) -> Line:
    """Collect the line of a score."""
    trials = main_trials(name, comparison)
    line = Line(name, comparison.get("formulas", {}).get(name) or "", standing, None)
    line.failures = sum(t["score"] == name and "failure" in t for t in comparison["trials"])
    time = comparison.get("step_ms", {}).get(name)
    line.step_ms = time if time and numbers([time.get("median")]) else None
    if trials:
        own_rate = trials[0].get("learning_rate") is not None or comparison.get("searches")
        line.learning_rate = learning_rate(trials[0], comparison) if own_rate else None
        for measure in dict.fromkeys(key for trial in trials for key in trial["test"]):
            if values := numbers(trial["test"].get(measure) for trial in trials):
                line.measures[measure] = mean(values)
        for cost in COSTS:
            if values := numbers(trial.get(cost) for trial in trials):
                middle = median(values)
                line.costs[cost] = middle if cost == "peak_memory_mib" else round(middle)
    return line
