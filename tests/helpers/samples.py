"""Helpers of several test files: a small instance of every score, arrays, and boolean masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anyscore import Score, attention
from helpers.table_scores import PAIRS as ONE_OF_EACH
from helpers.table_scores import ROWS, TABLE

WIDTH, HIDDEN = 5, 3

NAMES = [row.kind.__name__ for row in TABLE.values()]
PAIRS = [TABLE[name].kind.__name__ for name in ONE_OF_EACH]
"""One score of each pair, for tests that depend on the pair alone."""
OUTER = [row.kind.__name__ for row in TABLE.values() if row.outer]
"""Scores with a root or a logarithm as outer function."""


def make_score(name: str, seed: int = 0, d: int = WIDTH, h: int = HIDDEN) -> Score:
    """Return the score of that name, with float64 NumPy arrays as parameters."""
    rng, row = np.random.default_rng([seed, NAMES.index(name)]), ROWS[name]
    fields: dict[str, Any] = dict(row.fixed)
    for field, number in row.sample.items():
        shape = row.shape(field, d, d, h)
        fields[field] = rng.standard_normal(shape) if number is None else np.array(number)
    made: Score = row.kind(**fields)
    return made


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def leaves(score: Score, *arrays: np.ndarray) -> tuple[Score, list[torch.Tensor]]:
    """Return (score, [arrays, parameters]) as leaf tensors with gradients."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    score = score.map(lambda x: torch.tensor(x, requires_grad=True))
    return score, tensors + list(score.tensors().values())


def gradients(out: Any, inputs: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
    """Return gradients of a random functional of all results in `out`, an AttentionOutput."""
    results = [x for x in out if x is not None]
    upstream = [torch.tensor(normal(*x.shape, seed=seed), dtype=x.dtype) for x in results]
    return list(torch.autograd.grad(results, inputs, upstream, materialize_grads=True))


def allowed(
    mask: Any, framework: str, lead: tuple[int, ...] = (2,), queries: int = 5, keys: int = 7
) -> np.ndarray:
    """Return the attended pairs of `attention`, where its weights are not 0."""
    q, k, v = np.zeros((*lead, queries, 2)), np.zeros((*lead, keys, 2)), np.zeros((*lead, keys, 2))
    if framework == "torch":
        q, k, v = map(torch.tensor, (q, k, v))
    weights = np.asarray(attention(q, k, v, mask=mask, return_weights=True).weights)
    kept = weights > 0
    np.testing.assert_allclose(weights, kept / np.maximum(kept.sum(-1, keepdims=True), 1))
    return kept


def where(
    rule: Callable[..., bool], lead: tuple[int, ...] = (2,), queries: int = 5, keys: int = 7
) -> np.ndarray:
    """Return rule(*lead, i, j) for each entry, boolean (*lead, queries, keys)."""
    out = np.zeros((*lead, queries, keys), bool)
    for index in np.ndindex(*out.shape):
        out[index] = rule(*index)
    return out


def old_name(parameter: str) -> str:
    """Return the old name of a parameter of a layer with projections and a score with w_v."""
    return parameter.replace("qkv.", "_Attention__qkv.").replace("attention.w_v.", "attention.v.")
