"""The edges of a layer's call: sorted once for all that are given the same tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from anyscore.edges import Edges
from anyscore.messages import shown

_REDUCTIONS = {"mean": "mean", "add": "sum", "min": "amin", "max": "amax", "mul": "prod"}


@dataclass(frozen=True)
class Neighbours:
    """Edges between nodes, with those of nodes to themselves.

    own: (2, E), the pairs that these are, None for those that were given. kept: which of the given
    pairs are among them, None for all; then `nodes` pairs of a node and itself follow.
    """

    edges: Edges
    own: Tensor | None
    kept: Tensor | None
    nodes: int

    def features(self, given: Tensor, pairs: Tensor, fill: float | Tensor | str) -> Tensor:
        """Return features (E, d) of the given pairs as those of all of these.

        fill: those of pairs that were added, or how to make them of what leads to the node.

        Raises ValueError: an unknown way to make them.
        """
        if self.kept is None:
            return given
        given, width = given[self.kept], given.shape[1]
        if not isinstance(fill, str):
            made = torch.as_tensor(fill, dtype=given.dtype, device=given.device)
            return torch.cat([given, made.expand(self.nodes, width)])
        if fill not in _REDUCTIONS:
            known = ", ".join(map(repr, _REDUCTIONS))
            raise ValueError(
                f"fill_value must be a number, a tensor or one of {known}, got {shown(fill)}."
            )
        target = pairs[1, : len(given)]
        targets = self.edges.rowptr.shape[0] - 1
        made = given.new_full((targets, width), 1.0 if fill == "mul" else 0.0)
        index = target[:, None].expand_as(given)
        made = made.scatter_reduce(0, index, given, _REDUCTIONS[fill], include_self=False)
        return torch.cat([given, made[: self.nodes]])


def neighbours_of(
    pairs: Tensor, sizes: tuple[int, int], with_loops: bool, of_each: bool
) -> Neighbours:
    """Return the edges of pairs (2, E) between so many sources and targets.

    with_loops: whether each node has one pair of itself, in place of what there is. of_each:
    whether edges lead from one key for each pair, not for each source. What was made of a tensor
    is kept with it, until it is written to.
    """
    if torch.compiler.is_compiling():
        return _make(pairs, sizes, with_loops, of_each)
    version, made = _known.get(pairs, (None, {}))  # type: ignore[no-untyped-call]
    if version != pairs._version:
        made = {}
        _known[pairs] = pairs._version, made
    key = sizes, with_loops, of_each
    if key not in made:
        made[key] = _make(pairs, sizes, with_loops, of_each)
    found: Neighbours = made[key]
    return found


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Tensor → its version, and what was made of it; nothing there holds the tensor itself."""


def _make(pairs: Tensor, sizes: tuple[int, int], with_loops: bool, of_each: bool) -> Neighbours:
    own, kept, nodes = None, None, 0
    if with_loops:
        nodes, kept = min(sizes), pairs[0] != pairs[1]
        loops = torch.arange(nodes, device=pairs.device, dtype=pairs.dtype)
        own = pairs = torch.cat([pairs[:, kept], loops.expand(2, -1)], 1)
    if of_each:
        each = torch.arange(pairs.shape[1], device=pairs.device, dtype=pairs.dtype)
        pairs = torch.stack([each, pairs[1]])
    return Neighbours(Edges.from_index(pairs, sizes[1]), own, kept, nodes)
