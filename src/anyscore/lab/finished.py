"""A trial that is on disk: what its outcome must be, written or read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anyscore.lab.errors import InputError
from anyscore.lab.records import read_record
from anyscore.lab.trials import Outcome, Trial


@dataclass(frozen=True)
class Finished:
    """A trial that is on disk.

    Attributes:
        measures: results of the test items (items,) by name.
        statistics: rows of numbers (items, k) by name.
        outputs: what the model said to each item; None if that was not kept.
        epochs, facts: see `Outcome`.
    """

    trial: Trial
    measures: dict[str, npt.NDArray[np.float64]]
    statistics: dict[str, npt.NDArray[np.float64]]
    outputs: list[str] | None
    epochs: list[dict[str, Any]]
    facts: dict[str, Any]

    @property
    def items(self) -> int:
        """The number of test items."""
        return len(next(iter(self.measures.values())))


def read_finished(folder: Path, *names: str) -> Finished:
    """Read a finished trial.

    Args:
        names: of the trial's folder in that of its comparison; see `part_of`.

    Raises:
        InputError: the trial is damaged, or written by a newer version.
    """
    record, items = (read_record(folder, *names, file) for file in ("trial.json", "items.json"))
    try:
        rate = record["learning_rate"]
        trial = Trial(str(record["score"]), int(record["seed"]), rate and float(rate))
        measures = {
            name: np.array(values, np.float64) for name, values in items["measures"].items()
        }
        rows = {name: np.array(values, np.float64) for name, values in items["statistics"].items()}
        return Finished(
            trial,
            measures,
            rows,
            items["outputs"],
            list(record["epochs"]),
            dict(record["facts"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{folder.joinpath(*names)}: damaged ({type(error).__name__}); remove it, and it is "
            "trained again"
        ) from None


def check(outcome: object) -> None:
    """Raise ValueError, in one line, if `outcome` is not what a trial should return."""
    if not isinstance(outcome, Outcome):
        raise ValueError(f"expected an Outcome, got {type(outcome).__name__}")
    if not outcome.measures:
        raise ValueError("expected at least one measure, got none")
    sizes = set()
    for name, values in outcome.measures.items():
        x = np.asarray(values, np.float64)
        if x.ndim != 1 or not x.size:
            raise ValueError(f"{name}: expected one number per test item, got shape {x.shape}")
        if not np.isfinite(x).all():
            i = int(np.argmin(np.isfinite(x)))
            raise ValueError(f"{name}: expected finite numbers, got {x[i]} for item {i}")
        sizes.add(x.size)
    for name, rows in outcome.statistics.items():
        x = np.asarray(rows, np.float64)
        if x.ndim != 2 or not np.isfinite(x).all():
            raise ValueError(f"{name}: expected rows of finite numbers, got shape {x.shape}")
        sizes.add(len(x))
    if len(sizes) > 1:
        raise ValueError(f"expected the same number of test items throughout, got {sorted(sizes)}")
