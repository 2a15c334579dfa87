"""Additive scores as plain products: tanh(a + b) ≈ Σ_r f_r(a) · g_r(b) for |a|, |b| ≤ L.

    tanh(a + b) = M(a, b) + M(b, a)        M(a, b) = ½ (tanh(a + b) − tanh(a − b)) ≈ Σ e(a) · o(b)

M is even in a and odd in b. Its singular functions e are even, its singular functions o odd; there
are rank / 2 of each. With f = (e, o) and g = (o, e), Σ_d w_d tanh(a_d + b_d) is a product of two
rows. A row has h · rank features, computed once for each token, so that matrix units compute the
scores. The page separable of the documentation states the errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from anyscore.call.backend import Backend, Implementation, Plan, choose, refuse
from anyscore.call.task import Options, Task
from anyscore.masks.lowered import zero_unread
from anyscore.ops import Array, Ops, accumulated, accumulation
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT, TANH

LIMIT = 4.0
"""The largest |a| and |b| that are accepted: the rank grows with the range."""
SLOPES = 4
"""Additional rank for derivatives: their error is 5 to 10 times that of the scores."""
_NODES = 64
_CPU = 1  # of DLPack
_UNKNOWN = (
    "the range of what is projected is measured first, and no numbers are known while a call is "
    "traced, compiled or batched by vmap"
)


@dataclass(frozen=True, eq=False)
class Table:
    """The singular functions for |a|, |b| ≤ limit.

    coefficients (terms, rank): of the even functions, then of the odd functions divided by x, in
    Chebyshev polynomials T_0, T_1, … of 2 (x / limit)² − 1. error: the largest error of tanh.
    """

    rank: int
    limit: float
    coefficients: np.ndarray
    error: float


@lru_cache(maxsize=32)
def table(rank: int, limit: float) -> Table:
    """Return the best functions of an even rank, from singular vectors on a Chebyshev grid."""
    angles = (np.arange(_NODES) + 0.5) * (np.pi / _NODES)
    x = limit * np.cos(angles / 2)
    even_odd = (np.tanh(x[:, None] + x) - np.tanh(x[:, None] - x)) / 2
    left, sizes, right = np.linalg.svd(even_odd)
    size = np.sqrt(sizes[: rank // 2])
    values = left[:, : rank // 2] * size, right[: rank // 2].T * size
    both = np.concatenate([values[0], values[1] * (limit / x)[:, None]], axis=1)
    polynomials = np.cos(angles[:, None] * np.arange(rank + 2))
    coefficients = polynomials.T @ both * (2 / _NODES)
    coefficients[0] /= 2
    grid = np.linspace(-limit, limit, 301)
    y = 2 * (grid / limit) ** 2 - 1
    even, odd = np.split(np.polynomial.chebyshev.chebval(y, coefficients), 2)
    product = (even.T @ odd) * (grid / limit)
    error = np.abs(product + product.T - np.tanh(grid[:, None] + grid)).max()
    return Table(rank, limit, coefficients, float(error))


def table_for(reach: float, differentiable: bool = False) -> Table:
    """Return the table of the smallest limit ≥ reach, in steps of ½. Its rank is 4 · limit."""
    rank = max(6, 2 * math.ceil(2 * reach))
    return table(rank + SLOPES if differentiable else rank, rank / 4)


def features(xp: Ops, x: Array, of: Table) -> tuple[Array, Array]:
    """Return the even and the odd functions of x (..., h), each (..., h, rank / 2)."""
    x = x / of.limit
    y = 2 * x * x - 1
    terms = [0 * y + 1, y]
    while len(terms) < len(of.coefficients):
        terms.append(2 * y * terms[-1] - terms[-2])
    coefficients = xp.astype(xp.array(of.coefficients, like=x), xp.dtype(x))
    both = xp.matmul(xp.stack(terms, -1), coefficients)
    half = of.rank // 2
    return both[..., :half], both[..., half:] * x[..., None]


def as_product(xp: Ops, task: Task, differentiable: bool) -> tuple[Task, str]:
    """Rewrite an additive task with a product as its score. Return (task, its rank in words).

    Raises:
        NotImplementedError: the score is not additive, or its range is unknown or too large.
    """
    f = task.score
    if not isinstance(f, Factors) or f.pair != TANH:
        got = f"the pair {f.pair.name!r}" if isinstance(f, Factors) else "a callable"
        refuse("separable", f"it is for the scores Additive and Concat, the score is {got}")
    a, b = f.a, f.b
    if task.mask is not None:  # masked rows do not count for the range
        queries, keys = task.mask.attending_attended
        a, _ = zero_unread(xp, a, queries)
        b, _ = zero_unread(xp, b, keys, task.sizes.groups)
    reach_a, reach_b = _reach(xp, a), _reach(xp, b)
    reached = f"|a| ≤ {reach_a:.3g} for queries and |b| ≤ {reach_b:.3g} for keys"
    if not max(reach_a, reach_b) <= LIMIT:
        refuse(
            "separable",
            f"it is for tanh(a + b) with |a|, |b| ≤ {LIMIT:g}, and here {reached}: make what is "
            "projected, or the projections, smaller",
        )
    of = table_for(max(reach_a, reach_b), differentiable)
    (even_a, odd_a), (even_b, odd_b) = (features(xp, accumulated(xp, x), of) for x in (a, b))
    if f.weight is not None:
        weight = accumulated(xp, f.weight)[..., None, :, None]
        even_a, odd_a = even_a * weight, odd_a * weight
    dtype = _dtype(xp, f.a, differentiable)

    def row(*halves: Array) -> Array:
        *lead, h, half = xp.shape(halves[0])
        flat = xp.stack([xp.reshape(x, (*lead, h * half)) for x in halves], -2)
        return xp.astype(xp.reshape(flat, (*lead, 2 * h * half)), dtype)

    a, b = row(even_a, odd_a), row(odd_b, even_b)
    product = f._replace(a=a, b=b, pair=PRODUCT, weight=None)
    why = f"rank {of.rank}, each tanh within {of.error:.1g}, as {reached}"
    return task._replace(score=product, packed=None), why


def choose_product(
    backend: Backend, task: Task, options: Options
) -> tuple[Plan, Implementation, Task]:
    """Choose the fused implementation that runs an additive task as a product.

    Return (plan, implementation, the task of the product).
    """
    f = task.score
    own = (f.a, f.b, f.weight) if isinstance(f, Factors) else ()
    trained = backend.differentiable(x for x in own if x is not None)
    task, why = as_product(backend.xp, task, trained)
    plan, implementation = choose(backend, task, options)
    return Plan("separable", f"{why}; the product runs on {plan.route}"), implementation, task


def _reach(xp: Ops, x: Array) -> float:
    """Return the largest |x|. NaN is left out: NaN reaches the scores whatever the range is."""
    if xp.is_tracing():
        refuse("separable", _UNKNOWN)
    if 0 in xp.shape(x):
        return 0.0
    x = xp.abs(xp.stop_gradient(x))
    try:
        return float(xp.max(xp.reshape(xp.where(x == x, x, 0.0), (math.prod(xp.shape(x)),)), 0))
    except (TypeError, ValueError, RuntimeError):  # a tracer of JAX, vmap or meta of PyTorch, …
        refuse("separable", _UNKNOWN)


def _dtype(xp: Ops, x: Array, differentiable: bool) -> str:
    """Return the dtype for features of x: float16 on accelerators, which holds three digits.

    With derivatives the dtype of x: the range of float16 may be too narrow for gradients.
    """
    dtype = xp.dtype(x)
    if dtype == "float64" or not _accelerated(x):
        return accumulation(dtype)
    return dtype if differentiable else "float16"


def _accelerated(x: Array) -> bool:
    """Return whether x is known to be in the memory of one accelerator."""
    try:
        return bool(x.__dlpack_device__()[0] != _CPU)
    except (AttributeError, BufferError):  # tracers; arrays spread over devices
        return False
