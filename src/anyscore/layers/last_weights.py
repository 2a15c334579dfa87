"""The weights of a layer's last call: the task is kept without its graph, and run on demand.

For chosen queries, heads and examples the task is cut down before it runs. Memory is then for the
chosen rows × keys, not for all queries × keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Generic, TypeAlias, TypeVar

from anyscore.call.task import Axes, Task
from anyscore.functional.attention import weights
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import LoweredEdges
from anyscore.modifiers.biases import LoweredBias
from anyscore.ops import Array, Ops, load
from anyscore.ops.checks import brief, find_framework
from anyscore.score.factors import Factors

T = TypeVar("T")

Chosen: TypeAlias = int | slice | Sequence[int] | None
"""Entries of an axis, as in NumPy: an integer drops the axis, others keep it; None: all."""


class LastWeights(Generic[T]):
    """The weights of the last call: a base class of every layer.

    T: the tensor class of the framework. A layer around another has the inner one as `attention`.
    """

    @property
    def attention_weights(self) -> T | None:
        """Weights (..., T_q, T_k) of the last call, before dropout; None if there was no call.

        Each access computes the weights, with the score's parameters of that call and without a
        graph. Traced calls are not recorded: compilation, export, function transforms, `fit` and
        `predict` of Keras, a hybridized parent of Gluon. Queries, keys, masks and biases are not
        copied unless the layer projects or converts them: a change in place changes the weights.
        The layer keeps these tensors until the next call. Copies and pickles of the layer leave
        them out.
        """
        return self.last_weights()

    def last_weights(
        self, rows: Chosen = None, heads: Chosen = None, examples: Chosen = None
    ) -> T | None:
        """Return the weights of the last call for chosen queries, heads and examples alone.

            last_weights(rows, heads, examples)
                = attention_weights[..., heads, :, :][..., rows, :][examples]

        Each argument is an integer, a slice or a sequence of integers. Memory is for the chosen
        rows × keys.

        Args:
            rows: the chosen queries. By default None, all.
            heads: the chosen entries of axis −3. By default None, all.
            examples: the chosen entries of the first axis. By default None, all.

        Returns:
            The chosen weights; None if there was no call.

        Raises:
            TypeError, IndexError: An argument is not of integers, or an integer is beyond its
                axis.

        >>> import torch
        >>> from anyscore.torch import Attention
        >>> layer, x = Attention(), torch.ones(2, 4, 100, 8)
        >>> output = layer(x, x)
        >>> layer.last_weights(rows=-1, heads=[0, 3]).shape
        torch.Size([2, 2, 100])
        """
        inner: Any = getattr(self, "attention", self)
        found: T | None = inner._weights_of_last(rows, heads, examples)
        return found


def snapshot(xp: Ops, task: Task) -> Task:
    """Return the task for `functional.attention.weights`, without values and without a graph.

    Queries, keys and mask share memory with the call. Parameters are copied, so that a later step
    of an optimiser does not change the weights.
    """

    def detached(x: Array, axes: Axes) -> Array:
        x = xp.stop_gradient(x)
        return x if "T_q" in axes or "T_k" in axes else x * 1

    f, mask = task.score, task.mask
    has_bias = isinstance(f, Factors) and f.query_bias is not None
    if has_bias and task.query_bias_cancels and task.sink is None:
        task = task._replace(score=f._replace(query_bias=None))
    if isinstance(mask, LoweredEdges) and mask.terms is not None:
        mask = mask.with_terms(xp.stop_gradient(mask.terms))
    return task.map(detached, mask, task.sizes)


def chosen_weights(
    task: Task, rows: Chosen = None, heads: Chosen = None, examples: Chosen = None
) -> Array:
    """Compute the weights (..., T_q, T_k) of a snapshot for chosen queries, heads and examples.

        chosen_weights(task, rows, heads, examples)
            = weights(task)[..., heads, :, :][..., rows, :][examples]

    Weights over the edges of a graph are (..., E), without an axis of queries.

    Raises:
        TypeError, IndexError: no integers, or an integer beyond its axis.
        ValueError: rows are chosen of weights over edges.
    """
    rows, heads, examples = to_list(rows), to_list(heads), to_list(examples)
    lead, queries = task.sizes.lead, task.sizes.queries
    if examples is not None and not lead:
        raise IndexError(
            "examples= chooses of weights (batch, …, T_q, T_k), got weights "
            f"{task.sizes.scores_shape} without a batch: leave it out."
        )
    if heads is not None and len(lead) < 2:
        raise IndexError(
            "heads= chooses of weights (batch, heads, T_q, T_k), got weights "
            f"{task.sizes.scores_shape} without heads: leave it out."
        )
    xp = load(find_framework(score=task.first))
    of_heads = None if heads is None else indices("heads", heads, lead[-1])
    of_rows = None if rows is None else indices("rows", rows, queries)
    of_batch = None if examples is None else indices("examples", examples, lead[0])
    if isinstance(task.mask, LoweredEdges):
        if rows is not None:
            raise ValueError(
                "rows= chooses queries of weights (..., T_q, T_k), but over the edges of a graph "
                f"they are (..., {task.mask.count}), one for each edge: leave rows= out, and this "
                "layer out of what is recorded."
            )
        found = weights(task)
        if heads is not None:
            found = select(xp, found, -2, "heads", heads)
        axis = -len(xp.shape(found))
        return found if examples is None else select(xp, found, axis, "examples", examples)
    # An empty choice computes one entry, and the last step drops the entry.
    if of_batch is not None and lead[0]:
        task = _with_examples(xp, task, sorted(set(of_batch)) or [0])
    if of_heads is not None and lead[-1]:
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
        if places is not None:  # the computed entries are in ascending order
            order = {place: i for i, place in enumerate(sorted(set(places)))}
            found = _index(xp, found, axis, [order[place] for place in places], chosen)
    return found


def select(xp: Ops, x: Array, axis: int, name: str, chosen: Chosen) -> Array:
    """Index an axis of x, counted from the end, by `chosen`; an integer drops the axis.

    Raises:
        TypeError, IndexError: see `chosen_weights`.
    """
    chosen = to_list(chosen)
    return _index(xp, x, axis, indices(name, chosen, xp.shape(x)[axis]), chosen)


def to_list(chosen: Any) -> Any:
    """Convert an array to a list; return anything else unchanged."""
    return chosen.tolist() if hasattr(chosen, "tolist") else chosen


def as_index(name: str, chosen: Any) -> list[int] | slice:
    """Return the chosen entries as a list of integers; a slice is returned unchanged.

    Raises:
        TypeError: neither an integer, nor a sequence of integers, nor a slice of integers.
    """
    chosen = to_list(chosen)
    if isinstance(chosen, slice):
        numbers = [i for i in (chosen.start, chosen.stop, chosen.step) if i is not None]
    else:
        numbers = list(chosen) if isinstance(chosen, list | tuple | range) else [chosen]
    if any(isinstance(i, bool) or not isinstance(i, Integral) for i in numbers):
        raise TypeError(
            f"{name} must be an integer, a slice or a sequence of integers, got {brief(chosen)}."
        )
    return chosen if isinstance(chosen, slice) else [int(i) for i in numbers]


def indices(name: str, chosen: Any, n: int) -> list[int]:
    """Return the chosen indices of an axis of n entries, each from 0 to n − 1.

    Raises:
        TypeError, IndexError: see `chosen_weights`.
    """
    numbers = as_index(name, chosen)
    if isinstance(numbers, slice):
        return list(range(n)[numbers])
    for i in numbers:
        if not -n <= i < n:
            raise IndexError(f"{name} has {i}, expected integers from {-n} to {n - 1}.")
    return [i % n for i in numbers]


def _with_heads(xp: Ops, task: Task, places: list[int]) -> Task:
    """Cut a task down to these query heads, ascending, with the key head of each."""
    sizes = task.sizes
    if len(places) == sizes.lead[-1]:
        return task
    of_keys = [place // sizes.groups for place in places]
    of_keys = of_keys[:1] if len(set(of_keys)) == 1 else of_keys  # one key head for all

    def cut(x: Array, axes: Axes) -> Array:
        is_of_keys = "T_k" in axes and "T_q" not in axes
        return _cut(xp, x, -1 - len(axes), of_keys if is_of_keys else places)

    sizes = replace(sizes, lead=(*sizes.lead[:-1], len(places)), groups=1)
    return task.map(cut, _cut_mask(xp, task, cut), sizes)


def _with_examples(xp: Ops, task: Task, places: list[int]) -> Task:
    """Cut a task down to these entries of its first axis, ascending."""
    lead = task.sizes.lead

    def cut(x: Array, axes: Axes) -> Array:
        return _cut(xp, x, -len(lead) - len(axes), places)

    sizes = replace(task.sizes, lead=(len(places), *lead[1:]))
    return task.map(cut, _cut_mask(xp, task, cut), sizes)


def _with_rows(xp: Ops, task: Task, places: list[int]) -> Task:
    """Cut a task down to these queries, ascending."""

    def cut(x: Array, axes: Axes) -> Array:
        return _cut(xp, x, -len(axes), places) if "T_q" in axes else x

    rows = task.map(cut, _cut_mask(xp, task, cut), replace(task.sizes, queries=len(places)))
    queries, keys = task.sizes.queries, task.sizes.keys
    biases = tuple(
        LoweredBias(x.matrix(xp, queries, keys, places), False, x.after) if x.diagonal else cut_x
        for x, cut_x in zip(task.biases, rows.biases, strict=True)
    )
    return rows._replace(biases=biases)


def _cut_mask(xp: Ops, task: Task, cut: Callable[[Array, Axes], Array]) -> LoweredMask | None:
    """Cut the mask of a task."""
    mask = task.mask
    if not isinstance(mask, LoweredMask):
        return None
    start, stop = (x if x is None else cut(x, ("T_q",)) for x in (mask.start, mask.stop))
    boolean = None if mask.mask is None else cut(mask.mask, ("T_q", "T_k"))
    return LoweredMask(xp, task.sizes.keys, start, stop, boolean)


def _cut(xp: Ops, x: Array, axis: int, places: list[int]) -> Array:
    """Return x at these indices of an axis; x itself if the axis is missing or has one entry."""
    if len(xp.shape(x)) < -axis or xp.shape(x)[axis] == 1:
        return x
    first, last = places[0], places[-1]
    if places == list(range(first, last + 1)):  # a view
        return _at(x, axis, slice(first, last + 1))
    return xp.index_select(x, places, axis)


def _index(xp: Ops, x: Array, axis: int, places: list[int], chosen: Chosen) -> Array:
    """Index an axis by the chosen indices; drop the axis if `chosen` is an integer."""
    if not places or isinstance(chosen, Integral):
        return _at(x, axis, places[0] if places else slice(0, 0))
    in_order = places == list(range(xp.shape(x)[axis]))
    return x if in_order else xp.index_select(x, places, axis)


def _at(x: Array, axis: int, place: int | slice) -> Array:
    """Index an axis, counted from the end."""
    index = (..., place, *(slice(None),) * (-axis - 1))
    return x[index]
