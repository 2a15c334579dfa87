"""Exact results of each row, by the float64 oracle, and the errors of plain operations.

Exact results are those of the rounded inputs. Plain operations are a user's formula in PyTorch, in
the dtype of the cell and on inputs without NaN. Both are computed once and written to a file;
environments without PyTorch read the file.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from helpers.budget import error
from parity.rows import ROWS, Arrays, Row


@dataclass(frozen=True)
class Expected:
    """Exact results and gradients of a row in a dtype by name, and errors of plain operations.

    A gradient is named "gradient of query". terms: roundings of the terms of a gradient, which may
    cancel; see `oracle_gradients.largest_terms`.
    """

    exact: Arrays
    plain: dict[str, float]
    terms: dict[str, float]


def of(row: Row, dtype: str) -> Expected:
    exact = _exact(row, "float32" if dtype == "float64" else dtype)  # both have the same inputs
    found = _source(row).plainly(row, dtype)
    errors = {name: error(x.detach(), exact[name]) for name, x in found.items()}
    return Expected(exact, errors, _terms(row))


def _source(row: Row) -> Any:
    """Return the module that computes a row; the module needs PyTorch."""
    return import_module("parity.beyond" if row[3] else "parity.textbook")


@cache
def _exact(row: Row, dtype: str) -> Arrays:
    found: Arrays = _source(row).exact(row, dtype)
    return found


@cache
def _terms(row: Row) -> dict[str, float]:
    found: dict[str, float] = _source(row).terms(row)
    return found


def write(path: Path, dtypes: tuple[str, ...], rows: list[Row] = ROWS) -> None:
    """Write the expectations of all rows to one .npz file, whole or not at all."""
    arrays, notes = {}, {}
    for row in rows:
        for dtype in dtypes:
            found, key = of(row, dtype), "/".join((*row, dtype))
            notes[key] = {"plain": found.plain, "terms": found.terms, "names": [*found.exact]}
            if dtype != "float64":
                arrays |= {f"{key}/{name}": x for name, x in found.exact.items()}
    beside = path.with_suffix(".part.npz")
    np.savez(beside, notes=np.array(json.dumps(notes)), **arrays)
    os.replace(beside, path)


def reader(path: Path) -> Any:
    """Return a function that reads the `Expected` of a row in a dtype from the file."""
    file = np.load(path)
    notes = json.loads(str(file["notes"]))

    def read(row: Row, dtype: str) -> Expected:
        note = notes["/".join((*row, dtype))]
        key = "/".join((*row, "float32" if dtype == "float64" else dtype))
        exact = {name: file[f"{key}/{name}"] for name in note["names"]}
        return Expected(exact, note["plain"], note["terms"])

    return read
