"""Several comparisons merged into one.

Runs of the same settings, made on several machines say, become one comparison with all their
trials. Runs of other settings on the same data are compared: each score is then "SCORE (RUN)".
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import InputError
from anyscore.lab.finished import Finished
from anyscore.lab.session import measures_of, read_about, rebuild, write_about
from anyscore.lab.trials import Outcome
from anyscore.lab.verdict.judge import check_measured


@dataclass(frozen=True)
class _Run:
    """A comparison that is read.

    Attributes:
        label: added to the names of its scores, where the settings of the runs differ.
    """

    comparison: Comparison
    shared: dict[str, Any]
    about: dict[str, Any]
    finished: list[Finished]
    label: str = ""

    @classmethod
    def read(cls, folder: Path) -> _Run:
        """Read a folder; raise InputError if it holds no comparison that can be merged."""
        comparison = Comparison(folder)
        run = cls(comparison, comparison.shared(), read_about(comparison), comparison.finished())
        check_measured(run.finished, measures_of(run.about))
        for path in (folder / "trials").rglob("*"):  # through a link other files would be copied
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                kind = "a link" if path.is_symlink() else "something else"
                raise InputError(f"{path}: expected a file or a folder, found {kind}; remove it")
        return run

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of all its trials."""
        return dict(self.shared.get("settings", {}))

    @property
    def data(self) -> str | None:
        """The checksum of its pairs; None if the user's own function trained it."""
        return (self.shared.get("task") or {}).get("pairs_checksum")

    def named(self, score: str) -> str:
        """Return the name of a score in the merged comparison."""
        return f"{score}{self.label}"


def merge(folders: Sequence[Path], out: Path) -> tuple[dict[str, Any], int]:
    """Copy the trials of several comparisons into `out`, judge all of them, write a report.

    A repeated call adds the new trials of the runs. A trial that several runs of the same settings
    have is taken from the first.

    Returns:
        The record of `out`, and the number of trials that were in more than one run.

    Raises:
        InputError: a folder holds no comparison, or something that is no file. Runs have other
            data, measures or numbers of test items. `out` holds something else.
        RunFailure: the disk is full or a file cannot be written.
    """
    runs = [_Run.read(folder) for folder in folders]
    _check_alike(runs)
    shared = dict(runs[0].shared)
    if any(run.settings != runs[0].settings for run in runs):
        names = [folder.resolve().name for folder in folders]
        if len(set(names)) < len(names):
            raise InputError(
                f"expected folders of different names, got {names}; rename one, since scores are "
                "named after them"
            )
        common = {
            name: value
            for name, value in runs[0].settings.items()
            if all(run.settings.get(name, ...) == value for run in runs)
        }
        shared["settings"] = common | {
            name: {key: value for key, value in run.settings.items() if key not in common}
            for name, run in zip(names, runs, strict=True)
        }
        runs = [replace(run, label=f" ({name})") for run, name in zip(runs, names, strict=True)]
    target, duplicates, seen = Comparison(out), 0, set[str]()
    with target.opened(shared):
        for run in runs:
            for source in run.finished:
                trial = replace(source.trial, score=run.named(source.trial.score))
                duplicates += trial.name in seen
                seen.add(trial.name)
                if not target.has(trial):
                    target.keep(trial, _outcome(run, source))
        write_about(target, _about(runs))
    return rebuild(out), duplicates


def _check_alike(runs: Sequence[_Run]) -> None:
    """Raise InputError if runs have other data, measures or numbers of test items."""
    first = runs[0]
    for run in runs[1:]:
        if run.data != first.data:
            raise InputError(
                f"{run.comparison.folder}: expected the data of {first.comparison.folder}, of "
                f"checksum {first.data}, found {run.data}; runs are compared on the same items"
            )
        if run.about.get("measures") != first.about.get("measures"):
            raise InputError(
                f"{run.comparison.folder}: expected the measures of {first.comparison.folder}, "
                "found others"
            )
    counts = {trial.items: run for run in runs for trial in run.finished}
    if len(counts) > 1:
        numbers = " and ".join(f"{run.comparison.folder} {count}" for count, run in counts.items())
        raise InputError(f"expected as many test items in every run, found in {numbers}")


def _outcome(run: _Run, source: Finished) -> Outcome:
    """Return the outcome of a finished trial, with its trained model."""
    copy = partial(
        shutil.copytree, run.comparison.folder_of(source.trial), dirs_exist_ok=True, symlinks=True
    )
    measures: Any = source.measures
    statistics: Any = source.statistics
    return Outcome(measures, statistics, source.outputs, source.epochs, source.facts, save=copy)


def _about(runs: Sequence[_Run]) -> dict[str, Any]:
    """Return the facts for the report: facts of scores from every run, all else from the first."""
    about = dict(runs[0].about)
    about["command"] = None
    facts = [run.about["run"] for run in runs if "run" in run.about]
    about["run"] = {
        "level": max((run["level"] for run in facts), default=0.95),
        "interrupted": any(run["interrupted"] for run in facts),
        "planned": [],
    }
    for name in ("formulas", "step_ms"):
        about[name] = {
            run.named(score): value
            for run in reversed(runs)  # of the same name, the first run's
            for score, value in run.about.get(name, {}).items()
        }
    if any(run.about.get("machine") != about.get("machine") for run in runs):
        about["machine"] = {"several": "see the report of each run"}
    return about
