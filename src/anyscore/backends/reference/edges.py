"""The definition over the edges of a graph: rows are gathered by edge and summed by query."""

from __future__ import annotations

from typing import Any

from anyscore.backends.reference import definition
from anyscore.call.backend import Result
from anyscore.call.task import Options, Task
from anyscore.masks.lowered_edges import LoweredEdges
from anyscore.modifiers import dropout
from anyscore.modifiers.normalizers import softmax_or_sigmoid
from anyscore.ops import Array, Ops, accumulated
from anyscore.score.factors import Factors


def run(xp: Ops, task: Task, edges: LoweredEdges, options: Options, seed: Any) -> Result:
    """Run a task over edges, with dropout at the rate of the options; scores are (..., E)."""
    sizes, p = task.sizes, options.dropout
    biases = [
        (accumulated(xp, bias.array)[..., 0, :, None, None], bias.after) for bias in task.biases
    ]
    score = _gathered(xp, task, edges)
    s = definition.scores(xp, score, None, False, task.softcap, biases)[..., 0, 0]
    s = xp.broadcast_to(s, (*sizes.lead, edges.count)) * 1
    weights, stats = softmax_or_sigmoid(xp, task.normalizer, s, None, edges)
    stats = xp.broadcast_to(stats, (*sizes.lead, 2, sizes.queries)) * 1
    output = None
    if task.value is not None:
        if p:
            seed = xp.seed(seed, like=task.value)
            dropout_mask = dropout.dropout_mask(xp, seed, p, sizes.lead, 1, edges.count)[..., 0, :]
            weights = xp.where(dropout_mask, weights, 0.0) / (1 - p)
        value = _of_all_heads(xp, accumulated(xp, task.value), task, 2)
        terms = weights[..., None] * xp.take_rows(value, edges.col)
        output = xp.astype(xp.segment_sum(terms, edges.query_of_edge, sizes.queries), task.dtype)
    return Result(output, stats, s if options.return_scores else None)


def _gathered(xp: Ops, task: Task, edges: LoweredEdges) -> Factors | Array:
    """Return the factors of each edge, with one query and one key; or the scores (..., E, 1, 1)."""
    f = task.score
    if not isinstance(f, Factors):
        return accumulated(xp, f)[..., None, None]

    def rows(x: Array, index: Array) -> Array:
        return xp.take_rows(accumulated(xp, x), index)[..., None, :]

    def numbers(x: Array | None, index: Array) -> Array | None:
        return None if x is None else xp.take(accumulated(xp, x), index)[..., None]

    weight = None if f.weight is None else accumulated(xp, f.weight)
    b = rows(_of_all_heads(xp, f.b, task, 2), edges.col)
    if edges.terms is not None:
        b = b + accumulated(xp, edges.terms)[..., None, :]
    key_bias = None if f.key_bias is None else _of_all_heads(xp, f.key_bias, task, 1)
    return f._replace(
        a=rows(f.a, edges.query_of_edge),
        b=b,
        weight=None if weight is None else weight[..., None, :],
        query_bias=numbers(f.query_bias, edges.query_of_edge),
        key_bias=numbers(key_bias, edges.col),
    )


def _of_all_heads(xp: Ops, x: Array, task: Task, own: int) -> Array:
    """Return x of key/value heads repeated for query heads. own: the number of its last axes."""
    groups, shape = task.sizes.groups, xp.shape(x)
    if groups == 1 or len(shape) <= own or shape[-own - 1] == 1:
        return x
    *lead, heads = shape[:-own]
    x = xp.reshape(x, (*lead, heads, 1, *shape[-own:]))
    x = xp.broadcast_to(x, (*lead, heads, groups, *shape[-own:]))
    return xp.reshape(x, (*lead, heads * groups, *shape[-own:]))
