"""Several comparisons merged into one.

Runs of the same settings, made on several machines say, become one comparison with all their
trials. Runs of other settings on the same data are compared: each score is then "SCORE (RUN)".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anyscore.lab.comparison import Comparison
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.finished import TRIAL, Finished
from anyscore.lab.records import read_record, write_record
from anyscore.lab.run_folder import why
from anyscore.lab.session import measures_of, read_about, rebuild, write_about
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.judge import check_measured


@dataclass(frozen=True)
class _Run:
    """A comparison that is read.

    Attributes:
        label: added to the names of its scores; None where all runs have the same settings.
    """

    comparison: Comparison
    shared: dict[str, Any]
    about: dict[str, Any]
    label: str | None = None

    def named(self, score: str) -> str:
        """Return the name of a score in the merged comparison."""
        return score if self.label is None else f"{score} ({self.label})"


def merge(folders: Sequence[Path], out: Path) -> tuple[dict[str, Any], int]:
    """Copy the trials of several comparisons into `out`, judge all of them, write a report.

    The same call again adds the trials that the runs have got since. A trial that several runs of
    the same settings have is taken from the first.

    Returns:
        The record of `out`, and the number of trials that stood in more than one run.

    Raises:
        InputError: a folder holds no comparison, or something that is no file; the runs have other
            data, other measures or another number of test items; or `out` holds something else.
        RunFailure: the disk is full or a file cannot be written.
    """
    runs = _read(folders)
    shared = dict(runs[0].shared)
    if runs[0].label is not None:
        settings = [run.shared.get("settings", {}) for run in runs]
        common = {
            name: value
            for name, value in settings[0].items()
            if all(name in other and other[name] == value for other in settings)
        }
        differing = {
            str(run.label): {name: value for name, value in other.items() if name not in common}
            for run, other in zip(runs, settings, strict=True)
        }
        shared["settings"] = {**common, **differing}
    target, duplicates, seen = Comparison(out), 0, set[str]()
    finished = [(run, run.comparison.finished()) for run in runs]
    _check_items(finished)
    for run, trials in finished:
        check_measured(trials, measures_of(run.about))
        for source in trials:
            _check_files(run.comparison.folder_of(source.trial))
    with target.opened(shared):
        for run, trials in finished:
            for source in trials:
                trial = replace(source.trial, score=run.named(source.trial.score))
                duplicates += trial.name in seen
                seen.add(trial.name)
                if not target.has(trial):
                    _adopt(target, run.comparison.folder_of(source.trial), trial)
        write_about(target, _about(runs))
    return rebuild(out), duplicates


def _read(folders: Sequence[Path]) -> list[_Run]:
    """Read the runs; label them where their settings differ.

    Raises:
        InputError: the runs have other data or measures, or two have the same name.
    """
    runs = [
        _Run(comparison, comparison.shared(), read_about(comparison))
        for comparison in map(Comparison, folders)
    ]
    first = runs[0]
    for run in runs[1:]:
        if _data(run) != _data(first):
            raise InputError(
                f"{run.comparison.folder}: expected the data of {first.comparison.folder}, of "
                f"checksum {_data(first)}, found {_data(run)}; runs are compared on the same items"
            )
        if run.about.get("measures") != first.about.get("measures"):
            raise InputError(
                f"{run.comparison.folder}: expected the measures of {first.comparison.folder}, "
                "found others"
            )
    if all(run.shared.get("settings") == first.shared.get("settings") for run in runs):
        return runs
    names = [run.comparison.folder.resolve().name for run in runs]
    if len(set(names)) < len(names):
        raise InputError(
            f"expected folders of different names, by which scores are told apart, got {names}"
        )
    return [replace(run, label=name) for run, name in zip(runs, names, strict=True)]


def _data(run: _Run) -> str | None:
    """Return the checksum of a run's pairs; None if the user's own function trained it."""
    return (run.shared.get("task") or {}).get("pairs_checksum")


def _check_items(finished: Sequence[tuple[_Run, list[Finished]]]) -> None:
    """Raise InputError if two trials have another number of test items."""
    counts = {trial.items: run for run, trials in finished for trial in trials}
    if len(counts) > 1:
        numbers = " and ".join(f"{run.comparison.folder} {count}" for count, run in counts.items())
        raise InputError(f"expected as many test items in every run, found in {numbers}")


def _check_files(folder: Path) -> None:
    """Raise InputError if a folder holds a link or a pipe, by which other files would be read."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            found = "a link" if path.is_symlink() else "something else"
            raise InputError(f"{path}: expected a file or a folder, found {found}; remove it")


def _adopt(target: Comparison, source: Path, trial: Trial) -> None:
    """Copy a trial's folder, under the name of `trial`, whole or not at all."""
    temporary = target.half_written(trial)
    try:
        shutil.copytree(source, temporary, symlinks=True)
        record = read_record(TRIAL, temporary, "trial.json", advice="give the command again")
        write_record(temporary / "trial.json", {**record, **asdict(trial)})
        os.rename(temporary, target.folder_of(trial))
    except shutil.Error as error:
        raise RunFailure(f"{target.folder_of(trial)}: cannot be written ({error})") from None
    except OSError as error:
        raise RunFailure(f"{target.folder_of(trial)}: {why(error)}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _about(runs: Sequence[_Run]) -> dict[str, Any]:
    """Return what the report should know: of scores from every run, all else from the first."""
    about = dict(runs[0].about)
    about["command"] = None
    for name in ("formulas", "step_ms"):
        by_score: dict[str, Any] = {}
        for run in runs:
            for score, value in run.about.get(name, {}).items():
                by_score.setdefault(run.named(score), value)
        about[name] = by_score
    if any(run.about.get("machine") != about.get("machine") for run in runs):
        about["machine"] = {"several": "see the report of each run"}
    return about
