"""GATv2 over the edges of a random graph: anyscore's layer, and plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from anyscore.lab.bench.rivals import Call, Rival, Unavailable, Variant
from anyscore.lab.bench.variants import call_of
from anyscore.lab.bench.work import Shape, Work, drawn
from anyscore.torch import GATv2Conv

DEGREES = {
    "even": lambda u: u,
    "power law": lambda u: u**2.5,  # node k has edges in proportion to k^−0.6
}
"""The ends of edges: evenly distributed numbers in [0, 1) → the place of the node."""

EDGES = 400_000
_EDGES_OF_A_NODE = 20
_HEADS, _CHANNELS = 4, 32
_CHECKED = 64  # targets
OPTIONS = {"add_self_loops": False, "bias": False}
"""Options of every GATv2 layer."""


def random_graph(edges: int) -> Shape:
    """Return the shape of a graph with 20 edges a node: heads, targets, sources, channels twice.

    >>> random_graph(400_000)
    Shape(batch=4, queries=20000, keys=20000, width=32, value_width=32)
    """
    nodes = max(1, edges // _EDGES_OF_A_NODE)
    return Shape(_HEADS, nodes, nodes, _CHANNELS, _CHANNELS)


def over_edges(
    nodes: Tensor, targets: Tensor, W_l: Tensor, W_r: Tensor, att: Tensor, edges: Tensor
) -> Tensor:
    """Compute GATv2 in plain PyTorch: rows are gathered for each edge, and summed by target.

    nodes (sources, H · C), targets (n, H · C), W_l and W_r (H · C, H · C), att (1, H, C), edges
    (2, E): sources and targets → (n, H · C). A target without edges gets 0.
    """
    source, target = edges
    heads, channels = att.shape[1:]
    left = (nodes @ W_l.mT).view(-1, heads, channels)[source]
    right = (targets @ W_r.mT).view(-1, heads, channels)[target]
    scores = (torch.nn.functional.leaky_relu(left + right, 0.2) * att).sum(-1)
    empty = scores.new_zeros(len(targets), heads)
    place = target[:, None].expand(-1, heads)
    top = empty.scatter_reduce(0, place, scores.detach(), "amax", include_self=False)
    weights = (scores - top[target]).exp()
    total = empty.index_add(0, target, weights)
    sums = scores.new_zeros(len(targets), heads, channels)
    sums = sums.index_add(0, target, weights[..., None] * left)
    return (sums / torch.where(total > 0, total, 1)[..., None]).flatten(1)


@dataclass(frozen=True)
class GraphWork(Work):
    """GATv2, its projections included, over `edges` edges.

    shape: heads, targets, sources, channels, channels. The targets are the first of the sources.
    Inputs are nodes (sources, H · C), W_l and W_r (H · C, H · C), and att (1, H, C).
    """

    edges: int = EDGES
    degrees: str = "even"

    @cached_property
    def edge_index(self) -> Tensor:
        """Sources and targets (2, E), in no order."""
        generator = torch.Generator().manual_seed(9)
        places = DEGREES[self.degrees](torch.rand(2, self.edges, generator=generator))
        sizes = torch.tensor([self.shape.keys, self.shape.queries])[:, None]
        index: Tensor = (places * sizes).long().to(self.upstream.device)
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
        edges = self.edge_index
        rows = self.checked_rows.to(edges.device)
        place = edges.new_full((self.shape.queries,), -1)
        place[rows] = torch.arange(len(rows), device=edges.device)
        source, target = edges[:, place[edges[1]] >= 0]
        leaves = [x.double().requires_grad_(self.training) for x in self.inputs.values()]
        nodes, W_l, W_r, att = leaves
        kept = torch.stack((source, place[target]))
        output = over_edges(nodes, nodes[rows], W_l, W_r, att, kept)
        results = {"output": output.detach()}
        if self.training:
            gradients = torch.autograd.grad(output, leaves, self.upstream[rows].double())
            named = zip(self.inputs, gradients, strict=True)
            results |= {f"gradient of the {name}": x for name, x in named}
        return results


def as_given(edges: Tensor) -> Tensor:
    """Return edges in their order."""
    return edges


def by_target(edges: Tensor) -> Tensor:
    """Return edges sorted by target."""
    return edges[:, edges[1].argsort(stable=True)]


def layer_call(
    kind: Any,
    work: GraphWork,
    order: Callable[[Tensor], Tensor],
    change: Callable[[Any], Any] = lambda attend: attend,
) -> Call:
    """Make a call of a layer, such as GATv2Conv, of the work's sizes and parameters."""
    inner, shape = work.inner, work.shape
    layer = kind(inner, shape.width, heads=shape.batch, **OPTIONS).to(work.upstream)
    edges, targets = order(work.edge_index), shape.queries

    def attend(nodes: Tensor, W_l: Tensor, W_r: Tensor, att: Tensor) -> Tensor:
        parameters = {"lin_l.weight": W_l, "lin_r.weight": W_r, "att": att}
        x = nodes if targets == shape.keys else (nodes, nodes[:targets])
        output: Tensor = functional_call(layer, parameters, (x, edges))
        return output

    return call_of(change(attend), list(work.inputs.values()), work)


def anyscore_(work: GraphWork) -> list[Variant]:
    """List our layer, which sorts the edges in its first call."""
    return [Variant("anyscore.torch.GATv2Conv", partial(layer_call, GATv2Conv, work, as_given))]


def eager(work: GraphWork) -> list[Variant]:
    """List the formula over gathered rows, with edges in no order and sorted by target."""
    return _plain(work, "rows gathered for each edge", lambda attend: attend)


def compiled(work: GraphWork) -> list[Variant]:
    """List the same under torch.compile."""
    change = partial(torch.compile, fullgraph=True, dynamic=False)
    return _plain(work, "torch.compile of rows gathered for each edge", change, compiles=True)


def _plain(
    work: GraphWork, how: str, change: Callable[[Any], Any], compiles: bool = False
) -> list[Variant]:
    targets = work.shape.queries

    def build(order: Callable[[Tensor], Tensor]) -> Call:
        edges = order(work.edge_index)

        def attend(nodes: Tensor, W_l: Tensor, W_r: Tensor, att: Tensor) -> Tensor:
            return over_edges(nodes, nodes[:targets], W_l, W_r, att, edges)

        return call_of(change(attend), list(work.inputs.values()), work)

    return [
        Variant(how, partial(build, as_given), compiles),
        Variant(f"{how}, edges sorted by target", partial(build, by_target), compiles),
    ]


def no_dot(work: GraphWork) -> list[Variant]:
    """Raise Unavailable: PyTorch's fused attention takes no edges."""
    raise Unavailable("PyTorch's dot product takes no edges")


OURS = Rival("anyscore", anyscore_)
RIVALS = {
    rival.name: rival
    for rival in (
        Rival("eager", eager, copies=(4, 7)),
        Rival("compile", compiled, copies=(2, 4)),
        Rival("dot", no_dot),
    )
}
"""The rivals that plain PyTorch offers over edges, by name."""
