"""Layers over the edges of a graph: anyscore's, and PyTorch Geometric's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from anyscore.lab.bench.rivals import Call, Variant
from anyscore.lab.bench.variants import call_of
from anyscore.lab.bench.work import drawn
from anyscore.torch import GATv2Conv
from benchmarks.work import Work

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

    def truth(self, score: str) -> dict[str, Tensor]:
        """Compute the checked rows in float64, from the edges that lead to them."""
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
        results = {"output": output.detach()}
        if self.training:
            gradients = torch.autograd.grad(output, leaves, self.upstream[rows].double())
            named = zip(self.inputs, gradients, strict=True)
            results |= {f"gradient of the {name}": x for name, x in named}
        return results


_OPTIONS = {"add_self_loops": False, "bias": False}


def anyscore_(work: GraphWork) -> list[Variant]:
    """List our layer, which sorts the edges in its first call."""
    return [Variant("anyscore.torch.GATv2Conv", partial(_build, GATv2Conv, work, _as_given))]


def eager(work: GraphWork) -> list[Variant]:
    """List PyTorch Geometric's layer, with edges in no order and sorted by target."""
    layer = _theirs()
    return [
        Variant("torch_geometric.nn.GATv2Conv", partial(_build, layer, work, _as_given)),
        Variant("the same, edges sorted by target", partial(_build, layer, work, _sorted)),
    ]


def compiled(work: GraphWork) -> list[Variant]:
    """List the same under torch.compile."""
    layer = _theirs()
    compiled = partial(torch.compile, dynamic=False)
    return [
        Variant(f"torch.compile of it{how}", partial(_build, layer, work, edges, compiled), True)
        for how, edges in (("", _as_given), (", edges sorted by target", _sorted))
    ]


def _theirs() -> Any:
    return importlib.import_module("torch_geometric.nn").GATv2Conv


def _as_given(edges: Tensor) -> Tensor:
    return edges


def _sorted(edges: Tensor) -> Tensor:
    return edges[:, edges[1].argsort(stable=True)]


def _build(
    kind: Any,
    work: GraphWork,
    order: Callable[[Tensor], Tensor],
    change: Callable[[Any], Any] = lambda attend: attend,
) -> Call:
    """Make a call of a layer of the sizes of the work, with the work's parameters."""
    inner, shape = work.inner, work.shape
    layer = kind(inner, shape.width, heads=shape.batch, **_OPTIONS).to(work.upstream.dtype)
    edges, targets = order(work.edge_index), shape.queries

    def attend(nodes: Tensor, W_l: Tensor, W_r: Tensor, att: Tensor) -> Tensor:
        parameters = {"lin_l.weight": W_l, "lin_r.weight": W_r, "att": att}
        x = nodes if targets == shape.keys else (nodes, nodes[:targets])
        output: Tensor = functional_call(layer, parameters, (x, edges))
        return output

    return call_of(change(attend), list(work.inputs.values()), work)
