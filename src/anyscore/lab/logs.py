"""Learning curves are written for TensorBoard too."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from typing import Any

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


def with_log(watcher: Watcher, name: str | None) -> Watcher:
    """Add a log to a watcher.

    Args:
        watcher: gets all events, as before.
        name: of the log; None for no log.

    Returns:
        A watcher that passes events to both.

    Raises:
        InputError: there is no such log, or its package is not installed.
    """
    check_log(name)
    return watcher if name is None else _Logged(watcher)


class _Logged(Watcher):
    """Passes everything on to another watcher, and the numbers of trials to TensorBoard.

    A trial is a run with a name like score/seed0, an event file in a folder of this name:
    `tensorboard --logdir FOLDER/tensorboard` shows the curves at once.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._writers: dict[Trial, Any] = {}  # of the trials at work
        for name in ("searches", "searched", "chosen", "verdict"):  # which have no curves
            setattr(self, name, getattr(watcher, name))

    def begins(self, comparison: Comparison, plan: Plan, about: Mapping[str, Any]) -> None:
        self._watcher.begins(comparison, plan, about)
        self._comparison = comparison
        self._folder = part_of(comparison.folder, "tensorboard")
        self._settings = comparison.shared().get("settings", {})
        files = self._folder.glob("**/events.out.tfevents.*")
        known = {file.parent.relative_to(self._folder).as_posix() for file in files}
        for finished in comparison.finished():  # before there was a log
            if _run_name(finished.trial) not in known:
                self._begin(finished.trial)
                for epoch in finished.epochs:
                    self._epoch(finished.trial, epoch)
                self._end(finished)

    def event(self, event: Event) -> None:
        self._watcher.event(event)
        if event.kind == "began":
            self._begin(event.trial)
        elif event.kind == "progress" and "epoch" in event.details:
            self._epoch(event.trial, event.details)
        elif event.kind == "finished":
            self._end(self._comparison.load(event.trial.name))
        elif event.kind == "failed":
            self._writers.pop(event.trial).close()

    def interrupted(self) -> None:
        self._watcher.interrupted()
        for trial in tuple(self._writers):
            self._writers.pop(trial).close()

    def _begin(self, trial: Trial) -> None:
        """Begin a trial's file; remove that of an attempt that did not end."""
        from tensorboardX import SummaryWriter

        # It warns of each NaN, which curves may hold, without the name of the trial.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        if trial in self._writers:
            self._writers.pop(trial).close()
        place = part_of(self._folder, *_run_name(trial).split("/"))
        shutil.rmtree(place, ignore_errors=True)
        self._writers[trial] = SummaryWriter(str(place), flush_secs=1)

    def _epoch(self, trial: Trial, record: Mapping[str, Any]) -> None:
        """Add a trial's numbers after an epoch, NaN and infinities too."""
        numbers = {
            name: float(value)
            for name, value in record.items()
            if isinstance(value, float) or is_number(value)
        }
        epoch = int(numbers.pop("epoch", 0))
        for name, value in numbers.items():
            self._writers[trial].add_scalar(name, value, epoch)

    def _end(self, finished: Finished) -> None:
        """Add hyperparameters and results, and close a trial's file."""
        from tensorboardX.summary import hparams

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
        writer = self._writers.pop(trial)
        for name, value in results.items():
            writer.add_scalar(name, value, 0)
        for summary in hparams(settings, results):
            writer.file_writer.add_summary(summary)
        writer.close()


def _run_name(trial: Trial) -> str:
    """Return the name of a trial's run: score/seed0, and the trial's own learning rate if any."""
    rate = "" if trial.learning_rate is None else f"-rate{trial.learning_rate:g}"
    return f"{file_name(trial.score)}/seed{trial.seed}{rate}"
