"""Exact results of a textbook call by the oracle, plain results, and roundings of terms.

Functions take a row, and return results and gradients by name, such as "gradient of query".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from helpers import oracle, plain
from helpers.oracle_gradients import gradients, largest_terms
from parity.rows import Arrays, Row, clean, kept, of, upstream

RESULTS = ("output", "weights", "lse")


def exact(row: Row, dtype: str) -> Arrays:
    tensors, score = made(row, clean(row, dtype), np.asarray)
    masking = of(row).masking(np.asarray)
    found = dict(zip(RESULTS, oracle.attend(*tensors, score, **masking), strict=True))
    slopes = gradients(*tensors, score, *upstream(row).values(), **masking)
    return found | named(slopes)


def terms(row: Row) -> dict[str, float]:
    tensors, score = made(row, clean(row, "float32"), np.asarray)
    masking = of(row).masking(np.asarray)
    return named(largest_terms(*tensors, score, *upstream(row).values(), **masking))


def plainly(row: Row, dtype: str) -> dict[str, Any]:
    leaves = plain_leaves(row, dtype)
    tensors, score = made(row, leaves, torch.as_tensor)
    results = plain.attend(torch, *tensors, score, torch.as_tensor(kept(row)))
    found = dict(zip(RESULTS, results, strict=True))
    return found | (slopes_of(found, leaves, upstream(row)) if of(row).shape.keys else {})


def made(row: Row, given: dict[str, Any], array: Any) -> tuple[list[Any], Any]:
    """Return ([query, key, value], score); the key replaces a missing value."""
    c = of(row)
    fields = {name: given.get(name, x) for name, x in c.parameters.items()}
    tensors = [given["query"], given["key"], given.get("value", given["key"])]
    return tensors, c.score.build(fields, array)


def plain_leaves(row: Row, dtype: str) -> dict[str, torch.Tensor]:
    """Return all inputs as tensors of the dtype that record gradients."""
    return {
        name: torch.tensor(x, dtype=getattr(torch, dtype), requires_grad=True)
        for name, x in clean(row, dtype).items()
    }


def slopes_of(
    found: dict[str, torch.Tensor], leaves: dict[str, torch.Tensor], times: Arrays
) -> dict[str, Any]:
    """Return the gradients of Σ times · found."""
    results = [found[name] for name in times]
    weights = [torch.as_tensor(x, dtype=found[name].dtype) for name, x in times.items()]
    return named(dict(zip(
        leaves, torch.autograd.grad(results, list(leaves.values()), weights), strict=True
    )))  # fmt: skip


def named(slopes: dict[str, Any]) -> dict[str, Any]:
    return {f"gradient of {name}": x for name, x in slopes.items()}
