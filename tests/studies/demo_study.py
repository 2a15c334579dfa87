"""Does the demonstration decide? The study repeats it with ten base seeds, beside other candidates.

python tests/studies/demo_study.py train FOLDER --jobs 2     (half an hour on two cores)
python tests/studies/demo_study.py page FOLDER > docs/demo_study.md

A candidate decides with a base seed if its verdict settles at least one pair and recommends a
score. Comparisons of different base seeds share no trial.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import study_trials
from study_trials import EXACT

from anyscore.lab.comparison import Comparison, Finished
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.task import Task, load_task
from anyscore.lab.train.settings import Settings
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.convergence import convergence_warnings
from anyscore.lab.verdict.judge import judge


def sorting() -> Task:
    return load_task(DataOptions(), "pointer")


def dates(limit: int | None = None) -> Task:
    return load_task(DataOptions(limit=limit))


@dataclass(frozen=True)
class Candidate:
    """A demonstration: its task and scores, the seeds of a comparison, settings of the model.

    bases: how many comparisons are made, each with seeds of its own.
    """

    task: Callable[[], Task]
    scores: tuple[str, ...]
    seeds: int
    settings: dict[str, Any]
    bases: int = 10


POINTER = {"model": "pointer", "hidden": 32, "epochs": 19}
FIVE = "scaled_dot", "bilinear", "gaussian", "additive", "gatv2"

CANDIDATES = {
    "sorting by a pointer network, width 32": Candidate(
        sorting, ("scaled_dot", "gaussian", "additive"), 6, POINTER
    ),
    "sorting by a pointer network, width 32, four scores": Candidate(
        sorting, FIVE[:4], 8, POINTER, 1
    ),
    "sorting by a pointer network, width 32, with gatv2": Candidate(sorting, FIVE, 8, POINTER, 1),
    "dates, width 32": Candidate(
        dates, FIVE, 3, {"hidden": 32, "epochs": 12}, 1
    ),
    "dates, width 16": Candidate(
        dates, FIVE, 3, {"hidden": 16, "epochs": 12}, 1
    ),
    "4,000 dates, width 32": Candidate(
        lambda: dates(4000), FIVE, 3,
        {"hidden": 32, "epochs": 30}, 1,
    ),
}  # fmt: skip


def train(folder: Path, jobs: int) -> None:
    """Train the trials of all comparisons; candidates with the same settings share trials."""
    for candidate in CANDIDATES.values():
        task, settings = candidate.task(), Settings(**candidate.settings)
        seeds = range(candidate.bases * candidate.seeds)
        trials = [Trial(score, seed) for seed in seeds for score in candidate.scores]
        run = _folder(folder, task, candidate)
        study_trials.train(run, task.name, task, settings, trials, jobs)


def _folder(folder: Path, task: Task, candidate: Candidate) -> Path:
    kept = [task.name, *(f"{name}-{value}" for name, value in candidate.settings.items())]
    return folder / "-".join([*kept, str(len(task.train))])


def verdicts(trials: list[Finished], candidate: Candidate) -> list[dict[str, Any]]:
    """Return the verdict of each base seed whose trials have finished."""
    found = []
    for base in range(candidate.bases):
        seeds = range(base * candidate.seeds, (base + 1) * candidate.seeds)
        some = [x for x in trials if x.trial.seed in seeds and x.trial.score in candidate.scores]
        if len(some) == candidate.seeds * len(candidate.scores):
            found.append(judge(some, EXACT, warnings=convergence_warnings(some)))
    return found


def page(folder: Path) -> str:
    lines = [
        "# Does the demonstration decide?",
        "",
        "`python tests/studies/demo_study.py` makes this page. Each row repeats a comparison with "
        "other base seeds, which share no trial. A comparison *decides* if it settles a pair of "
        "scores and recommends one.",
        "",
        "`make demo` runs the first row. The others were candidates.",
        "",
        "| task and width | scores | seeds | comparisons | pair settled | decides | recommends |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name, candidate in CANDIDATES.items():
        trials = Comparison(_folder(folder, candidate.task(), candidate)).finished()
        found = verdicts(trials, candidate)
        settled = [any(d["verdict"] == "differs" for d in v["differences"]) for v in found]
        advised = [v["recommendation"]["score"] for v in found]
        decides = sum(a and b is not None for a, b in zip(settled, advised, strict=True))
        names = sorted({x for x in advised if x is not None})
        counts = ", ".join(f"{x} in {advised.count(x)}" for x in names) or "none"
        scores = ", ".join(_reached(trials, score) for score in candidate.scores)
        lines.append(
            f"| {name} | {scores} | {candidate.seeds} | {len(found)} | {sum(settled)} | "
            f"{decides} | {counts} |"
        )
    lines += ["", "Scores stand with the mean and the standard deviation of a seed's exact match."]
    return "\n".join([*lines, ""])


def _reached(trials: list[Finished], score: str) -> str:
    """Return a score with the mean and the standard deviation of its trials."""
    found = [100 * x.measures["exact_match"].mean() for x in trials if x.trial.score == score]
    return f"{score} {np.mean(found):.0f} ± {np.std(found, ddof=1):.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("train", "page"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    if given.what == "train":
        train(given.folder, given.jobs)
    else:
        print(page(given.folder), end="")


if __name__ == "__main__":
    main()
