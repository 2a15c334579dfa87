"""The oracle computes attention by loops over single numbers in float64, from the papers' formulas.

The oracle shares no code with the package. Scores and masks of the package serve as plain data: a
class name and its fields. Masked entries are never read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as dataclass_fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from helpers.table_masks import RULES
from helpers.table_scores import RANKS, Vector, dot, row_of, times, total

OF_KEY = ("W_k", "w_k")
"""Parameters with the leading dimensions of the key; other parameters have the query's."""


class Result(NamedTuple):
    output: np.ndarray
    weights: np.ndarray
    lse: np.ndarray


def attend(
    query: Any,
    key: Any,
    value: Any,
    score: Any,
    mask: Any = None,
    valid_lens: Any = None,
    softcap: float = 0.0,
) -> Result:
    """Return output (*lead, T_q, d_v), weights (*lead, T_q, T_k) and log-sum-exp (*lead, T_q)."""
    return Result(*_attend(query, key, value, score, mask, valid_lens, softcap)[:3])


def scores(
    query: Any, key: Any, score: Any, mask: Any = None, valid_lens: Any = None, softcap: float = 0.0
) -> np.ndarray:
    """Return the scores (*lead, T_q, T_k), −∞ where masked."""
    return _attend(query, key, key, score, mask, valid_lens, softcap)[3]


def _attend(
    query: Any, key: Any, value: Any, score: Any, mask: Any, valid_lens: Any, softcap: float
) -> tuple[np.ndarray, ...]:
    q, k, v = numbers(query), numbers(key), numbers(value)
    lead, queries, keys = lead_of(q, k, v), q.shape[-2], k.shape[-2]
    keep = allowed(mask, lead, queries, keys) & allowed(lengths(valid_lens), lead, queries, keys)
    output = np.full((*lead, queries, v.shape[-1]), np.nan)
    weights = np.full((*lead, queries, keys), np.nan)
    lse = np.full((*lead, queries), np.nan)
    matrix = np.full((*lead, queries, keys), -np.inf)
    formula = row_of(score).exact
    for n in np.ndindex(*lead):
        of_q, of_k, of_v = (place(x.shape[:-2], n, lead) for x in (q, k, v))
        qs, ks, vs = q[of_q].tolist(), k[of_k].tolist(), v[of_v].tolist()
        fields = parameters(score, of_q, of_k)
        qs = projected(fields.get("W_q"), qs, keep[n].any(-1))
        ks = projected(fields.get("W_k"), ks, keep[n].any(-2))
        for i, row in enumerate(qs):
            attended = np.flatnonzero(keep[(*n, i)]).tolist()
            s = [formula(row, ks[j], fields) for j in attended]
            s = [softcap * math.tanh(x / softcap) for x in s] if softcap else s
            matrix[(*n, i)][attended] = s
            w, lse[(*n, i)] = softmax(s)
            weights[(*n, i)] = 0.0
            weights[(*n, i)][attended] = w
            output[(*n, i)] = [dot(w, [vs[j][c] for j in attended]) for c in range(v.shape[-1])]
    return output, weights, lse, matrix


def projected(W: list[Vector] | None, tokens: list[Vector], used: np.ndarray) -> list[Vector]:
    """Return W x for each used token x, and x itself without W."""
    return [x if W is None or not u else times(W, x) for x, u in zip(tokens, used, strict=True)]


def softmax(s: Vector) -> tuple[Vector, float]:
    """Return weights and log-sum-exp; [] and −∞ without scores."""
    if not s:
        return [], -math.inf
    top = max(s)
    if any(map(math.isnan, s)) or math.isinf(top):
        return [math.nan] * len(s), math.nan
    e = [math.exp(x - top) for x in s]
    z = total(e)
    return [x / z for x in e], top + math.log(z)


# ------------------------------------------------------------------------------- the masks


def lengths(valid_lens: Any) -> Any:
    from anyscore import Lengths

    return None if valid_lens is None else Lengths(valid_lens)


def allowed(mask: Any, lead: tuple[int, ...], queries: int, keys: int) -> np.ndarray:
    """Return a mask object or boolean array as a boolean array (*lead, T_q, T_k)."""
    keep = np.ones((*lead, queries, keys), dtype=bool)
    if mask is None:
        return keep
    for *n, i, j in product(*map(range, keep.shape)):
        keep[(*n, i, j)] = _may_attend(mask, Entry(lead, tuple(n), i, j, queries, keys))
    return keep


def _may_attend(mask: Any, entry: Entry) -> bool:
    kind = type(mask).__name__
    if kind == "All":
        return all(_may_attend(one, entry) for one in mask.masks)
    if kind in RULES:
        return bool(RULES[kind](mask, entry))
    keep = array(mask.keep if kind == "BooleanMask" else mask)
    return bool(at(keep[..., None], (*entry.n, entry.i, entry.j), 1)[0])


@dataclass(frozen=True)
class Entry:
    """Query i and key j of the head n, and the entries of a mask's arrays there."""

    lead: tuple[int, ...]
    n: tuple[int, ...]
    i: int
    j: int
    queries: int
    keys: int

    def number(self, x: Any) -> float:
        """Return a length or bound from x: (), (B,), (B, T_q) or broadcastable to (*lead, T_q)."""
        x = array(x)
        if x.ndim == 1 and self.lead:
            return float(at(x[:, None], self.n[:1], 1)[0])
        if x.ndim == 2 and len(self.lead) > 1:
            return float(at(x[..., None], (self.n[0], self.i), 1)[0])
        return float(at(x[..., None], (*self.n, self.i), 1)[0])

    def flag(self, x: Any) -> bool:
        """Return the mark of a key: shape (T_k,), (B, T_k) or (*lead, T_k)."""
        x = array(x)
        n = self.n[:1] if x.ndim == 2 and self.lead else self.n
        return bool(at(x, n, 1)[self.j])


# ------------------------------------------------------------------------------ small tools


def array(x: Any) -> np.ndarray:
    """Return a mask's array: bounds of any dtype, or booleans."""
    return numbers(x) if hasattr(x, "detach") else np.asarray(x)


def numbers(x: Any) -> np.ndarray:
    """Return a tensor of any framework and float dtype, bfloat16 too, as float64."""
    x = x.detach().cpu().double().numpy() if hasattr(x, "detach") else x
    return np.asarray(x).astype(np.float64)


def lead_of(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[int, ...]:
    """Return the output's leading dimensions: broadcast, except that kv heads may be fewer."""
    heads = q.shape[-3] if q.ndim >= 4 else None
    leads = [q.shape[:-2]]
    for x in (k, v):
        lead = x.shape[:-2]
        if heads is not None and x.ndim >= 4 and 1 < lead[-1] < heads:
            lead = (*lead[:-1], heads)
        leads.append(lead)
    return np.broadcast_shapes(*leads)


def place(
    lead: tuple[int, ...], n: tuple[int, ...], full: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Return the index into a tensor with dimensions `lead` for the output at n of `full`.

    Axes of size 1 broadcast. If `lead` has fewer heads than `full`, each head serves a block of
    heads.
    """
    skip = len(n) - len(lead)
    sizes = lead if full is None else full[skip:]
    axes = zip(lead, n[skip:], sizes, strict=True)
    return tuple(0 if own == 1 else m * own // size for own, m, size in axes)


def at(x: np.ndarray, n: tuple[int, ...], own: int) -> np.ndarray:
    return x[place(x.shape[: x.ndim - own], n)]


def parameters(score: Any, of_query: tuple[int, ...], of_key: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of a score at these leading indices of query and key, as lists."""
    fields = {}
    for name in [field.name for field in dataclass_fields(score)] if is_dataclass(score) else ():
        x = getattr(score, name)
        if x is not None:
            lead = of_key if name in OF_KEY else of_query
            x = at(numbers(np.asarray(x) if np.isscalar(x) else x), lead, RANKS[name]).tolist()
        fields[name] = x
    return fields
