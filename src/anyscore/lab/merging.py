"""Several comparisons as one.

Runs of the same settings, made on several machines say, give one comparison with all their trials.
Runs of other settings but the same data are compared: each score is then "SCORE (RUN)".
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anyscore.lab.comparison import Comparison, Finished
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.run_folder import why, write_whole
from anyscore.lab.session import read_about, rebuild, write_about
from anyscore.lab.trials import Trial


@dataclass(frozen=True)
class _Run:
    """A comparison that is read. label: what its scores are told apart by, if at all."""

    comparison: Comparison
    shared: dict[str, Any]
    about: dict[str, Any]
    label: str | None = None

    def named(self, score: str) -> str:
        return score if self.label is None else f"{score} ({self.label})"


def merge(folders: Sequence[Path], out: Path) -> tuple[dict[str, Any], int]:
    """Copy the trials of several comparisons into `out`, judge all of them, write a report.

    The same call again adds what has come to the runs since. A trial that several runs of the same
    settings have is taken from the first.

    Returns:
        The record of `out`, and how many trials stood in more than one run.

    Raises:
        InputError: a folder is none of a comparison, the runs have other data, other measures or
            another number of test items, or `out` holds something else.
        RunFailure: the disk is full or a file cannot be written.
    """
    runs = _read(folders)
    shared = dict(runs[0].shared)
    if runs[0].label is not None:
        settings = [run.shared.get("settings", {}) for run in runs]
        common = {
            k: v for k, v in settings[0].items() if all(k in s and s[k] == v for s in settings)
        }
        own = {
            str(run.label): {k: v for k, v in s.items() if k not in common}
            for run, s in zip(runs, settings, strict=True)
        }
        shared["settings"] = {**common, **own}
    target, doubles, seen = Comparison(out), 0, set[str]()
    found = [(run, run.comparison.finished()) for run in runs]
    _check_items(found)
    with target.opened(shared):
        for run, trials in found:
            for one in trials:
                trial = replace(one.trial, score=run.named(one.trial.score))
                doubles += trial.name in seen
                seen.add(trial.name)
                if not target.has(trial):
                    _adopt(target, run.comparison.place(one.trial), trial)
        write_about(target, _about(runs))
    return rebuild(out), doubles


def _read(folders: Sequence[Path]) -> list[_Run]:
    """The runs, with labels where settings differ; raises InputError where they do not fit."""
    runs = [_Run(x, x.shared(), read_about(x)) for x in map(Comparison, folders)]
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
    """The checksum of the pairs; None for a training of the user's own."""
    return (run.shared.get("task") or {}).get("pairs_checksum")


def _check_items(found: Sequence[tuple[_Run, list[Finished]]]) -> None:
    """Raises InputError where two trials have another number of test items."""
    counts = {one.items: run for run, trials in found for one in trials}
    if len(counts) > 1:
        told = " and ".join(f"{run.comparison.folder} {n}" for n, run in counts.items())
        raise InputError(f"expected as many test items in every run, found in {told}")


def _adopt(target: Comparison, place: Path, trial: Trial) -> None:
    """Copy a trial's folder, under the name of `trial`, whole or not at all."""
    beside = target.place(trial).with_name(f".{trial.name}.{os.getpid()}")
    try:
        shutil.copytree(place, beside)
        record = json.loads((beside / "trial.json").read_text(encoding="utf-8"))
        text = json.dumps({**record, **asdict(trial)}, ensure_ascii=False, allow_nan=False)
        write_whole(beside / "trial.json", text.encode("utf-8", "surrogatepass"))
        os.rename(beside, target.place(trial))
    except shutil.Error as error:
        raise RunFailure(f"{target.place(trial)}: cannot be written ({error})") from None
    except OSError as error:
        raise RunFailure(f"{target.place(trial)}: {why(error)}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _about(runs: Sequence[_Run]) -> dict[str, Any]:
    """What the report should know of all runs: that of the first, and each score's by its name."""
    about = dict(runs[0].about)
    about["command"] = None
    for name in ("formulas", "step_ms"):
        found: dict[str, Any] = {}
        for run in runs:
            for score, x in run.about.get(name, {}).items():
                found.setdefault(run.named(score), x)
        about[name] = found
    if any(run.about.get("machine") != about.get("machine") for run in runs):
        about["machine"] = {"several": "see the report of each run"}
    return about
