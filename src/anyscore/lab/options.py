"""The options of `anyscore compare` are one record: data, training, trials, report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from anyscore.lab.data.options import DataOptions, Option
from anyscore.lab.data.task import Task
from anyscore.lab.errors import InputError
from anyscore.lab.extras import ENGINES, LOGS
from anyscore.lab.train.settings import MODELS, Settings

_LARGEST = 2**31 - 1
_MOST_THREADS = 1024
_MOST_TRIALS = 10_000
# The default width and training steps of a task: of files, and of those that need none. The latter
# are easy: a wide model answers them with any score, a narrow model shows differences.
_OF_FILES = 128, 1000
_BUILT_IN = {"dates": (32, 1900), "sorting": (32, 1425)}


@dataclass(frozen=True)
class TrainingOptions:
    """The model and its training, which all trials share."""

    panel: ClassVar[str] = "Training"

    model: Annotated[str, Option(f"{', '.join(MODELS)}.")] = "recurrent"
    epochs: Annotated[
        int | None, Option("Passes over the training pairs.", shown="as the number of pairs asks")
    ] = None
    batch_size: Annotated[int, Option("Pairs in a training step.")] = 64
    hidden: Annotated[
        int | None, Option("Width of the model.", shown="32 without a file, 128 with one")
    ] = None
    learning_rate: Annotated[float, Option("Adam's learning rate; it falls to 0.")] = 4e-3
    dropout: Annotated[float, Option("Rate of dropout in training.")] = 0.1
    device: Annotated[str, Option("cpu, cuda, cuda:1, mps; auto is a GPU if there is one.")] = (
        "auto"
    )
    threads: Annotated[int, Option("CPU threads of each trial.")] = 1

    def check(self) -> None:
        """Raise InputError if an option is out of range or does not fit another."""
        if not 1 <= self.threads <= _MOST_THREADS:
            raise InputError(f"--threads: expected 1 to {_MOST_THREADS:,}, got {self.threads}")
        self._settings(epochs=1, hidden=_OF_FILES[0], device="cpu").check()

    def settings(self, task: Task, *, built_in: bool, device: str) -> Settings:
        """Return the settings for a task.

        Args:
            built_in: whether the task is not from a file, and has defaults of its own.
            device: the name that PyTorch has for `self.device`, without "auto".
        """
        hidden, steps = _BUILT_IN[task.name] if built_in else _OF_FILES
        epochs = default_epochs(task, self.batch_size, steps)
        return self._settings(epochs=epochs, hidden=hidden, device=device)

    def _settings(self, *, epochs: int, hidden: int, device: str) -> Settings:
        return Settings(
            model=self.model,
            epochs=epochs if self.epochs is None else self.epochs,
            batch_size=self.batch_size,
            hidden=hidden if self.hidden is None else self.hidden,
            learning_rate=self.learning_rate,
            dropout=self.dropout,
            device=device,
        )


def default_epochs(task: Task, batch_size: int, steps: int) -> int:
    """Return the number of epochs, 2 to 30, that make about `steps` training steps."""
    pairs = sum(len(example.references) for example in task.train)
    return min(30, max(2, round(steps / math.ceil(pairs / batch_size))))


@dataclass(frozen=True)
class TrialOptions:
    """The trials: their scores, number and machines.

    Attributes:
        scores: names of scores.
        seeds: trials of each score, with `minutes` the most; 0 takes 8, with `minutes` 20.
        jobs: trials side by side; 0 takes as many as the device or the cluster has room for.
        tune: trainings that search each score's learning rate before the trials; 0 for no search.
    """

    panel: ClassVar[str] = "The comparison"

    scores: tuple[str, ...]
    seeds: Annotated[
        int, Option("Trials of each score; with --minutes, the most.", shown="8, with --minutes 20")
    ] = 0
    minutes: Annotated[
        float | None, Option("Stop when every pair of scores is settled, or after so many minutes.")
    ] = None
    jobs: Annotated[int, Option("Trials side by side.", shown="as many as cores")] = 0
    rates: Annotated[
        bool,
        Option(
            "Try each score at half and twice the learning rate too, with one seed.",
            shown="with neither --minutes nor --tune",
        ),
    ] = True
    tune: Annotated[
        int,
        Option(
            "Trainings of each score that search its learning rate first, on the validation set.",
            shown="none",
        ),
    ] = 0
    tune_hidden: Annotated[bool, Option("Let --tune search its width too.")] = False
    first_seed: Annotated[int, Option("The first of the seeds.", name="--seed")] = 0
    engine: Annotated[
        str,
        Option(f"Where trials run: {' or '.join(ENGINES)}, the machines of a Ray cluster."),
    ] = "processes"
    address: Annotated[
        str | None,
        Option("With --engine ray: the cluster's address.", shown="$RAY_ADDRESS, or this machine"),
    ] = None

    def check(self) -> None:
        """Raise InputError if a number is out of range or an option lacks another one."""
        for name in ("seeds", "jobs", "tune"):
            if not 0 <= getattr(self, name) <= _MOST_TRIALS:
                raise InputError(
                    f"--{name}: expected 1 to {_MOST_TRIALS:,}, got {getattr(self, name)}"
                )
        if self.tune_hidden and not self.tune:
            raise InputError("--tune-hidden: expected --tune N beside it, trainings for each score")
        if not 0 <= self.first_seed < _LARGEST:
            raise InputError(f"--seed: expected 0 to {_LARGEST}, got {self.first_seed}")
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise InputError(f"--minutes: expected more than 0, got {self.minutes:g}")


@dataclass(frozen=True)
class ReportOptions:
    """The folder of a comparison and the printed output."""

    panel: ClassVar[str] = "The comparison"

    log: Annotated[str | None, Option(f"Write learning curves for {' or '.join(LOGS)} too.")] = None
    out: Annotated[Path | None, Option("Folder of the comparison.", shown="runs/NAME-…")] = None
    as_json: Annotated[
        bool, Option("Print the comparison as JSON, and nothing else.", name="--json")
    ] = False
    quiet: Annotated[bool, Option("Print the verdict alone, without progress.")] = False

    def check(self) -> None:
        """Raise InputError if the folder's name is empty."""
        if self.out is not None and str(self.out) in ("", "."):
            raise InputError("--out: expected the name of a folder, got an empty one")


@dataclass(frozen=True)
class CompareOptions:
    """All options of `anyscore compare`."""

    data: DataOptions
    training: TrainingOptions
    trials: TrialOptions
    report: ReportOptions

    def check(self) -> None:
        """Raise InputError, in one line, if options are out of range or exclude each other.

        No file is opened: see `data.check.check_files`, which checks `data` too.
        """
        self.training.check()
        self.trials.check()
        self.report.check()
