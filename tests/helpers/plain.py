"""The same formulas in a framework's plain operations, as a user would write them.

All scores and all hidden features are held, masked scores are −∞, and nothing is accumulated in a
wider type. Its distance from the oracle is the measure of the package's.
"""

from __future__ import annotations

import math
from typing import Any

import oracle


def attend(xp: Any, query: Any, key: Any, value: Any, score: Any, keep: Any = None) -> tuple:
    """Output, weights and log-sum-exp. xp: numpy or torch; keep: its boolean array, in full."""
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
    """All scores, masked or not, and the value with the heads of the query."""
    lead = oracle.lead_of(query, key, value)
    (key, value), score = _heads(lead, key, value, score)
    s = scores(xp, query, key, score)
    return xp.broadcast_to(s, (*lead, query.shape[-2], key.shape[-2])), value


def scores(xp: Any, query: Any, key: Any, score: Any) -> Any:
    kind, p = type(score).__name__, score
    product = query @ key.swapaxes(-1, -2) if kind in PRODUCTS else 0
    difference = query[..., :, None, :] - key[..., None, :, :] if kind in DISTANCES else 0
    if kind == "Dot":
        return product
    if kind == "SquaredProduct":
        return product**2 / 20
    if kind == "ScaledDot":
        return product / math.sqrt(query.shape[-1]) if p.scale is None else product * _each(p.scale)
    if kind == "Bilinear":
        return query @ p.W @ key.swapaxes(-1, -2) * (1 if p.scale is None else _each(p.scale))
    if kind == "Cosine":
        norms = [xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True)) for x in (query, key)]
        return product / (norms[0] * norms[1].swapaxes(-1, -2)) / _each(p.tau)
    if kind == "Trilinear":
        both = (query * p.w_p[..., None, :]) @ key.swapaxes(-1, -2)
        alone = xp.sum(key * p.w_k[..., None, :], axis=-1)[..., None, :]
        return both + alone + xp.sum(query * p.w_q[..., None, :], axis=-1)[..., :, None]
    if kind == "Gaussian":
        return -xp.sum(difference * difference, axis=-1) / (2 * _each(p.sigma) ** 2)
    if kind == "Laplace":
        return -xp.sum(xp.abs(difference), axis=-1) / _each(p.sigma)
    if kind == "Euclidean":
        return -_root(xp, xp.sum(difference * difference, axis=-1)) / _each(p.sigma)
    if kind == "StudentT":
        square = xp.sum(difference * difference, axis=-1) / (p.nu * _each(p.sigma) ** 2)
        return -(p.nu + 1) / 2 * xp.log1p(square)
    if kind == "Lorentz":
        return -p.scale * _hyperbolic(xp, difference / _token(p.sigma), query, key, p.sigma)
    if kind == "Concat":
        W_q, W_k = p.W[..., : query.shape[-1]], p.W[..., query.shape[-1] :]
    else:
        W_q, W_k = p.W_q, p.W_k
    a = query if W_q is None else query @ W_q.swapaxes(-1, -2)
    b = key if W_k is None else key @ W_k.swapaxes(-1, -2)
    x = a[..., :, None, :] + b[..., None, :, :]
    if getattr(p, "bias", None) is not None:
        x = x + p.bias[..., None, None, :]
    if kind == "GATv2":
        slope = p.negative_slope
        slope = slope[..., None, None, None] if hasattr(slope, "shape") else slope
        x = xp.where(x > 0, x, slope * x)
    else:
        x = xp.tanh(x)
    scale = getattr(p, "scale", None)
    return xp.sum(x * p.w_v[..., None, None, :], axis=-1) * (1 if scale is None else _each(scale))


DISTANCES = ("Gaussian", "Laplace", "Euclidean", "StudentT", "Lorentz")
PRODUCTS = ("Dot", "SquaredProduct", "ScaledDot", "Cosine")


def _root(xp: Any, x: Any) -> Any:
    """√x, of derivative 0 at 0."""
    return xp.where(x > 0, xp.sqrt(xp.where(x > 0, x, 1.0)), 0.0)


def _hyperbolic(xp: Any, difference: Any, query: Any, key: Any, sigma: Any) -> Any:
    """arcosh(1 + u), u half of the squared Lorentz distance of the points above."""
    points = [x / _each(sigma) for x in (query, key)]
    a, b = (xp.sqrt(1 + xp.sum(x * x, axis=-1)) for x in points)
    u = (xp.sum(difference * difference, axis=-1) - (a[..., :, None] - b[..., None, :]) ** 2) / 2
    u = xp.where(u > 0, u, 0.0)
    return xp.log1p(u + _root(xp, u * (u + 2)))


def _token(x: Any) -> Any:
    """A scale for each head, or for all, against (..., T_q, T_k, d)."""
    return x[..., None, None, None] if hasattr(x, "shape") else x


def _each(x: Any) -> Any:
    """A scale for each head, or for all, against scores (..., T_q, T_k)."""
    return x[..., None, None] if hasattr(x, "shape") else x


def _heads(lead: tuple[int, ...], key: Any, value: Any, score: Any) -> tuple[list, Any]:
    """Key, value and parameters of the key with their heads repeated for each query head."""

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
