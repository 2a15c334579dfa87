"""A layer over the edges of a graph as work: its inputs, and the right answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from anyscore.lab.bench.work import Work, drawn

DEGREES = {
    "even": lambda u: u,
    "power law": lambda u: u**2.5,  # node k has edges in proportion to k^−0.6
}
"""How edges fall to nodes: evenly distributed numbers in [0, 1) → the place of the node."""

_CHECKED = 64  # targets


@dataclass(frozen=True)
class GraphWork(Work):
    """GATv2, its projections included, over `edges` edges.

    shape: heads, targets, sources, channels, channels. The targets are the first of the sources.
    Inputs are nodes (sources, H · C), W_l and W_r (H · C, H · C), and att (1, H, C).
    """

    ours: ClassVar[str | None] = "variants_graph.anyscore_"

    task: str = "graph"
    edges: int = 400_000
    degrees: str = "even"

    @cached_property
    def edge_index(self) -> Tensor:
        """Sources and targets (2, E), in no order."""
        generator = torch.Generator().manual_seed(9)
        places = DEGREES[self.degrees](torch.rand(2, self.edges, generator=generator))
        sizes = torch.tensor([self.shape.keys, self.shape.queries])[:, None]
        index: Tensor = (places * sizes).long()
        return index

    @property
    def scores(self) -> int:
        """Count the scores, one for each edge and head."""
        return self.shape.batch * self.edges

    @property
    def inner(self) -> int:
        """H · C."""
        return self.shape.batch * self.shape.width

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        inner, shape = self.inner, self.shape
        W_l, W_r = drawn(6, 2, inner, inner) / inner**0.5
        return {
            "nodes": self._placed(drawn(1, shape.keys, inner)),
            "W_l": self._placed(W_l),
            "W_r": self._placed(W_r),
            "att": self._placed(drawn(4, 1, shape.batch, shape.width) / shape.width**0.5),
        }

    def _whole_upstream(self) -> Tensor:
        return self._placed(drawn(5, self.shape.queries, self.inner))

    @cached_property
    def checked_rows(self) -> Tensor:
        rows = min(_CHECKED, self.shape.queries)
        return torch.linspace(0, self.shape.queries - 1, rows).long()

    def own_truth(self, score: str) -> dict[str, Tensor]:
        """Compute in float64, over the edges that lead to the checked rows, what these give."""
        rows = self.checked_rows
        place = torch.full((self.shape.queries,), -1).scatter(0, rows, torch.arange(len(rows)))
        source, target = self.edge_index[:, place[self.edge_index[1]] >= 0]
        target = place[target]
        leaves = [x.double().requires_grad_(self.training) for x in self.inputs.values()]
        nodes, W_l, W_r, att = leaves
        per_head = self.shape.batch, self.shape.width
        left = (nodes @ W_l.mT).view(-1, *per_head)[source]
        right = (nodes[rows] @ W_r.mT).view(-1, *per_head)[target]
        scores = (torch.nn.functional.leaky_relu(left + right, 0.2) * att).sum(-1).exp()
        empty = torch.zeros(len(rows), *per_head, dtype=torch.float64)
        total = empty[..., 0].index_add(0, target, scores)
        sums = empty.index_add(0, target, scores[..., None] * left)
        output = (sums / total.clamp_min(1e-300)[..., None]).flatten(1)
        found = {"output": output.detach()}
        if self.training:
            made = torch.autograd.grad(output, leaves, self.upstream[rows].double())
            named = zip(self.inputs, made, strict=True)
            found |= {f"gradient of the {name}": x for name, x in named}
        return found
