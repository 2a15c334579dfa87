"""The formulas in a framework's plain operations, as a user would write them.

All scores and hidden features are in memory, masked scores are −∞, and no sum has a wider dtype.
The budget of the package is relative to the error of these formulas.
"""

from __future__ import annotations

import math
from typing import Any

from helpers import oracle
from helpers.table_scores import row_of


def attend(xp: Any, query: Any, key: Any, value: Any, score: Any, keep: Any = None) -> tuple:
    """Return output, weights and log-sum-exp. xp: numpy or torch. keep: boolean, in full shape."""
    s, value = matrix(xp, query, key, value, score)
    if not s.shape[-1]:
        nothing = s.sum(axis=-1)
        return s @ value, s, nothing - math.inf
    empty = xp.zeros(s.shape[:-1], dtype=bool if xp.__name__ == "numpy" else xp.bool)[..., None]
    if keep is not None:
        empty = ~xp.any(keep, axis=-1)[..., None]
        s = xp.where(keep | empty, s, -math.inf)
    detached = s.detach() if hasattr(s, "detach") else s
    top = xp.amax(detached, axis=-1, keepdims=True)
    e = xp.exp(s - top)
    total = xp.sum(e, axis=-1, keepdims=True)
    weights = xp.where(empty, 0.0, e / total)
    lse = xp.where(empty, -math.inf, top + xp.log(total))[..., 0]
    return weights @ value, weights, lse


def matrix(xp: Any, query: Any, key: Any, value: Any, score: Any) -> tuple[Any, Any]:
    """Return all scores, masked or not, and the value with the heads of the query."""
    lead = oracle.lead_of(query, key, value)
    (key, value), score = _heads(lead, key, value, score)
    s = scores(xp, query, key, score)
    return xp.broadcast_to(s, (*lead, query.shape[-2], key.shape[-2])), value


def scores(xp: Any, query: Any, key: Any, score: Any) -> Any:
    return row_of(score).plain(xp, query, key, score)


def _heads(lead: tuple[int, ...], key: Any, value: Any, score: Any) -> tuple[list, Any]:
    """Return key, value and the key's parameters, with heads repeated for the query heads."""

    def repeat(x: Any, axis: int) -> Any:
        if len(lead) < 2 or x is None or x.ndim < -axis or x.shape[axis] in (1, lead[-1]):
            return x
        index = [h * x.shape[axis] // lead[-1] for h in range(lead[-1])]
        return x[(..., index, *[slice(None)] * (-1 - axis))]

    if getattr(score, "W_k", None) is not None and score.W_k.ndim > 2:
        score = type(score)(**{**vars(score), "W_k": repeat(score.W_k, -3)})
    if getattr(score, "w_k", None) is not None and score.w_k.ndim > 1:
        score = type(score)(**{**vars(score), "w_k": repeat(score.w_k, -2)})
    return [repeat(x, -3) for x in (key, value)], score
