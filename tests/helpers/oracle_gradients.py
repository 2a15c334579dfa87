"""Exact gradients by float64 autograd, one query at a time over its attended keys.

Keys are gathered first, so a masked key takes no part. Autograd differentiates the plain formulas
of `table_scores`; `test_oracle` compares their gradients with finite differences of the loops in
`oracle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from helpers import oracle
from helpers.table_scores import RANKS, row_of


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the CPU as default device."""

    @wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        with torch.device("cpu"):
            return function(*args, **options)

    return run


@_on_cpu
def gradients(
    query: Any,
    key: Any,
    value: Any,
    score: Any,
    d_output: np.ndarray,
    d_lse: np.ndarray,
    mask: Any = None,
    valid_lens: Any = None,
    of_scores: Callable[[Tensor], Tensor] | None = None,
    d_scores: Any = None,
) -> dict[str, np.ndarray]:
    """Return the gradients of Σ d_output · output + Σ d_lse · lse by name, with parameters.

    A query without keys has no part in either sum. With d_scores (..., T_q, T_k) the sum includes Σ
    d_scores · of_scores(s), with s the scores (n,) of the attended keys.
    """
    leaves = leaves_of(query, key, value, score)
    formula, loss = formula_of(score), torch.zeros((), dtype=torch.float64)
    for at, attended, q, k, v, p in attending(leaves, score, mask, valid_lens):
        s = formula(q, k, p)
        loss = loss + torch.softmax(s, 0) @ v @ torch.from_numpy(d_output[at])
        loss = loss + torch.logsumexp(s, 0) * d_lse[at]
        if of_scores is not None:
            loss = loss + of_scores(s) @ torch.from_numpy(d_scores[at][attended.numpy()])
    if not loss.requires_grad:
        return {name: np.zeros(x.shape) for name, x in leaves.items()}
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return {name: x.numpy() for name, x in zip(leaves, found, strict=True)}


@_on_cpu
def largest_terms(
    query: Any,
    key: Any,
    value: Any,
    score: Any,
    d_output: np.ndarray,
    d_lse: np.ndarray,
    mask: Any = None,
    valid_lens: Any = None,
    terms_of: Callable[[Tensor, Tensor], Tensor] | None = None,
    d_scores: Any = None,
) -> dict[str, float]:
    """Return the float32 roundings of gradients with terms that cancel, by name: the largest of

        Σ_ij P_ij (|dO_i| · |v_j| + |dO_i| · |O_i| + |dlse_i|) (4 |∂s_ij/∂x| + |∂s'_ij/∂x|)

    Each term has four roundings, and the roundings of tanh(a + b) itself: s' replaces tanh by
    min(1, |a| + |b|), and 1 − tanh² by min(1, (1 − tanh²)/eps), as the slope is lost where tanh is
    ±1 up to a rounding. terms_of: (weights, |d_scores|) of the attended keys → additional terms.
    """

    def terms(at: tuple[int, ...], attended: Tensor, s: Tensor, values: Tensor) -> Tensor:
        weights = torch.softmax(s, 0)
        d_o = torch.from_numpy(np.abs(d_output[at]))
        found = values.abs() @ d_o + (weights @ values).abs() @ d_o + abs(d_lse[at])
        found = weights * found
        if terms_of is not None:
            d = torch.from_numpy(np.abs(d_scores[at][attended.numpy()]))
            found = found + terms_of(weights, d)
        return found

    return largest_sums(query, key, value, score, terms, mask, valid_lens)


@_on_cpu
def largest_sums(
    query: Any,
    key: Any,
    value: Any,
    score: Any,
    terms_of: Callable[[tuple[int, ...], Tensor, Tensor, Tensor], Tensor],
    mask: Any = None,
    valid_lens: Any = None,
) -> dict[str, float]:
    """Return the largest of Σ_ij terms_ij (4 |∂s_ij/∂x| + |∂s'_ij/∂x|), see `largest_terms`.

    terms_of: (index of a query, its attended keys, their scores, their values) → their terms.
    """
    leaves = leaves_of(query, key, value, score)
    scores = formula_of(score)
    formulas = [(4.0, scores)]
    if row_of(score).pair == "tanh":
        formulas.append((1.0, _rounded))
    sums = {name: torch.zeros_like(x) for name, x in leaves.items() if name != "value"}
    inputs = [leaves[name] for name in sums]
    for at, attended, q, k, v, p in attending(leaves, score, mask, valid_lens):
        terms = terms_of(at, attended, scores(q, k, p).detach(), v.detach())
        for times, formula in formulas:
            for one, term in zip(formula(q, k, p), terms, strict=True):
                slopes = torch.autograd.grad(one, inputs, retain_graph=True, materialize_grads=True)
                for name, slope in zip(sums, slopes, strict=True):
                    sums[name] += times * term * slope.abs()
    return {name: float(x.max()) if x.numel() else 0.0 for name, x in sums.items()}


def leaves_of(query: Any, key: Any, value: Any, score: Any) -> dict[str, Tensor]:
    """Return query, key, value and the parameters by name, as float64 leaves."""
    tensors = {"query": query, "key": key, "value": value}
    tensors |= {name: x for name, x in _fields(score).items() if hasattr(x, "dtype")}
    return {name: torch.tensor(oracle.numbers(x)).requires_grad_() for name, x in tensors.items()}


def _fields(score: Any) -> dict[str, Any]:
    return vars(score) if hasattr(score, "__dataclass_fields__") else {}


def attending(
    leaves: dict[str, Tensor], score: Any, mask: Any, valid_lens: Any
) -> Iterator[tuple[tuple[int, ...], Tensor, Tensor, Tensor, Tensor, dict[str, Any]]]:
    """Yield (index, attended, query, keys, values, parameters) of each query with keys.

    attended: indices of the keys. keys, values: their rows.
    """
    q, k, v = (leaves[name] for name in ("query", "key", "value"))
    lead = oracle.lead_of(*(oracle.numbers(x.detach()) for x in (q, k, v)))
    queries, keys = q.shape[-2], k.shape[-2]
    keep = oracle.allowed(mask, lead, queries, keys)
    keep &= oracle.allowed(oracle.lengths(valid_lens), lead, queries, keys)
    for n in np.ndindex(*lead):
        of_q, of_k, of_v = (oracle.place(tuple(x.shape[:-2]), n, lead) for x in (q, k, v))
        own = _fields(score).items()
        p = {name: _own(name, leaves.get(name, x), of_q, of_k) for name, x in own}
        for i in range(queries):
            attended = torch.from_numpy(np.flatnonzero(keep[(*n, i)]))
            if len(attended):
                yield (*n, i), attended, q[(*of_q, i)], k[of_k][attended], v[of_v][attended], p


def _own(name: str, x: Any, of_q: tuple[int, ...], of_k: tuple[int, ...]) -> Any:
    """Return a parameter at these leading indices of query or key."""
    if not isinstance(x, Tensor):
        return x
    lead = tuple(x.shape[: x.ndim - RANKS[name]])
    return x[oracle.place(lead, of_k if name in oracle.OF_KEY else of_q)]


Parameters = dict[str, Any]
Formula = Callable[[Tensor, Tensor, Parameters], Tensor]


def formula_of(score: Any) -> Formula:
    """Return a function to scores (n,) of a query (d_q,) and keys (n, d_k), by plain operations."""
    plain = row_of(score).plain
    return lambda q, k, p: plain(torch, q[None], k, SimpleNamespace(**p))[0]


class _Rounded(torch.autograd.Function):
    """Errors of tanh(a + b) and of its slope, in roundings."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a + b)
        return (a.abs() + b.abs()).clamp(max=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        slope = grads[0] * (x.cosh() ** -2 * 2.0**23).clamp(max=1)
        return slope.sum(0), slope


def _rounded(q: Tensor, k: Tensor, p: Parameters) -> Tensor:
    if "W" in p:
        W_q, W_k = p["W"][:, : len(q)], p["W"][:, len(q) :]
    else:
        W_q, W_k = p["W_q"], p["W_k"]
    a, b = q if W_q is None else W_q @ q, k if W_k is None else k @ W_k.T
    scale = 1 if p["scale"] is None else p["scale"]
    return _Rounded.apply(a if p.get("bias") is None else a + p["bias"], b) @ p["w_v"] * scale
