"""What is exact in each row, by the float64 oracle, and how far plain operations are from it.

Exact are the results on the rounded inputs. Plain is the same formula as a user would write it in
PyTorch, in the dtype of the cell and on inputs without NaN. Both are computed once and written to a
file, which frameworks then read that live where there is no PyTorch.
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
    """Of a row in a dtype, by name: exact results and gradients, and the errors of plain ones.

    A gradient is named "gradient of query". terms: roundings that its terms bring along where they
    cancel, see `oracle_gradients.largest_terms`.
    """

    exact: Arrays
    plain: dict[str, float]
    terms: dict[str, float]


def of(row: Row, dtype: str) -> Expected:
    exact = _exact(row, "float32" if dtype == "float64" else dtype)  # which have the same inputs
    found = _source(row).plainly(row, dtype)
    errors = {name: error(x.detach(), exact[name]) for name, x in found.items()}
    return Expected(exact, errors, _terms(row))


def _source(row: Row) -> Any:
    """Import what computes a row, which needs PyTorch."""
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
    """All of them to one file of NumPy's; beside it at first, so that there is no half of one."""
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
    """What gives the `Expected` of a row in a dtype out of such a file."""
    file = np.load(path)
    notes = json.loads(str(file["notes"]))

    def read(row: Row, dtype: str) -> Expected:
        note = notes["/".join((*row, dtype))]
        key = "/".join((*row, "float32" if dtype == "float64" else dtype))
        exact = {name: file[f"{key}/{name}"] for name in note["names"]}
        return Expected(exact, note["plain"], note["terms"])

    return read
