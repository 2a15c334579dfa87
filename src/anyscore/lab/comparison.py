"""A comparison on disk: what all its trials share, and a folder for each trial, written once.

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
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from anyscore import __version__
from anyscore.lab.errors import InputError, RunFailure
from anyscore.lab.run_folder import why, write_whole
from anyscore.lab.trials import Outcome, Trial

FORMAT = 2
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class Finished:
    """A trial that is on disk. measures: (items,) by name; statistics: (items, k) by name."""

    trial: Trial
    measures: dict[str, npt.NDArray[np.float64]]
    statistics: dict[str, npt.NDArray[np.float64]]
    outputs: list[str] | None
    epochs: list[dict[str, Any]]
    facts: dict[str, Any]

    @property
    def items(self) -> int:
        """How many test items there were."""
        return len(next(iter(self.measures.values())))


class Comparison:
    """A folder of trials that share everything but score, seed and learning rate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def opened(self, shared: Mapping[str, Any]) -> Iterator[None]:
        """Hold the folder, for new trials of what is `shared`: begun or continued.

        Raises:
            InputError: it holds something else, other settings, or another process has it.
            RunFailure: it cannot be written to.
        """
        path = self.folder / _SETTINGS
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Another process, that has just begun, has made its lock before anything else.
            if not (self.folder / "lock").exists():
                self._check_new()
            lock = FileLock(self.folder / "lock", timeout=0)
            lock.acquire()
        except Timeout:
            raise InputError(
                f"{self.folder}: another anyscore is at work in this folder; wait for it, or give "
                "another with --out"
            ) from None
        except OSError as error:
            raise RunFailure(f"{self.folder}: {why(error)}") from None
        try:  # an error of what the caller does inside is the caller's
            self._check_new()
            text = json.dumps(_record(shared), ensure_ascii=False, indent=1)
            if path.exists():
                _check_same(self.folder, _read(path), json.loads(text))
            else:
                write_whole(path, text.encode())
            self._tidy()
            yield
        finally:
            lock.release()

    def _check_new(self) -> None:
        """Raises InputError if the folder holds something, and no comparison."""
        if (self.folder / _SETTINGS).exists():
            return
        names = {x.name for x in self.folder.iterdir()} - {"lock", _SETTINGS}
        # A process that was killed may have left the settings half-written.
        if any(not name.startswith(f".{_SETTINGS}") for name in names):
            raise InputError(
                f"{self.folder}: expected a new or empty folder or one of a comparison, found "
                "other files; give another with --out"
            )

    def _tidy(self) -> None:
        """Remove what a killed process left half-written."""
        for rest in self.folder.glob("trials/.*"):
            shutil.rmtree(rest, ignore_errors=True)

    def names(self) -> set[str]:
        """Give the names of the finished trials."""
        return {x.name for x in self.folder.glob("trials/*") if not x.name.startswith(".")}

    def has(self, trial: Trial) -> bool:
        return (self.folder / "trials" / trial.name).is_dir()

    def place(self, trial: Trial) -> Path:
        return self.folder / "trials" / trial.name

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        """Write what came of a trial.

        Raises:
            ValueError: the outcome is not what it should be; see `check`.
            RunFailure: it cannot be written.
        """
        check(outcome)
        self._check_items(len(next(iter(outcome.measures.values()))))
        record = {"format": FORMAT, "anyscore": __version__, **asdict(trial)}
        record |= finite({"epochs": outcome.epochs, "facts": outcome.facts})
        items: dict[str, Any] = {
            "measures": {n: np.asarray(x, float).tolist() for n, x in outcome.measures.items()},
            "statistics": {n: np.asarray(x, float).tolist() for n, x in outcome.statistics.items()},
            "outputs": None if outcome.outputs is None else list(outcome.outputs),
        }
        # No process's number: another machine may have the same.
        beside = self.folder / "trials" / f".{trial.name}.{uuid4().hex}"
        try:
            beside.mkdir(parents=True)
            if outcome.save is not None:
                outcome.save(beside)
            for name, content in (("items", items), ("trial", record)):
                text = json.dumps(content, ensure_ascii=False, allow_nan=False)
                write_whole(beside / f"{name}.json", text.encode("utf-8", "surrogatepass"))
            os.rename(beside, self.place(trial))
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return  # another process was first, with the same numbers
            raise RunFailure(f"{self.place(trial)}: {why(error)}") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        self._failure(trial).unlink(missing_ok=True)

    def _check_items(self, items: int) -> None:
        """Raises ValueError if other trials have another number of test items."""
        for name in sorted(self.names())[:1]:
            others = self.load(name).items
            if others != items:
                raise ValueError(f"{items} test items, the other trials {others}")

    def fail(self, trial: Trial, reason: str, details: str = "") -> None:
        """Write why a trial has failed: a line, and a traceback."""
        self._failure(trial).parent.mkdir(exist_ok=True)
        write_whole(self._failure(trial), f"{reason}\n\n{details}".encode("utf-8", "replace"))

    def failure(self, trial: Trial) -> str | None:
        """The line that `fail` was given."""
        try:
            return self._failure(trial).read_text(encoding="utf-8").splitlines()[0]
        except (OSError, IndexError):
            return None

    def _failure(self, trial: Trial) -> Path:
        return self.folder / "failures" / f"{trial.name}.txt"

    def shared(self) -> dict[str, Any]:
        """Read what every trial shares.

        Raises:
            InputError: the folder is not one of a comparison.
        """
        if not (self.folder / _SETTINGS).is_file():
            raise InputError(
                f"{self.folder}: expected the folder of a comparison, found no {_SETTINGS} in it"
            )
        found = _read(self.folder / _SETTINGS)
        if not isinstance(found.get("shared"), dict):
            raise InputError(f"{self.folder / _SETTINGS}: damaged; remove the folder")
        return dict(found["shared"])

    def finished(self) -> list[Finished]:
        """All trials that are on disk, by name.

        Raises:
            InputError: one is damaged, or of a newer version.
        """
        return [self.load(name) for name in sorted(self.names())]

    def load(self, name: str) -> Finished:
        place = self.folder / "trials" / name
        record, items = _read(place / "trial.json"), _read(place / "items.json")
        try:
            rate = record["learning_rate"]
            trial = Trial(str(record["score"]), int(record["seed"]), rate and float(rate))
            measures = {n: np.array(x, np.float64) for n, x in items["measures"].items()}
            rows = {n: np.array(x, np.float64) for n, x in items["statistics"].items()}
            return Finished(
                trial, measures, rows, items["outputs"], list(record["epochs"]),
                dict(record["facts"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{place}: damaged ({type(error).__name__}); remove it, and it is trained again"
            ) from None


def check(outcome: object) -> None:
    """Raises ValueError, in one line, if `outcome` is not what a trial should give."""
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


def _record(shared: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": FORMAT, "anyscore": __version__, "shared": dict(shared)}


def _check_same(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises InputError that names what differs."""
    before, now = _flat(old.get("shared")), _flat(new["shared"])
    names = [n for n in dict.fromkeys([*before, *now]) if before.get(n) != now.get(n)]
    if names:
        told = "; ".join(f"{n} was {_short(before.get(n))}, is {_short(now.get(n))}" for n in names)
        raise InputError(
            f"{folder}: this comparison was begun with other settings ({told}); give the same, or "
            "another folder with --out"
        )


def _flat(x: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(x, dict):
        return {name: x}
    parts = [_flat(y, f"{name}.{key}" if name else str(key)) for key, y in x.items()]
    return {key: y for part in parts for key, y in part.items()}


def _short(x: Any) -> str:
    text = "not given" if x is None else str(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no whole JSON"
        raise InputError(f"{path}: cannot be read ({reason}); remove its folder") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: damaged; remove its folder, and it is made again")
    version = found.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise InputError(
            f"{path}: of format {version!r}; this anyscore reads up to {FORMAT}: update"
        )
    return found


def finite(x: Any) -> Any:
    """Plain data with None where a number is not finite."""
    if isinstance(x, dict):
        return {key: finite(y) for key, y in x.items()}
    if isinstance(x, (list, tuple)):
        return [finite(y) for y in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
