"""`attention`: check, lower, plan, run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from anyscore import dropout as philox
from anyscore import reference
from anyscore.checks import check_options, check_tensors, find_ops
from anyscore.factors import Factors
from anyscore.ops import Array, Ops
from anyscore.routes import Plan, Seam, choose, find_seam
from anyscore.scores import ScaledDot, Score
from anyscore.task import Task, prepare, split_heads


class AttentionOutput(NamedTuple):
    """What `attention` returns if a `return_*` flag is set: None for what was not asked."""

    output: Array
    weights: Array | None = None
    lse: Array | None = None


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    score: Score | Callable[[Array, Array], Array] = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
) -> Any:
    """Attention with any scoring function.

        output_i = Σ_j softmax_j s(query_i, key_j) · value_j        over the attended keys j

    Args:
        query: (..., T_q, d_q), of any supported framework.
        key: (..., T_k, d_k). Leading dimensions broadcast; axis −3 (rank ≥ 4) is heads, and there
            key and value may have fewer: query head h uses head h // (H_q / H_kv).
        value: (..., T_k, d_v).
        score: a score object, or a callable (query, key) → (..., T_q, T_k).
        mask: mask objects or a boolean array, True = may attend; see `anyscore.masks`.
        valid_lens: as `Lengths`; intersected with `mask`.
        dropout: rate p in [0, 1) on the weights, which are scaled by 1/(1−p); always applied.
        dropout_seed: an integer; drawn from the framework's generator if None.
        return_weights: also give the weights (..., T_q, T_k), before dropout.
        return_lse: also give the log-sum-exp of the scores (..., T_q), float32 or better.
        impl: "auto" chooses; "reference" is the definition in plain operations; "fused" raises,
            with the reason, where no fused implementation keeps the contract.

    Returns:
        The output (..., T_q, d_v), in the dtype of the query; `AttentionOutput` if a `return_*`
        flag is set. A query that may attend to nothing gives output 0, weights 0, log-sum-exp −∞.

    Raises:
        TypeError, ValueError: on wrong input, before any work.
        RuntimeError: if impl="fused" cannot run.

    >>> import numpy as np
    >>> keys = np.ones((2, 10, 2)); values = np.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    >>> attention(np.ones((2, 1, 2)), keys, values, valid_lens=[2, 6])[:, 0]
    array([[ 2.,  3.,  4.,  5.],
           [10., 11., 12., 13.]])
    """
    check_options(dropout, dropout_seed, impl)
    xp, seam = find(query, key, value)
    context, dtype = seam.precision(query)
    with context:
        task = lower(xp, dtype, query, key, value, score, mask, valid_lens)
        chosen = choose(seam, task, dropout, return_lse, impl)
        if dropout and dropout_seed is None:
            dropout_seed = seam.draw_seed(task.value)
        result = run(xp, seam, task, chosen, dropout, dropout_seed, return_weights)
    if return_weights or return_lse:
        return result if return_lse else result._replace(lse=None)
    return result.output


def plan(
    query: Array,
    key: Array,
    value: Array,
    *,
    score: Score | Callable[[Array, Array], Array] = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    impl: str = "auto",
) -> Plan:
    """What `attention` would choose for the same arguments, and why."""
    check_options(dropout, None, impl)
    xp, seam = find(query, key, value)
    context, dtype = seam.precision(query)
    with context:
        task = lower(xp, dtype, query, key, value, score, mask, valid_lens)
        return choose(seam, task, dropout, return_lse, impl)


def find(query: Array, key: Array, value: Array) -> tuple[Ops, Seam]:
    """The operations and the seam of the framework that all three belong to."""
    xp = find_ops(query=query, key=key, value=value)
    return xp, find_seam(xp)


def lower(
    xp: Ops,
    dtype: str | None,
    query: Array,
    key: Array,
    value: Array,
    score: Any,
    mask: Any,
    valid_lens: Any,
) -> Task:
    """Check a call and lower it; dtype: what autocasting asks for, as it does of any product."""
    if dtype is not None:

        def autocast(x: Array) -> Array:
            return x if xp.dtype(x) == "float64" else xp.astype(x, dtype)

        query, key, value = autocast(query), autocast(key), autocast(value)
        if isinstance(score, Score):
            score = score.map(autocast)
    sizes = check_tensors(xp, query, key, value)
    return prepare(xp, sizes, query, key, value, score, mask, valid_lens)


def run(
    xp: Ops, seam: Seam, task: Task, chosen: Plan, p: float, seed: Any, return_weights: bool
) -> AttentionOutput:
    """A prepared task by the route chosen; the weights only if asked."""
    if chosen.route == "reference":
        result = run_reference(xp, task, p, seed)
        return result if return_weights else result._replace(weights=None)
    weights = run_reference(xp, task).weights if return_weights else None
    (route,) = (route for route in seam.ROUTES if route.name == chosen.route)
    return AttentionOutput(route.run(task), weights)


def run_reference(xp: Ops, task: Task, p: float = 0.0, seed: Any = None) -> AttentionOutput:
    """A prepared task by the definition."""
    sizes, groups = task.sizes, task.sizes.groups

    def of_query(x: Array | None, axis: int = -3) -> Array | None:
        return None if x is None else split_heads(xp, x, groups, True, axis)

    def of_key(x: Array | None, axis: int = -3) -> Array | None:
        return None if x is None else split_heads(xp, x, groups, False, axis)

    def up(x: Array | None) -> Array | None:
        return None if x is None else reference.accumulated(xp, x)

    kept = None
    if p:
        seed = xp.array(seed, like=task.value)
        kept = philox.keep(xp, seed, p, sizes.lead, sizes.queries, sizes.keys)
    score = task.score
    if isinstance(score, Factors):
        score = replace(
            score,
            a=of_query(up(score.a)),
            b=of_key(up(score.b)),
            weight=of_query(up(score.weight), axis=-2),
            query_bias=of_query(up(score.query_bias), axis=-2),
            key_bias=of_key(up(score.key_bias), axis=-2),
        )
    else:
        score = of_query(up(score))
    output, weights, lse = reference.attend(
        xp, score, of_key(up(task.value)), of_query(task.keep), task.mixed, of_query(kept), p
    )
    full = (*sizes.lead, sizes.queries)
    return AttentionOutput(
        xp.astype(_full(xp, output, (*full, xp.shape(task.value)[-1])), task.dtype),
        xp.astype(_full(xp, weights, (*full, sizes.keys)), task.dtype),
        _full(xp, lse, full),
    )


def _full(xp: Ops, x: Array, shape: tuple[int, ...]) -> Array:
    """`x` with the two axes of grouped heads made one, broadcast to `shape`."""
    if math.prod(xp.shape(x)) == math.prod(shape):
        return xp.reshape(x, shape)
    return xp.broadcast_to(x, shape)
