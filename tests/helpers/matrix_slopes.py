"""Gradients of the matrix of scores, of log-weights and of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from anyscore import Score
from helpers import plain
from helpers.budget import assert_gradients_within_budget
from helpers.cases import case
from helpers.matrix_rows import projection
from helpers.oracle_gradients import gradients, largest_terms
from helpers.table_rows import Row, keep

KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scores": lambda s: s,
    "log_weights": lambda s: torch.log_softmax(s, -1),
    "weights": lambda s: torch.softmax(s, -1),
}
"""Functions of the scores of the attended keys."""
TERMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "scores": lambda p, d: d,
    "log_weights": lambda p, d: d + p * d.sum(),
    "weights": lambda p, d: p * (d + p @ d),
}
"""|terms| of a score's gradient, from weights p and |gradients| d."""


@cache
def exact_slopes(row: Row, kind: str) -> dict[str, np.ndarray]:
    """Return the gradients of Σ projection · matrix by query, key and parameters."""
    found = gradients(**_call(row), of_scores=KINDS[kind])
    del found["value"]
    return found


def _call(row: Row) -> dict[str, Any]:
    c = case(*row)
    none = np.zeros((*c.shape.lead, c.shape.queries))
    return {
        "query": c.query,
        "key": c.key,
        "value": c.key[..., :1],
        "score": c.score.build(c.parameters, np.asarray),
        "d_output": none[..., None],
        "d_lse": none,
        "d_scores": projection(row),
        **c.masking(np.asarray),
    }


@cache
def _plain_slopes(row: Row, kind: str, dtype: str) -> dict[str, np.ndarray]:
    c = case(*row)

    def leaf(x: np.ndarray) -> torch.Tensor:
        return torch.tensor(x, dtype=getattr(torch, dtype)).requires_grad_()

    inputs, score = {"query": leaf(c.query), "key": leaf(c.key)}, c.score.build(c.parameters, leaf)
    s, _ = plain.matrix(torch, *inputs.values(), inputs["key"], score)
    inputs |= score.tensors() if isinstance(score, Score) else {}
    kept = torch.tensor(keep(*row[1:]))
    s = torch.where(kept | ~kept.any(-1, keepdim=True), s, -torch.inf)
    made = torch.where(kept, KINDS[kind](s), 0.0)
    total = (made * torch.tensor(projection(row), dtype=made.dtype)).sum()
    found = torch.autograd.grad(total, list(inputs.values()), materialize_grads=True)
    return {name: x.numpy() for name, x in zip(inputs, found, strict=True)}


def check_slopes(row: Row, kind: str, found: dict[str, Any]) -> None:
    """Assert that gradients of Σ projection · matrix are within the budget."""
    exact = exact_slopes(row, kind)
    assert found.keys() == exact.keys()
    arrays = {name: np.asarray(x) for name, x in found.items()}
    same = _plain_slopes(row, kind, str(arrays["query"].dtype))
    assert_gradients_within_budget(
        arrays, exact, same, lambda: largest_terms(**_call(row), terms_of=TERMS[kind])
    )
