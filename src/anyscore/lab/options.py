"""All that a user says to `anyscore compare`, in one record: data, training, trials, report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anyscore.lab.data.options import DataOptions
from anyscore.lab.errors import InputError

MODELS = ("recurrent", "bahdanau", "transformer", "pointer", "tagger", "classifier")
"""The names of the models; see `train.models`."""

_LARGEST = 2**31 - 1
_MOST_THREADS = 1024
_MOST_TRIALS = 10_000


@dataclass(frozen=True)
class TrainingOptions:
    """The model and its training, which all trials share.

    Attributes:
        model, batch_size, learning_rate, dropout: see `train.settings.Settings`.
        epochs: passes over the training pairs; None takes as many as the number of pairs asks for.
        hidden: width of the model; None takes 32 for the dates and 128 for a file.
        device: as PyTorch names it; "auto" is a GPU if there is one.
        threads: of the CPU, for each trial.
    """

    model: str = "recurrent"
    epochs: int | None = None
    batch_size: int = 64
    hidden: int | None = None
    learning_rate: float = 4e-3
    dropout: float = 0.1
    device: str = "auto"
    threads: int = 1

    def check(self) -> None:
        """Raise InputError where a number is out of range; `Settings.check` checks the rest."""
        for name in ("epochs", "batch_size", "hidden", "threads"):
            value: int | None = getattr(self, name)
            option = f"--{name.replace('_', '-')}"
            if value is not None and value < 1:
                raise InputError(f"{option}: expected 1 or more, got {value}")
            if value is not None and value > (_MOST_THREADS if name == "threads" else _LARGEST):
                raise InputError(f"{option}: {value} is more than can be meant")


@dataclass(frozen=True)
class TrialOptions:
    """The trials: which scores, how often, and where they run.

    Attributes:
        scores: names of scores.
        seeds: trials of each score, with `minutes` the most; 0 takes 3, with `minutes` 20.
        first_seed: the first of the seeds.
        minutes: stop when every pair of scores is settled, or after so long.
        jobs: trials side by side; 0 takes as many as the device or the cluster has room for.
        rates: try each score at other learning rates too, where neither `minutes` nor `tune` is
            given.
        tune: trainings that search each score's learning rate before the trials; 0 for no search.
        tune_hidden: let the search choose the width too.
        engine: "processes" of this machine, or "ray", the machines of a Ray cluster.
        address: of the Ray cluster; see `engine_ray.Cluster`.
    """

    scores: tuple[str, ...]
    seeds: int = 0
    first_seed: int = 0
    minutes: float | None = None
    jobs: int = 0
    rates: bool = True
    tune: int = 0
    tune_hidden: bool = False
    engine: str = "processes"
    address: str | None = None

    def check(self) -> None:
        """Raise InputError where a number is out of range or an option lacks another one."""
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
    """The folder of a comparison and what is printed.

    Attributes:
        out: the folder; None takes runs/NAME-….
        log: a tool that gets the learning curves too: "tensorboard".
        as_json: print the comparison as JSON, and nothing else.
        quiet: print the verdict alone, without progress.
    """

    out: Path | None = None
    log: str | None = None
    as_json: bool = False
    quiet: bool = False

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
        """Raise InputError, in one line, where options are out of range or do not go together.

        No file is looked at: see `data.check.check_files`, which checks `data` too.
        """
        self.training.check()
        self.trials.check()
        self.report.check()
