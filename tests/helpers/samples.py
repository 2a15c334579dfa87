"""What several files of tests share: one small instance of every score, arrays, and masks tried."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from anyscore import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    Euclidean,
    GATv2,
    Gaussian,
    Laplace,
    Lorentz,
    ScaledDot,
    Score,
    StudentT,
    Trilinear,
    attention,
)

WIDTH, HIDDEN = 5, 3

Formula = Callable[[Any, np.ndarray, np.ndarray], float]


def hyperbolic(x: np.ndarray, y: np.ndarray) -> float:
    """The distance of points of the hyperboloid above x and y."""
    return math.acosh(max(1.0, math.sqrt((1 + x @ x) * (1 + y @ y)) - x @ y))


FORMULAS: dict[str, Formula] = {
    "Dot": lambda s, q, k: q @ k,
    "ScaledDot": lambda s, q, k: q @ k / math.sqrt(len(q)),
    "Bilinear": lambda s, q, k: q @ s.W @ k,
    "Cosine": lambda s, q, k: q @ k / (np.linalg.norm(q) * np.linalg.norm(k) * s.tau),
    "Trilinear": lambda s, q, k: s.w_q @ q + s.w_k @ k + s.w_p @ (q * k),
    "Gaussian": lambda s, q, k: -((q - k) @ (q - k)) / (2 * s.sigma**2),
    "Laplace": lambda s, q, k: -np.abs(q - k).sum() / s.sigma,
    "Euclidean": lambda s, q, k: -math.dist(q, k) / s.sigma,
    "StudentT": lambda s, q, k: (
        -(s.nu + 1) / 2 * math.log1p((q - k) @ (q - k) / (s.nu * s.sigma**2))
    ),
    "Lorentz": lambda s, q, k: -s.scale * hyperbolic(q / s.sigma, k / s.sigma),
    "Additive": lambda s, q, k: s.w_v @ np.tanh(s.W_q @ q + s.W_k @ k + s.bias),
    "Concat": lambda s, q, k: s.w_v @ np.tanh(s.W @ np.concatenate([q, k])),
    "GATv2": lambda s, q, k: s.w_v @ (lambda x: np.where(x > 0, x, 0.2 * x))(s.W_q @ q + s.W_k @ k),
}

NAMES = list(FORMULAS)
OUTER = "Euclidean", "StudentT", "Lorentz"  # those that end in a root or a logarithm


def make_score(name: str, seed: int = 0, d: int = WIDTH, h: int = HIDDEN) -> Score:
    """The score of that name, its parameters float64 NumPy arrays."""
    rng = np.random.default_rng([seed, NAMES.index(name)])
    n = rng.standard_normal
    makers: dict[str, Callable[[], Score]] = {
        "Dot": Dot,
        "ScaledDot": ScaledDot,
        "Bilinear": lambda: Bilinear(n((d, d))),
        "Cosine": lambda: Cosine(np.array(0.5)),
        "Trilinear": lambda: Trilinear(n(d), n(d), n(d)),
        "Gaussian": lambda: Gaussian(np.array(1.7)),
        "Laplace": lambda: Laplace(np.array(1.3)),
        "Euclidean": lambda: Euclidean(np.array(1.3)),
        "StudentT": lambda: StudentT(1.5, np.array(0.7)),
        "Lorentz": lambda: Lorentz(np.array(1.2), 1.5),
        "Additive": lambda: Additive(n((h, d)), n((h, d)), n(h), n(h)),
        "Concat": lambda: Concat(n((h, 2 * d)), n(h)),
        "GATv2": lambda: GATv2(n((h, d)), n((h, d)), n(h)),
    }
    return makers[name]()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def table(name: str, score: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """s (..., T_q, T_k) by the formula, one pair at a time; leading dimensions alike."""
    out = np.zeros((*query.shape[:-1], key.shape[-2]))
    for *lead, i, j in np.ndindex(*out.shape):
        out[(*lead, i, j)] = FORMULAS[name](score, query[(*lead, i)], key[(*lead, j)])
    return out


def leaves(score: Score, *arrays: np.ndarray) -> tuple[Score, list[torch.Tensor]]:
    """Everything as leaf tensors that ask for gradients: the score, then arrays and parameters."""
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    score = score.map(lambda x: torch.tensor(x, requires_grad=True))
    return score, tensors + list(score.tensors().values())


def gradients(out: Any, inputs: list[torch.Tensor], seed: int = 0) -> list[torch.Tensor]:
    """Gradients of a random functional of all that `out`, an AttentionOutput, holds."""
    results = [x for x in out if x is not None]
    upstream = [torch.tensor(normal(*x.shape, seed=seed), dtype=x.dtype) for x in results]
    return list(torch.autograd.grad(results, inputs, upstream, materialize_grads=True))


def allowed(
    mask: Any, framework: str, lead: tuple[int, ...] = (2,), queries: int = 5, keys: int = 7
) -> np.ndarray:
    """What `attention` attends: where its weights are not 0."""
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
    """Boolean (*lead, queries, keys) of rule(*lead, i, j), one entry at a time."""
    out = np.zeros((*lead, queries, keys), bool)
    for index in np.ndindex(*out.shape):
        out[index] = rule(*index)
    return out


def old_name(parameter: str) -> str:
    """Of a parameter of a layer that projects by itself, with a score that has a w_v."""
    return parameter.replace("qkv.", "_Attention__qkv.").replace("attention.w_v.", "attention.v.")
