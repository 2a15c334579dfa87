"""Curves for the tools that draw them: TensorBoard and Trackio, beside what every trial keeps."""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from anyscore.lab.comparison import Comparison
from anyscore.lab.engine import Event
from anyscore.lab.extras import check_log
from anyscore.lab.finished import Finished
from anyscore.lab.forms import is_number
from anyscore.lab.rounds import Plan
from anyscore.lab.run_folder import part_of
from anyscore.lab.session import Watcher
from anyscore.lab.trials import Trial, file_name

Numbers = dict[str, float]


class Log(Protocol):
    """A tool that draws curves. A trial is a run for the tool, with a name like score/seed0."""

    def names(self) -> set[str]:
        """Return the names of the runs that the tool has."""

    def begin(self, run: str) -> None:
        """Begin a run; remove what an attempt that did not end has left of it."""

    def epoch(self, run: str, number: int, numbers: Numbers) -> None:
        """Add a run's numbers after an epoch."""

    def fail(self, run: str) -> None:
        """End a run before its time."""

    def end(self, run: str, settings: Mapping[str, Any], results: Numbers) -> None:
        """End a run after its last epoch, with its hyperparameters and its results."""


class TensorBoard:
    """Event files in a folder: `tensorboard --logdir FOLDER/tensorboard` shows them at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = part_of(folder, "tensorboard")
        self._writers: dict[str, Any] = {}

    def names(self) -> set[str]:
        """Return the names of the runs that have a file."""
        return {"/".join(file.parent.relative_to(self.folder).parts) for file in self._files()}

    def _files(self) -> list[Path]:
        return list(self.folder.glob("**/events.out.tfevents.*"))

    def begin(self, run: str) -> None:
        """Begin a run's file; remove an earlier one."""
        from tensorboardX import SummaryWriter

        if run in self._writers:
            self.fail(run)
        place = part_of(self.folder, *run.split("/"))
        shutil.rmtree(place, ignore_errors=True)
        self._writers[run] = SummaryWriter(str(place), flush_secs=1)

    def epoch(self, run: str, number: int, numbers: Numbers) -> None:
        """Add a run's numbers after an epoch."""
        for name, value in numbers.items():
            self._writers[run].add_scalar(name, value, number)

    def fail(self, run: str) -> None:
        """Close a run's file."""
        self._writers.pop(run).close()

    def end(self, run: str, settings: Mapping[str, Any], results: Numbers) -> None:
        """Add hyperparameters and results, and close the run's file."""
        from tensorboardX.summary import hparams

        writer = self._writers.pop(run)
        for name, value in results.items():
            writer.add_scalar(name, value, 0)
        for summary in hparams(dict(settings), results):
            writer.file_writer.add_summary(summary)
        writer.close()


class Trackio:
    """Trackio's own database on this machine, a project by the folder's name: `trackio show`.

    Trackio has one run at a time, so a trial is written when it has ended.
    """

    _ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")

    def __init__(self, folder: Path) -> None:
        # "anyscore-" keeps clear of the names that Trackio has for itself.
        self.project = f"anyscore-{re.sub(r'[^A-Za-z0-9-]+', '-', folder.resolve().name)}"
        self._epochs: dict[str, list[tuple[int, Numbers]]] = {}

    def names(self) -> set[str]:
        """Return the names of the project's runs."""
        import trackio

        try:
            return {run.name for run in trackio.Api().runs(self.project)}
        except ValueError:  # there is no such project yet
            return set()

    def begin(self, run: str) -> None:
        """Begin to collect a run's numbers."""
        self._epochs[run] = []

    def epoch(self, run: str, number: int, numbers: Numbers) -> None:
        """Collect a run's numbers after an epoch."""
        self._epochs[run].append((number, numbers))

    def fail(self, run: str) -> None:
        """Forget a run."""
        del self._epochs[run]

    def end(self, run: str, settings: Mapping[str, Any], results: Numbers) -> None:
        """Write a run with all its epochs."""
        import trackio

        # Nothing leaves this machine, whatever the environment says for other programs.
        elsewhere = {name: os.environ.pop(name) for name in self._ELSEWHERE if name in os.environ}
        try:
            with redirect_stdout(io.StringIO()):  # it says much, also where --json is
                writer = trackio.init(
                    self.project,
                    run,
                    config=dict(settings),
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
                epochs = self._epochs.pop(run)
                for number, numbers in epochs:
                    writer.log(dict(numbers), step=number)
                writer.log(dict(results), step=epochs[-1][0] if epochs else 0)
                trackio.finish()
        finally:
            os.environ |= elsewhere


_LOGS: dict[str, type[TensorBoard] | type[Trackio]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
}


def with_log(watcher: Watcher, name: str | None) -> Watcher:
    """Add a log to a watcher.

    Args:
        watcher: told of everything, as before.
        name: of the log; None for no log.

    Returns:
        A watcher that tells both.

    Raises:
        InputError: there is no such log, or its package is not installed.
    """
    check_log(name)
    return watcher if name is None else _Logged(watcher, name)


class _Logged(Watcher):
    """Passes everything on to another watcher, and the numbers of trials to a log."""

    log: Log
    comparison: Comparison

    def __init__(self, watcher: Watcher, name: str) -> None:
        self._watcher, self._name = watcher, name
        self._at_work: set[Trial] = set()

    def begins(self, comparison: Comparison, plan: Plan, about: Mapping[str, Any]) -> None:
        self._watcher.begins(comparison, plan, about)
        self.comparison, self.log = comparison, _LOGS[self._name](comparison.folder)
        self._settings = comparison.shared().get("settings", {})
        known = self.log.names()
        for finished in comparison.finished():  # before there was a log
            if run_name(finished.trial) not in known:
                self.log.begin(run_name(finished.trial))
                for epoch in finished.epochs:
                    self._epoch(finished.trial, epoch)
                self._end(finished)

    def event(self, event: Event) -> None:
        self._watcher.event(event)
        if event.kind == "began":
            self._at_work.add(event.trial)
            self.log.begin(run_name(event.trial))
        elif event.kind == "progress" and "epoch" in event.details:
            self._epoch(event.trial, event.details)
        elif event.kind == "finished":
            self._at_work.discard(event.trial)
            self._end(self.comparison.load(event.trial.name))
        elif event.kind == "failed":
            self._fail(event.trial)

    def _fail(self, trial: Trial) -> None:
        self._at_work.discard(trial)
        self.log.fail(run_name(trial))

    def _epoch(self, trial: Trial, record: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in record.items() if _is_number(value)}
        number = int(numbers.pop("epoch", 0))
        self.log.epoch(run_name(trial), number, numbers)

    def _end(self, finished: Finished) -> None:
        trial = finished.trial
        settings = {
            name: value
            for name, value in self._settings.items()
            if isinstance(value, (str, int, float))
        }
        settings |= {"score": trial.score, "seed": trial.seed}
        if trial.learning_rate is not None:
            settings["learning_rate"] = trial.learning_rate
        results = {
            f"test_{name}": float(np.mean(value)) for name, value in finished.measures.items()
        }
        self.log.end(run_name(trial), settings, results)

    def verdict(self, verdict: dict[str, Any]) -> None:
        self._watcher.verdict(verdict)

    def interrupted(self) -> None:
        self._watcher.interrupted()
        for trial in tuple(self._at_work):
            self._fail(trial)


def run_name(trial: Trial) -> str:
    """Return the name of a trial's run: score/seed0, and the trial's own learning rate if any."""
    rate = "" if trial.learning_rate is None else f"-rate{trial.learning_rate:g}"
    return f"{file_name(trial.score)}/seed{trial.seed}{rate}"


def _is_number(x: object) -> bool:
    """Tell whether x is a number that a tool can draw; NaN and infinities are."""
    return isinstance(x, float) or is_number(x)
