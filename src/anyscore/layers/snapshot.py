"""The snapshot of its last call that a layer keeps, so that weights can be asked for later."""

from __future__ import annotations

from typing import Any

from anyscore.call.task import Task
from anyscore.ops import Array, Ops, framework
from anyscore.score.factors import Factors


def snapshot(xp: Ops, task: Task) -> Task:
    """Keep what `functional.attention.weights` needs of a task: no values, and no graph but one.

    The terms of edges (`Edges.with_terms`) keep the graph that they come from, until the next call.
    The rows of queries and keys and the mask are shared with the call. The score's weight is
    copied, so that a later step of an optimiser does not change it.
    """

    def detached(x: Array | None) -> Any:
        return None if x is None else xp.stop_gradient(x)

    f = task.score
    if isinstance(f, Factors):
        weight = None if f.weight is None else detached(f.weight) * 1
        query_bias = f.query_bias
        if query_bias is not None:
            cancels = task.query_bias_cancels and task.sink is None
            query_bias = None if cancels else detached(query_bias)
        a, b, key_bias = map(detached, (f.a, f.b, f.key_bias))
        f = Factors(a, b, f.pair, weight, f.scale, query_bias, key_bias, f.outer)
    else:
        f = detached(f)
    sink = task.sink
    if sink is not None and framework(sink):
        sink = detached(sink) * 1
    biases = task.biases
    if biases:
        biases = tuple(bias._replace(array=detached(bias.array)) for bias in biases)
    # Spelled out: `_replace` takes 1 µs more of every call.
    return Task(
        f,
        None,
        task.mask,
        task.unread_is_finite,
        task.mask_per_query,
        task.sizes,
        task.dtype,
        task.softcap,
        None,
        sink,
        biases,
        task.normalizer,
    )
