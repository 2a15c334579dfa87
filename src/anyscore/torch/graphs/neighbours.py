"""Sorted edges of a graph, cached by the tensor of the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from anyscore.masks.edges import Edges
from anyscore.ops.checks import brief
from anyscore.ops.torch import is_tracing, outside_inference
from anyscore.ops.torch_masked import is_jit_tracing

Fill: TypeAlias = float | Tensor | str | None
"""Features of added self-loops: a number, a tensor, or the name of a reduction; None: 1."""

_REDUCTIONS = {"mean": "mean", "add": "sum", "min": "amin", "max": "amax", "mul": "prod"}


@dataclass(frozen=True)
class Neighbours:
    """Edges between nodes, sorted by target, added self-loops included.

    sorted: the edges; their keys are the sources, or one key for each edge.
    source: (E,), the source of each sorted edge.
    order: (E,), the index of each sorted edge in the order of the caller.
    own: (2, E), the pairs after self-loops were replaced; None if the pairs are the caller's.
    kept: mask of the caller's pairs that are no self-loops; None for all.
    nodes: the number of self-loops, which follow the kept pairs.
    """

    sorted: Edges
    source: Tensor
    order: Tensor
    own: Tensor | None
    kept: Tensor | None
    nodes: int

    @property
    def targets(self) -> int:
        """The number of targets."""
        rows: int = self.sorted.rowptr.shape[0]
        return rows - 1

    def as_given(self, x: Tensor) -> Tensor:
        """Return rows (E, d) of the sorted edges in the order of the caller."""
        return x[torch.argsort(self.order)]

    def features(self, given: Tensor, fill: Fill) -> Tensor:
        """Return features (E, d) of the sorted edges, from those of the caller's pairs.

        fill: the features of added self-loops, or the name of a reduction over incoming edges.

        Raises:
            ValueError: an unknown reduction.
        """
        if self.own is not None and self.kept is not None:
            given = self._with_loops(given[self.kept], self.own[1], fill)
        return given[self.order]

    def _with_loops(self, given: Tensor, target: Tensor, fill: Fill) -> Tensor:
        width = given.shape[1]
        if fill is None:
            fill = 1.0
        if not isinstance(fill, str):
            made = torch.as_tensor(fill, dtype=given.dtype, device=given.device)
            return torch.cat([given, made.expand(self.nodes, width)])
        if fill not in _REDUCTIONS:
            known = ", ".join(map(repr, _REDUCTIONS))
            raise ValueError(
                f"fill_value must be a number, a tensor or one of {known}, got {brief(fill)}."
            )
        made = given.new_full((self.targets, width), 1.0 if fill == "mul" else 0.0)
        index = target[: given.shape[0], None].expand_as(given)
        made = made.scatter_reduce(0, index, given, _REDUCTIONS[fill], include_self=False)
        return torch.cat([given, made[: self.nodes]])


def neighbours_of(
    pairs: Tensor, sizes: tuple[int, int], with_loops: bool, own_keys: bool
) -> Neighbours:
    """Return the sorted edges of pairs (2, E).

    sizes: the numbers of sources and of targets. with_loops: True replaces all self-loops by one
    for each node. own_keys: True gives each edge its own key.

    The result is cached for the tensor until its version counter changes. Tensors of inference
    mode have no version counter, so their edges are not cached.
    """
    if is_jit_tracing():  # sizes are tensors there
        sizes = int(sizes[0]), int(sizes[1])
    if is_tracing() or pairs.is_inference():
        return _make(pairs, sizes, with_loops, own_keys)
    state = pairs._version, pairs.data_ptr(), pairs.shape
    known, made = _known.get(pairs, (None, {}))  # type: ignore[no-untyped-call]
    if known != state:
        made = {}
        _known[pairs] = state, made
    key = sizes, with_loops, own_keys
    found: Neighbours | None = made.get(key)
    if found is None:
        with outside_inference():
            found = _make(pairs, *key)
        if len(made) >= _MOST_SIZES:
            made.clear()
        made[key] = found
    return found


_MOST_SIZES = 8
"""The most numbers of nodes for which the edges of one tensor are kept."""
_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tensor → (its version, address and shape; its sorted edges, which must not hold the tensor)."""


def _make(pairs: Tensor, sizes: tuple[int, int], with_loops: bool, own_keys: bool) -> Neighbours:
    own, kept, nodes = None, None, 0
    if with_loops:
        nodes, kept = min(sizes), pairs[0] != pairs[1]
        loops = torch.arange(nodes, device=pairs.device, dtype=pairs.dtype)
        own = pairs = torch.cat([pairs[:, kept], loops.expand(2, -1)], 1)
    edges = Edges.from_index(pairs, sizes[1])
    most = edges.known.get("most", -1)
    if most >= sizes[0]:
        raise ValueError(
            f"edge_index has sources up to {most}, expected nodes from 0 to {sizes[0] - 1}."
        )
    source, order = edges.col, edges.permutation
    col = torch.arange(order.shape[0], device=pairs.device) if own_keys else source
    return Neighbours(Edges(edges.rowptr, col), source, order, own, kept, nodes)
