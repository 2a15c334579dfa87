"""A comparison on disk has one file of shared settings, and a folder for each trial, written once.

    RUN/settings.json               what every trial shares; another one is refused
    RUN/trials/NAME/trial.json      score, seed, curves, facts; NAME as in `Trial.name`
    RUN/trials/NAME/items.json      results of each test item
    RUN/trials/NAME/...             the trained model
    RUN/failures/NAME.txt           why a trial failed; it is tried again the next time

A trial is written beside its place and moved there, so it is whole or not there at all.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout

from anyscore import __version__
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.finished import TRIAL, Finished, check, read_finished
from anyscore.lab.forms import NUMBER, PLAIN, TEXT, having, maybe, named
from anyscore.lab.records import FORMAT, as_json, check_same, read_record, write_record
from anyscore.lab.run_folder import file_in, folder_in, part_of, why, write_whole
from anyscore.lab.trials import Outcome, Trial

_SETTINGS = "settings.json"
_TRIALS, _FAILURES = "trials", "failures"
_HALF_WRITTEN = re.compile(r"\..+-seed\d+(-rate.+)?\.[0-9a-f]+")
"""The names of folders in which trials are written, beside their places."""
_TASK = having(
    {},
    {
        **dict.fromkeys(
            ("name", "description", "unit", "source_unit", "target_unit", "pairs_checksum"),
            maybe(TEXT),
        ),
        "test": maybe(NUMBER),
        "summary": maybe(named(PLAIN)),
    },
)
_COMPARISON = having({"shared": having({}, {"task": _TASK, "settings": named(PLAIN)})})


class Comparison:
    """A folder of trials that share everything but score, seed and learning rate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def opened(self, shared: Mapping[str, Any]) -> Iterator[None]:
        """Hold the folder for new trials: begin a comparison, or continue one.

        Args:
            shared: plain data that all trials share.

        Raises:
            InputError: the folder holds something else or other settings, or is in use.
            RunFailure: the folder cannot be written to.
        """
        path, lock_file = (file_in(self.folder, name) for name in (_SETTINGS, "lock"))
        self._check_links()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Another process, that has just begun, has made its lock before anything else.
            if not lock_file.exists():
                self._check_new()
            lock = FileLock(lock_file, timeout=0)
            lock.acquire()
        except Timeout:
            raise InputError(
                f"{self.folder}: another anyscore is at work in this folder; wait for it, or give "
                "another folder with --out"
            ) from None
        except OSError as error:
            raise RunFailure(f"{self.folder}: {why(error)}") from None
        try:  # errors of the caller's block pass through
            self._check_new()
            record = {"format": FORMAT, "anyscore": __version__, "shared": dict(shared)}
            if path.exists():
                check_same(self.folder, self._settings(), json.loads(as_json(record)))
            else:
                write_record(path, record, indent=1)
            self._tidy()
            yield
        finally:
            lock.release()

    def _check_new(self) -> None:
        """Raise InputError if the folder holds something, but no comparison."""
        if (self.folder / _SETTINGS).exists():
            return
        names = {path.name for path in self.folder.iterdir()} - {"lock", _SETTINGS}
        # A process that was killed may have left the settings half-written.
        if any(not name.startswith(f".{_SETTINGS}") for name in names):
            raise InputError(
                f"{self.folder}: expected a new or empty folder or one of a comparison, found "
                "other files; give another folder with --out"
            )

    def _check_links(self) -> None:
        """Raise InputError if a link leads to trials or to the reasons of failures."""
        for kind in (_TRIALS, _FAILURES):
            for path in folder_in(self.folder, kind).glob("*"):
                part_of(path.parent, path.name)

    def _tidy(self) -> None:
        """Remove folders of trials that a killed process left half-written."""
        for folder in part_of(self.folder, _TRIALS).glob(".*"):
            if _HALF_WRITTEN.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)

    def names(self) -> set[str]:
        """Return the names of the finished trials."""
        return {
            folder.name
            for folder in part_of(self.folder, _TRIALS).glob("*")
            if not folder.name.startswith(".")
        }

    def has(self, trial: Trial) -> bool:
        """Return whether a trial has finished."""
        return self.folder_of(trial).is_dir()

    def folder_of(self, trial: Trial) -> Path:
        """Return the folder of a trial."""
        return part_of(self.folder, _TRIALS, trial.name)

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        """Write the outcome of a trial.

        Raises:
            ValueError: the outcome is not as `check` wants it.
            RunFailure: the outcome cannot be written.
        """
        check(outcome)
        self._check_items(len(next(iter(outcome.measures.values()))))
        record = {"format": FORMAT, "anyscore": __version__, **asdict(trial)}
        record |= {"epochs": outcome.epochs, "facts": outcome.facts}
        TRIAL(json.loads(as_json(record)), "trial")
        items: dict[str, Any] = {
            "measures": {
                name: np.asarray(values, float).tolist()
                for name, values in outcome.measures.items()
            },
            "statistics": {
                name: np.asarray(values, float).tolist()
                for name, values in outcome.statistics.items()
            },
            "outputs": None if outcome.outputs is None else list(outcome.outputs),
        }
        # A process's number would not do: another machine may have the same.
        temporary = part_of(self.folder, _TRIALS, f".{trial.name}.{uuid4().hex}")
        try:
            temporary.mkdir(parents=True)
            if outcome.save is not None:
                outcome.save(temporary)
            write_record(temporary / "items.json", items)
            write_record(temporary / "trial.json", record)
            os.rename(temporary, self.folder_of(trial))
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return  # another process was first, with the same numbers
            raise RunFailure(f"{self.folder_of(trial)}: {why(error)}") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._failure(trial).unlink(missing_ok=True)

    def _check_items(self, count: int) -> None:
        """Raise ValueError if other trials have another number of test items than `count`."""
        for name in sorted(self.names())[:1]:
            expected = self.load(name).items
            if expected != count:
                raise ValueError(f"{count} test items, the other trials {expected}")

    def fail(self, trial: Trial, reason: str, details: str = "") -> None:
        """Write why a trial has failed.

        Args:
            reason: one line.
            details: a traceback.
        """
        self._failure(trial).parent.mkdir(exist_ok=True)
        write_whole(self._failure(trial), f"{reason}\n\n{details}".encode("utf-8", "replace"))

    def failure(self, trial: Trial) -> str | None:
        """Return the line that `fail` wrote for a trial; None if there is none."""
        try:
            text = self._failure(trial).read_text(encoding="utf-8", errors="replace")
            return text.splitlines()[0]
        except (OSError, IndexError):
            return None

    def _failure(self, trial: Trial) -> Path:
        return file_in(self.folder, _FAILURES, f"{trial.name}.txt")

    def shared(self) -> dict[str, Any]:
        """Read the data that all trials share.

        Raises:
            InputError: the folder is not one of a comparison.
        """
        if not file_in(self.folder, _SETTINGS).exists():
            raise InputError(
                f"{self.folder}: expected the folder of a comparison, found no {_SETTINGS} in it"
            )
        return dict(self._settings()["shared"])

    def _settings(self) -> dict[str, Any]:
        advice = "restore the file, or begin again in another folder"
        return read_record(_COMPARISON, self.folder, _SETTINGS, advice=advice)

    def finished(self) -> list[Finished]:
        """Read all finished trials, in the order of their names.

        Raises:
            InputError: a trial is damaged, or written by a newer version.
        """
        folder_in(self.folder, _TRIALS)
        trials = [self.load(name) for name in sorted(self.names())]
        for trial in trials[1:]:
            if trial.items != trials[0].items:
                raise InputError(
                    f"{self.folder_of(trial.trial)}: damaged (expected {trials[0].items} test "
                    f"items as the others, found {trial.items}); remove it, and it is trained again"
                )
        return trials

    def load(self, name: str) -> Finished:
        """Read the finished trial of this name.

        Raises:
            InputError: the trial is damaged, or written by a newer version.
        """
        return read_finished(folder_in(self.folder, _TRIALS), name)
