"""`attention`: check, lower, plan, run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from anyscore import dropout as philox
from anyscore import ops, reference, seams
from anyscore.checks import Sizes, check_options, check_tensors, find_framework
from anyscore.factors import Factors
from anyscore.ops import Array, Ops
from anyscore.routes import Plan, Seam, choose
from anyscore.score import Score
from anyscore.scores import ScaledDot
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
    result, _ = attend(
        query, key, value, score, mask, valid_lens, dropout, dropout_seed,
        return_weights, return_lse, impl,
    )  # fmt: skip
    return result if return_weights or return_lse else result.output


def plan(
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
) -> Plan:
    """What `attention` would choose for the same arguments, and why.

    The call is checked and lowered for that, projections included, but not run.

    >>> import numpy as np
    >>> x = np.ones((1, 2, 3))
    >>> plan(x, x, x)
    Plan(route='reference', reason='no fused implementation for this framework')
    """
    check_options(dropout, dropout_seed, impl)
    _, seam, _, task = lower(query, key, value, score, mask, valid_lens)
    return choose(seam, task, dropout, return_lse, impl)[0]


def attend(
    query: Array,
    key: Array,
    value: Array,
    score: Any,
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
) -> tuple[AttentionOutput, Task]:
    """`attention` for layers: the output, and the task, from which `weights` can be had later."""
    check_options(dropout, dropout_seed, impl)
    xp, seam, own, task = lower(query, key, value, score, mask, valid_lens)
    with own():
        _, route = choose(seam, task, dropout, return_lse, impl)
        if dropout and dropout_seed is None:
            dropout_seed = seam.draw_seed(task.value)
        if route is None:
            output, attended, lse = run_reference(xp, task, dropout, dropout_seed)
        else:
            output, attended, lse = route.run(task), None, None
            attended = weights(task) if return_weights else None
    return AttentionOutput(
        output, attended if return_weights else None, lse if return_lse else None
    ), task


def find(query: Array, key: Array, value: Array) -> tuple[Ops, Seam]:
    """The operations and the seam of the framework that all three belong to."""
    name = find_framework(query=query, key=key, value=value)
    return ops.load(name), seams.load(name)


def lower(
    query: Array, key: Array, value: Array, score: Any, mask: Any, valid_lens: Any
) -> tuple[Ops, Seam, Callable[[], AbstractContextManager[Any]], Task]:
    """A call, checked and lowered; with its operations, its seam and its context to compute in."""
    xp, seam = find(query, key, value)
    own, dtype = seam.precision(query)
    with own() if isinstance(score, Score) else nullcontext():  # a callable keeps its context
        if dtype is not None:
            query, key, value, score = _autocast(xp, dtype, query, key, value, score)
        sizes = check_tensors(xp, query, key, value)
        return xp, seam, own, prepare(xp, sizes, query, key, value, score, mask, valid_lens)


def _autocast(
    xp: Ops, dtype: str, query: Array, key: Array, value: Array, score: Any
) -> tuple[Any, ...]:
    """What autocasting to `dtype` makes of the inputs of a product; scales are not rounded."""

    def cast(x: Array) -> Array:
        rounded = xp.dtype(x) in ("float32", "float16", "bfloat16")
        return xp.astype(x, dtype) if rounded else x

    if isinstance(score, Score):
        wide = [name for name, shape in score.shapes.items() if shape == ()]
        tensors = {name: x for name, x in score.tensors().items() if name not in wide}
        score = replace(score, **{name: cast(x) for name, x in tensors.items()})
    return cast(query), cast(key), cast(value), score


def run_reference(xp: Ops, task: Task, p: float, seed: Any) -> tuple[Array, Array, Array]:
    """Output, weights and log-sum-exp of a task by the definition, with dropout at rate p."""
    sizes, kept = task.sizes, None
    if p:
        seed = philox.as_seed(xp, seed, like=task.value)
        kept = philox.keep(xp, seed, p, sizes.lead, sizes.queries, sizes.keys)
        kept = split_heads(xp, kept, sizes.groups, True)
    score, keep = _split(xp, task)
    value = reference.accumulated(xp, split_heads(xp, task.value, sizes.groups, False))
    output, attended, lse = reference.attend(xp, score, value, keep, task.mixed, kept, p)
    tail = (sizes.queries, sizes.keys)
    return (
        xp.astype(_whole(xp, output, sizes, (sizes.queries, xp.shape(value)[-1])), task.dtype),
        xp.astype(_whole(xp, attended, sizes, tail), task.dtype),
        _whole(xp, lse, sizes, tail[:1]),
    )


def weights(task: Task) -> Array:
    """The weights (..., T_q, T_k) of a task by the definition."""
    some = task.score.a if isinstance(task.score, Factors) else task.score
    xp, seam = find(some, some, some)
    own, _ = seam.precision(some)
    with own():
        score, keep = _split(xp, task)
        if isinstance(score, Factors):
            score = reference.scores(xp, score, keep if task.mixed else None)
        attended, _ = reference.softmax(xp, score, keep)
        tail = (task.sizes.queries, task.sizes.keys)
        return xp.astype(_whole(xp, attended, task.sizes, tail), task.dtype)


def _split(xp: Ops, task: Task) -> tuple[Factors | Array, Array | None]:
    """Score and mask of a task, in the precision of sums, grouped heads as an axis of their own."""

    def split(x: Array | None, of_query: bool, axis: int) -> Array | None:
        if x is None:
            return None
        x = reference.accumulated(xp, x) if xp.dtype(x) != "bool" else x
        return split_heads(xp, x, task.sizes.groups, of_query, axis)

    score, keep = task.score, split(task.keep, True, -3)
    if not isinstance(score, Factors):
        return split(score, True, -3), keep
    return replace(
        score,
        a=split(score.a, True, -3),
        b=split(score.b, False, -3),
        weight=split(score.weight, True, -2),
        query_bias=split(score.query_bias, True, -2),
        key_bias=split(score.key_bias, False, -2),
    ), keep


def _whole(xp: Ops, x: Array, sizes: Sizes, tail: tuple[int, ...]) -> Array:
    """`x` (..., *tail) broadcast to all leading dimensions, grouped heads as one axis again."""
    lead = sizes.lead
    if sizes.groups > 1:
        lead = (*lead[:-1], lead[-1] // sizes.groups, sizes.groups)
    if xp.shape(x) != (*lead, *tail):
        x = xp.broadcast_to(x, (*lead, *tail)) * 1  # the caller may write to what they are given
    return xp.reshape(x, (*sizes.lead, *tail))
