"""The reference as an implementation, with an axis for grouped heads, in float32 or better."""

from __future__ import annotations

from typing import Any

from anyscore.backends.reference import definition, edges
from anyscore.call.backend import Implementation, Result
from anyscore.call.lowering import split_heads
from anyscore.call.task import Options, Task
from anyscore.masks.lowered import zero_unread
from anyscore.modifiers import dropout
from anyscore.modifiers.biases import LoweredBias
from anyscore.ops import Array, Ops, accumulated
from anyscore.ops.checks import Sizes
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT


def reference_in(xp: Ops) -> Implementation:
    """Return the reference in the operations of a framework; it runs every task."""

    def run_task(task: Task, options: Options, seed: Any) -> Result:
        return run(xp, task, options, seed)

    return Implementation("reference", lambda task, options: None, run_task)


def run(xp: Ops, task: Task, options: Options, seed: Any, origin: Array | None = None) -> Result:
    """Run a task, with dropout at the rate of the options. origin: as in `dropout.dropout_mask`."""
    task, sizes, p = _zero_unread(xp, task), task.sizes, options.dropout
    if task.edges is not None:
        return edges.run(xp, task, task.edges, options, seed)
    dropout_mask = _dropout_mask(xp, task, p, seed, origin)
    score, mask = _split_heads(xp, task)
    biases = [_bias(xp, bias, sizes) for bias in task.biases]
    value = task.value
    if value is not None:
        value = accumulated(xp, split_heads(xp, value, sizes.groups, False))
    output, stats, scores = definition.attend(
        xp,
        score,
        value,
        mask,
        per_query=task.mask_per_query,
        softcap=task.softcap,
        normalizer=task.normalizer,
        biases=biases,
        dropout_mask=dropout_mask,
        p=p,
    )
    if value is not None:
        output = _merge_heads(xp, output, sizes, (sizes.queries, xp.shape(value)[-1]))
        output = xp.astype(output, task.dtype)
    return Result(
        output,
        _merge_heads(xp, stats, sizes, (2, sizes.queries)),
        _merge_heads(xp, scores, sizes, (sizes.queries, sizes.keys))
        if options.return_scores
        else None,
    )


def weigh(xp: Ops, task: Task, weights: Array, p: float, seed: Any) -> Array:
    """Return the output of a task whose weights (*lead, T_q, T_k) are known, with dropout p."""
    task, sizes = _zero_unread(xp, task._replace(score=weights)), task.sizes
    weights, mask = _split_heads(xp, task)
    value = accumulated(xp, split_heads(xp, task.value, sizes.groups, False))
    mask = mask if task.mask_per_query else None
    output = definition.weigh(xp, weights, value, mask, _dropout_mask(xp, task, p, seed), p)
    output = _merge_heads(xp, output, sizes, (sizes.queries, xp.shape(value)[-1]))
    return xp.astype(output, task.dtype)


def _dropout_mask(
    xp: Ops, task: Task, p: float, seed: Any, origin: Array | None = None
) -> Array | None:
    """Return the boolean dropout mask at rate p, with grouped heads as an axis; None for p = 0."""
    if not p:
        return None
    sizes, seed = task.sizes, xp.seed(seed, like=task.value)
    dropout_mask = dropout.dropout_mask(xp, seed, p, sizes.lead, sizes.queries, sizes.keys, origin)
    return split_heads(xp, dropout_mask, sizes.groups, True)


def _zero_unread(xp: Ops, task: Task) -> Task:
    """Return the task with zeroed factors and values of tokens that every mask excludes."""
    f, mask = task.score, task.mask
    if task.unread_is_finite or mask is None:
        return task
    (queries, keys), shared_a, shared_b = mask.attending_attended, False, False
    if isinstance(f, Factors):
        a, shared_a = zero_unread(xp, f.a, queries)
        b, shared_b = zero_unread(xp, f.b, keys, task.sizes.groups)
        f = f._replace(a=a, b=b)
    value, shared_value = task.value, False
    if value is not None:
        value, shared_value = zero_unread(xp, value, keys, task.sizes.groups)
    per_query = shared_a or shared_b or shared_value or mask.per_query
    return task._replace(
        score=f,
        value=value,
        unread_is_finite=True,
        mask_per_query=per_query,
    )


def _split_heads(xp: Ops, task: Task) -> tuple[Factors | Array, Array | None]:
    """Return score and mask of a task, in the dtype of sums, with grouped heads as an axis."""

    def split(x: Array | None, of_query: bool, axis: int) -> Array | None:
        if x is None:
            return None
        x = accumulated(xp, x) if xp.dtype(x) != "bool" else x
        return split_heads(xp, x, task.sizes.groups, of_query, axis)

    score, mask = task.score, split(task.boolean, True, -3)
    if not isinstance(score, Factors):
        return split(score, True, -3), mask
    a, b = split(score.a, True, -3), split(score.b, False, -3)
    if score.pair != PRODUCT:
        a, b = _match_leads(xp, a, b, _lead(task.sizes))
    return score._replace(
        a=a,
        b=b,
        weight=split(score.weight, True, -2),
        query_bias=split(score.query_bias, True, -2),
        key_bias=split(score.key_bias, False, -2),
    ), mask


def _bias(xp: Ops, bias: LoweredBias, sizes: Sizes) -> tuple[Array, bool]:
    """Return a bias as a matrix with heads split, and whether it is added last."""
    matrix = accumulated(xp, bias.matrix(xp, sizes.queries, sizes.keys))
    return split_heads(xp, matrix, sizes.groups, True), bias.after


def _match_leads(xp: Ops, a: Array, b: Array, lead: tuple[int, ...]) -> tuple[Array, Array]:
    """Return a and b, broadcast to the same leading dimensions if these are many and differ.

    TensorFlow broadcasts at most five runs of dimensions, T_q, T_k and h among them.
    """
    leads = xp.shape(a)[:-2], xp.shape(b)[:-2]
    if leads[0] == leads[1] or max(map(len, leads)) < 3:
        return a, b
    a, b = (xp.broadcast_to(x, (*lead, *xp.shape(x)[-2:])) for x in (a, b))
    return a, b


def _lead(sizes: Sizes) -> tuple[int, ...]:
    """Return the leading dimensions, with grouped heads as a separate axis."""
    if sizes.groups == 1:
        return sizes.lead
    return *sizes.lead[:-1], sizes.lead[-1] // sizes.groups, sizes.groups


def _merge_heads(xp: Ops, x: Array, sizes: Sizes, tail: tuple[int, ...]) -> Array:
    """Return x (..., *tail) with all leading dimensions, and grouped heads merged in one axis."""
    lead = _lead(sizes)
    if xp.shape(x) != (*lead, *tail):
        x = xp.broadcast_to(x, (*lead, *tail)) * 1  # a copy: the caller may write to it
    return xp.reshape(x, (*sizes.lead, *tail))
