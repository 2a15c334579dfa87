"""The weights of chosen queries, heads and examples of a call: its task is cut down before it runs.

So they take memory for what is chosen, not for all queries × keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeAlias

from anyscore.call.task import Task
from anyscore.functional.attention import weights
from anyscore.layers.chosen import listed, plain
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import LoweredEdges
from anyscore.modifiers.biases import LoweredBias
from anyscore.ops import Array, Ops, framework, load
from anyscore.ops.checks import find_framework
from anyscore.score.factors import Factors

Chosen: TypeAlias = int | slice | Sequence[int] | None
"""Entries of an axis, as NumPy indexes: one, which drops the axis, or several; None: all."""

_Cut: TypeAlias = Callable[[Array | None, int], Any]
"""(x, axis) → what is chosen of x along an axis."""


def chosen_weights(
    task: Task, rows: Chosen = None, heads: Chosen = None, examples: Chosen = None
) -> Array:
    """Compute the weights (..., T_q, T_k) of a task of `attend` for what is chosen of them.

        chosen_weights(task, rows, heads, examples)
            = weights(task)[..., heads, :, :][..., rows, :][examples]

    Over the edges of a graph weights are (..., E), of which there are no rows to choose.

    Raises TypeError, IndexError: no integers, or beyond what there is. ValueError: rows, and the
        weights are those of edges.
    """
    rows, heads, examples = plain(rows), plain(heads), plain(examples)
    lead, queries = task.sizes.lead, task.sizes.queries
    if examples is not None and not lead:
        raise IndexError(
            f"examples= chooses of weights (batch, …, T_q, T_k), got weights "
            f"{task.sizes.scores_shape} without a batch: leave it out."
        )
    if heads is not None and len(lead) < 2:
        raise IndexError(
            f"heads= chooses of weights (batch, heads, T_q, T_k), got weights "
            f"{task.sizes.scores_shape} without heads: leave it out."
        )
    some = task.score.a if isinstance(task.score, Factors) else task.score
    xp = load(find_framework(score=some))
    of_heads = None if heads is None else places_of("heads", heads, lead[-1])
    of_rows = None if rows is None else places_of("rows", rows, queries)
    of_batch = None if examples is None else places_of("examples", examples, lead[0])
    if isinstance(task.mask, LoweredEdges):
        if rows is not None:
            raise ValueError(
                "rows= chooses queries of weights (..., T_q, T_k), but over the edges of a graph "
                f"they are (..., {task.mask.count}), one for each edge: leave rows= out, and this "
                "layer out of what is recorded."
            )
        found = weights(task)
        found = _chosen(xp, found, -2, of_heads, heads)
        return _chosen(xp, found, -len(xp.shape(found)), of_batch, examples)
    if of_batch is not None and lead[0]:
        task = _with_examples(xp, task, sorted(set(of_batch)) or [0])
    if of_heads is not None and lead[-1]:  # of none, one is computed and left out
        task = _with_heads(xp, task, sorted(set(of_heads)) or [0])
    if of_rows is not None and queries and len(set(of_rows)) < queries:
        task = _with_rows(xp, task, sorted(set(of_rows)) or [0])
    found = weights(task)
    first = -2 - len(lead) + isinstance(rows, Integral) + isinstance(heads, Integral)
    for axis, places, chosen in (
        (-3, of_heads, heads),
        (-2, of_rows, rows),
        (first, of_batch, examples),
    ):
        if places is not None:
            found = _ordered(xp, found, axis, places, isinstance(chosen, Integral))
    return found


def places_of(name: str, chosen: Any, n: int) -> list[int]:
    """List the places from 0 on that are chosen of n.

    Raises TypeError, IndexError: see `chosen_weights`.
    """
    numbers = listed(name, chosen)
    if isinstance(numbers, slice):
        return list(range(n)[numbers])
    for i in numbers:
        if not -n <= i < n:
            raise IndexError(f"{name} has {i}, expected integers from {-n} to {n - 1}.")
    return [i % n for i in numbers]


def _with_heads(xp: Ops, task: Task, places: list[int]) -> Task:
    """Cut a task down to these query heads, ascending; each meets the key head that was its own."""
    sizes = task.sizes
    if len(places) == sizes.lead[-1]:
        return task
    of_keys = [place // sizes.groups for place in places]
    of_keys = of_keys[:1] if len(set(of_keys)) == 1 else of_keys  # which all of them share

    def cut(x: Array | None, axis: int) -> Any:
        return _cut(xp, x, axis, places)

    f = task.score
    if isinstance(f, Factors):
        b, key_bias = _cut(xp, f.b, -3, of_keys), _cut(xp, f.key_bias, -2, of_keys)
        weight, query_bias = cut(f.weight, -2), cut(f.query_bias, -2)
        f = Factors(cut(f.a, -3), b, f.pair, weight, f.scale, query_bias, key_bias, f.outer)
    else:
        f = cut(f, -3)
    sink = cut(task.sink, -1) if framework(task.sink) else task.sink
    sizes = replace(sizes, lead=(*sizes.lead[:-1], len(places)), groups=1)
    biases = tuple(x._replace(array=cut(x.array, -3)) for x in task.biases)
    mask = _masked(xp, task, cut, -3)
    return task._replace(score=f, mask=mask, sizes=sizes, sink=sink, biases=biases)


def _with_examples(xp: Ops, task: Task, places: list[int]) -> Task:
    """Cut a task down to these entries of its first axis, ascending."""
    lead = task.sizes.lead
    first = -len(lead)  # in what has an entry for each head or example, and no tokens

    def cut(x: Array | None, axis: int) -> Any:
        return _cut(xp, x, axis, places)

    f = task.score
    if isinstance(f, Factors):
        a, b, weight = cut(f.a, first - 2), cut(f.b, first - 2), cut(f.weight, first - 1)
        biases = cut(f.query_bias, first - 1), cut(f.key_bias, first - 1)
        f = Factors(a, b, f.pair, weight, f.scale, *biases, f.outer)
    else:
        f = cut(f, first - 2)
    sink = cut(task.sink, first) if framework(task.sink) else task.sink
    of_call = tuple(x._replace(array=cut(x.array, first - 2)) for x in task.biases)
    sizes = replace(task.sizes, lead=(len(places), *lead[1:]))
    mask = _masked(xp, task, cut, first - 2)
    return task._replace(score=f, mask=mask, sizes=sizes, sink=sink, biases=of_call)


def _with_rows(xp: Ops, task: Task, places: list[int]) -> Task:
    """Cut a task down to these queries, ascending."""

    def cut(x: Array | None, axis: int) -> Any:
        return _cut(xp, x, axis, places)

    f = task.score
    if isinstance(f, Factors):
        f = f._replace(a=cut(f.a, -2), query_bias=cut(f.query_bias, -1))
    else:
        f = cut(f, -2)
    queries, keys = task.sizes.queries, task.sizes.keys
    biases = tuple(
        LoweredBias(x.matrix(xp, queries, keys, places), False, x.after)
        if x.diagonal
        else x._replace(array=cut(x.array, -2))
        for x in task.biases
    )
    sizes, mask = replace(task.sizes, queries=len(places)), _masked(xp, task, cut, -2)
    return task._replace(score=f, mask=mask, sizes=sizes, biases=biases)


def _masked(xp: Ops, task: Task, cut: _Cut, axis: int) -> LoweredMask | None:
    """Cut the mask of a task along an axis of the scores."""
    mask = task.mask
    if not isinstance(mask, LoweredMask):
        return None
    bounds = cut(mask.start, axis + 1), cut(mask.stop, axis + 1)
    return LoweredMask(xp, task.sizes.keys, *bounds, cut(mask.mask, axis))


def _cut(xp: Ops, x: Array | None, axis: int, places: list[int]) -> Any:
    """Give x at these places of an axis; as it is where it has no such axis, or one for all."""
    if x is None or len(xp.shape(x)) < -axis or xp.shape(x)[axis] == 1:
        return x
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):  # a part of the same memory
        return _at(x, axis, slice(first, last + 1))
    return xp.pick(x, places, axis)


def _ordered(xp: Ops, found: Array, axis: int, places: list[int], one: bool) -> Array:
    """Order what was computed for ascending places as they were chosen."""
    if not places or one:
        return _at(found, axis, 0 if one else slice(0, 0))
    ascending = sorted(set(places))
    if ascending == places:
        return found
    where = {place: i for i, place in enumerate(ascending)}
    return xp.pick(found, [where[place] for place in places], axis)


def _chosen(xp: Ops, x: Array, axis: int, places: list[int] | None, chosen: Chosen) -> Array:
    """Index an axis as was chosen."""
    if places is None:
        return x
    if not places or isinstance(chosen, Integral):
        return _at(x, axis, places[0] if places else slice(0, 0))
    return xp.pick(x, places, axis)


def _at(x: Array, axis: int, place: int | slice) -> Array:
    """Index an axis, counted from the end."""
    index = (..., place, *(slice(None),) * (-axis - 1))
    return x[index]
