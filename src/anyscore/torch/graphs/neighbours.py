"""The edges of a layer's call: sorted once for all that are given the same tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from anyscore.masks.edges import Edges
from anyscore.ops.checks import shown
from anyscore.ops.torch import is_tracing, outside_inference
from anyscore.ops.torch_masked import is_jit_tracing

Fill: TypeAlias = float | Tensor | str | None
"""Features of edges that are added: a number (1 if None), a tensor, or how they are made."""

_REDUCTIONS = {"mean": "mean", "add": "sum", "min": "amin", "max": "amax", "mul": "prod"}


@dataclass(frozen=True)
class Neighbours:
    """Edges between nodes, with those of nodes to themselves, sorted by target.

    sorted: the edges, in this order, from sources or each from a key of its own. source: (E,), of
    each of these. order: (E,), their places in the order of the caller. own: (2, E), the pairs that
    the caller's became, None for those that were given. kept: which of the given pairs are among
    them, None for all; then `nodes` pairs of a node and itself follow.
    """

    sorted: Edges
    source: Tensor
    order: Tensor
    own: Tensor | None
    kept: Tensor | None
    nodes: int

    @property
    def targets(self) -> int:
        """Their number."""
        rows: int = self.sorted.rowptr.shape[0]
        return rows - 1

    def as_given(self, x: Tensor) -> Tensor:
        """Return rows (E, d) of these edges in the order of the caller."""
        return x[torch.argsort(self.order)]

    def features(self, given: Tensor, fill: Fill) -> Tensor:
        """Return features (E, d) of the given pairs as those of all of these, sorted.

        fill: those of pairs that were added, or how to make them of what leads to the node.

        Raises ValueError: an unknown way to make them.
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
                f"fill_value must be a number, a tensor or one of {known}, got {shown(fill)}."
            )
        made = given.new_full((self.targets, width), 1.0 if fill == "mul" else 0.0)
        index = target[: given.shape[0], None].expand_as(given)
        made = made.scatter_reduce(0, index, given, _REDUCTIONS[fill], include_self=False)
        return torch.cat([given, made[: self.nodes]])


def neighbours_of(
    pairs: Tensor, sizes: tuple[int, int], with_loops: bool, own_keys: bool
) -> Neighbours:
    """Return the edges of pairs (2, E) between so many sources and targets.

    with_loops: whether each node has one pair of itself, in place of what there is. own_keys:
    whether each edge has a key of its own. What was made of a tensor is kept with it, until PyTorch
    counts that it was written to; tensors of inference mode, where PyTorch does not count, keep
    nothing.
    """
    if is_jit_tracing():  # where sizes are tensors
        sizes = int(sizes[0]), int(sizes[1])
    if is_tracing() or pairs.is_inference():
        return _make(pairs, sizes, with_loops, own_keys)
    state = pairs._version, pairs.data_ptr(), pairs.shape
    known, made = _known.get(pairs, (None, {}))  # type: ignore[no-untyped-call]
    if known != state:
        made = {}
        _known[pairs] = state, made
    key = sizes, with_loops, own_keys
    if key not in made:
        with outside_inference():
            made[key] = _make(pairs, *key)
    found: Neighbours = made[key]
    return found


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tensor → its version and place, and what was made of it, which does not hold the tensor."""


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
