"""What is exact in each row, by the float64 oracle, and how far plain operations are from it.

Exact are the results on the rounded inputs. Plain is the same formula as a user would write it in
PyTorch, in the dtype of the cell and on inputs without NaN. It is computed once and written to a
file, which frameworks then read that live where there is no PyTorch.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import oracle
import plain
from budget import error
from cases import case
from parity.rows import ROWS, Arrays, Row, clean, upstream
from table_rows import keep

RESULTS = ("output", "weights", "lse")


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
    found = _plain(row, dtype)
    return Expected(exact, {name: error(x, exact[name]) for name, x in found.items()}, _terms(row))


@cache
def _exact(row: Row, dtype: str) -> Arrays:
    from oracle_gradients import gradients

    tensors, score = _made(row, clean(row, dtype), np.asarray)
    masking = case(*row).masking(np.asarray)
    found = dict(zip(RESULTS, oracle.attend(*tensors, score, **masking), strict=True))
    slopes = gradients(*tensors, score, *upstream(row), **masking)
    return found | {f"gradient of {name}": x for name, x in slopes.items()}


@cache
def _terms(row: Row) -> dict[str, float]:
    from oracle_gradients import largest_terms

    tensors, score = _made(row, clean(row, "float32"), np.asarray)
    found = largest_terms(*tensors, score, *upstream(row), **case(*row).masking(np.asarray))
    return {f"gradient of {name}": x for name, x in found.items()}


def _plain(row: Row, dtype: str) -> dict[str, Any]:
    import torch

    leaves = {
        name: torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True)
        for name, x in clean(row, dtype).items()
    }
    tensors, score = _made(row, leaves, torch.as_tensor)
    results = plain.attend(torch, *tensors, score, torch.as_tensor(keep(*row[1:])))
    found = dict(zip(RESULTS, results, strict=True))
    if case(*row).shape.keys:
        times = [torch.as_tensor(x, dtype=results[0].dtype) for x in upstream(row)]
        slopes = torch.autograd.grad([results[0], results[2]], list(leaves.values()), times)
        found |= {f"gradient of {name}": x for name, x in zip(leaves, slopes, strict=True)}
    return {name: x.detach() for name, x in found.items()}


def _made(row: Row, given: dict[str, Any], array: Any) -> tuple[list[Any], Any]:
    """Query, key and value; and the score with its parameters."""
    c = case(*row)
    fields = {name: given.get(name, x) for name, x in c.parameters.items()}
    return [given[x] for x in ("query", "key", "value")], c.score.build(fields, array)


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
