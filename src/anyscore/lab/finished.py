"""A trial that is on disk, and the form that its outcome must have, written or read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from anyscore.lab.errors import InputError
from anyscore.lab.forms import BOOL, LARGEST, NUMBER, PLAIN, TEXT, WHOLE, each, having, maybe, named
from anyscore.lab.records import read_record
from anyscore.lab.train.metrics import COLUMNS
from anyscore.lab.trials import Outcome, Trial
from anyscore.ops.checks import brief


@dataclass(frozen=True)
class Finished:
    """A trial that is on disk.

    Attributes:
        measures: results of the test items (items,) by name.
        statistics: rows of numbers (items, k) by name.
        outputs: the model's output for each item; None if outputs were not kept.
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


_MOST = 2**31 - 1  # of a count in an item: sums over items are exact
_EPOCH = having(
    {},
    dict.fromkeys(
        ("epoch", "steps", "train_loss", "valid_loss", "valid_exact_match", "seconds"),
        maybe(NUMBER),
    ),
)
_EXAMPLE = having(
    {
        "source": each(TEXT),
        "references": each(TEXT),
        "output": each(TEXT),
        "weights": each(each(maybe(NUMBER))),
        "right": maybe(BOOL),
    }
)
_FACTS = having(
    {},
    {
        **dict.fromkeys(("best_epoch", "score_parameters", "related", "unrelated"), maybe(NUMBER)),
        "examples": each(_EXAMPLE),
    },
)
TRIAL = having(
    {"score": TEXT, "seed": WHOLE, "epochs": each(_EPOCH), "facts": _FACTS},
    {"learning_rate": maybe(NUMBER)},
)
ITEMS = having({"measures": named(PLAIN), "statistics": named(PLAIN), "outputs": maybe(each(TEXT))})


def read_finished(folder: Path, name: str) -> Finished:
    """Read a finished trial.

    Args:
        folder: of the trials.
        name: of the trial's folder in it.

    Raises:
        InputError: the trial is damaged, or written by a newer version.
    """
    again = "remove its folder, and it is trained again"
    about = read_record(TRIAL, folder, name, "trial.json", advice=again)
    items = read_record(ITEMS, folder, name, "items.json", advice=again)
    trial = Trial(about["score"], about["seed"], about.get("learning_rate"))
    try:
        if trial.name != name:
            raise ValueError(f"expected the trial {name}, found {brief(trial.name)}")
        measures, rows = (
            {key: _array(x, key) for key, x in items[kind].items()}
            for kind in ("measures", "statistics")
        )
        check(Outcome(measures, rows, items["outputs"]))  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(f"{folder / name}: damaged ({error}); {again}") from None
    return Finished(trial, measures, rows, items["outputs"], about["epochs"], about["facts"])


def real(values: object) -> npt.NDArray[np.float64]:
    """Return an array of numbers, as NumPy makes it.

    Raises:
        TypeError: complex numbers or times, of which NumPy would take a part.
    """
    x = np.asarray(values)
    if x.dtype.kind in "cmM":
        raise TypeError(f"expected real numbers, got {brief(values)}")
    return np.asarray(x, np.float64)


def _array(values: object, name: str) -> npt.NDArray[np.float64]:
    """Return numbers, or rows of numbers, as an array; raise ValueError if they are none."""
    try:
        return real(values)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{brief(name)}: expected real numbers, or rows of as many, got {brief(values)}"
        ) from None


def check(outcome: object) -> None:
    """Raise ValueError, in one line, if `outcome` is not what a trial should return."""
    if not isinstance(outcome, Outcome):
        raise ValueError(f"expected an Outcome, got {type(outcome).__name__}")
    if not outcome.measures:
        raise ValueError("expected at least one measure, got none")
    sizes = set()
    for name, values in outcome.measures.items():
        x = _array(values, name)
        if x.ndim != 1 or not x.size:
            raise ValueError(
                f"{brief(name)}: expected one number per test item, got shape {x.shape}"
            )
        fits = np.abs(x) < LARGEST
        if not fits.all():
            i = int(np.argmin(fits))
            raise ValueError(
                f"{brief(name)}: expected finite numbers, got {x[i]} for item {i} (they may be up "
                f"to {LARGEST:g})"
            )
        sizes.add(x.size)
    for name, rows in outcome.statistics.items():
        x = _array(rows, name)
        if x.ndim != 2 or not ((x >= 0) & (x <= _MOST) & (x == np.floor(x))).all():
            raise ValueError(
                f"{brief(name)}: expected rows of finite numbers, counts up to {_MOST:,}, got "
                f"shape {x.shape}"
            )
        sizes.add(len(x))
    if len(sizes) > 1:
        raise ValueError(f"expected the same number of test items throughout, got {sorted(sizes)}")
    for name, rows in outcome.statistics.items():
        if name not in COLUMNS:
            raise ValueError(f"statistics: expected {' or '.join(COLUMNS)}, got {brief(name)}")
        if len(rows[0]) != COLUMNS[name]:
            raise ValueError(
                f"{brief(name)}: expected {COLUMNS[name]} numbers in a row, got {len(rows[0])}"
            )
