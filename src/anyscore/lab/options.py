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

    model: Annotated[
        str, Option(f"Model that every trial trains: {', '.join(MODELS[:-1])} or {MODELS[-1]}.")
    ] = "recurrent"
    epochs: Annotated[
        int | None,
        Option(
            "Number of passes over the training pairs, 1 to 65,536.",
            shown="2 to 30, for 1,000 training steps; for sorting 1,425, for dates 1,900",
        ),
    ] = None
    batch_size: Annotated[int, Option("Number of pairs in a training step, 1 to 65,536.")] = 64
    hidden: Annotated[
        int | None,
        Option(
            "Width of the model's embeddings, states, queries and keys, 1 to 65,536.",
            shown="128; without a file 32",
        ),
    ] = None
    learning_rate: Annotated[
        float, Option("Learning rate of Adam, more than 0; it falls linearly to 0.")
    ] = 4e-3
    dropout: Annotated[float, Option("Rate of dropout in training, from 0 to below 1.")] = 0.1
    device: Annotated[
        str,
        Option(
            "Device of the training: cpu, cuda, cuda:N or mps; auto takes a CUDA GPU if there is "
            "one, else the CPU."
        ),
    ] = "auto"
    threads: Annotated[int, Option("Number of CPU threads of each trial, 1 to 1,024.")] = 1

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
        int,
        Option(
            "Number of seeds, 1 to 10,000: each score is trained once with each. With --minutes, "
            "the largest number.",
            shown="8; with --minutes 20",
        ),
    ] = 0
    minutes: Annotated[
        float | None,
        Option(
            "Time limit in minutes, more than 0. Seeds are added until every pair of scores is "
            "decided, or until another round would exceed the limit.",
            shown="no limit",
        ),
    ] = None
    jobs: Annotated[
        int,
        Option(
            "Number of trials that run side by side, 1 to 10,000.",
            shown="one per core; on a GPU 1; with --engine ray, as many as fit",
        ),
    ] = 0
    rates: Annotated[
        bool,
        Option(
            "Train each score also at half and at double the learning rate, with the first seed. "
            "--minutes and --tune turn this off.",
            shown="on",
        ),
    ] = True
    tune: Annotated[
        int,
        Option(
            "Number of trainings, 1 to 10,000, that search the learning rate of each score before "
            "the trials, by validation loss.",
            shown="no search",
        ),
    ] = 0
    tune_hidden: Annotated[
        bool,
        Option("Let --tune search the width too: half, equal or double --hidden.", shown="off"),
    ] = False
    first_seed: Annotated[
        int, Option("First seed, 0 or more; the other seeds follow it.", name="--seed")
    ] = 0
    engine: Annotated[
        str,
        Option(
            f"Program that runs the trials: {ENGINES[0]} of this machine, or {ENGINES[1]}, on the "
            "machines of a Ray cluster."
        ),
    ] = "processes"
    address: Annotated[
        str | None,
        Option(
            "Address of the Ray cluster, with --engine ray: auto or HOST:PORT.",
            shown="$RAY_ADDRESS, else this machine",
        ),
    ] = None

    def check(self) -> None:
        """Raise InputError if a number is out of range or an option lacks another one."""
        for name in ("seeds", "jobs", "tune"):
            if not 0 <= getattr(self, name) <= _MOST_TRIALS:
                raise InputError(
                    f"--{name}: expected 1 to {_MOST_TRIALS:,}, got {getattr(self, name)}"
                )
        if self.tune_hidden and not self.tune:
            raise InputError("--tune-hidden: needs --tune N, the number of trainings of each score")
        if not 0 <= self.first_seed < _LARGEST:
            raise InputError(f"--seed: expected 0 to {_LARGEST - 1}, got {self.first_seed}")
        if self.minutes is not None and not 0 < self.minutes < 1e6:
            raise InputError(f"--minutes: expected more than 0, got {self.minutes:g}")


@dataclass(frozen=True)
class ReportOptions:
    """The folder of a comparison and the printed output."""

    panel: ClassVar[str] = "The comparison"

    log: Annotated[
        str | None,
        Option(f"Tool that gets the learning curves too: {' or '.join(LOGS)}.", shown="none"),
    ] = None
    out: Annotated[
        Path | None,
        Option(
            "Folder of the comparison: a new one, or one to continue.",
            shown="runs/NAME-HASH, by data and settings",
        ),
    ] = None
    as_json: Annotated[
        bool, Option("Print the content of comparison.json, and nothing else.", name="--json")
    ] = False
    quiet: Annotated[bool, Option("Print the verdict without progress and table.", shown="off")] = (
        False
    )

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
