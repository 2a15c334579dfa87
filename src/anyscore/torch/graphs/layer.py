"""The base of layers over the edges of a graph: sizes, checks, and the call of `attention`."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from anyscore.functional.attention import attention
from anyscore.ops.checks import brief, check_size
from anyscore.torch.graphs.neighbours import Fill, Neighbours, neighbours_of
from anyscore.torch.layer import Layer

Pair = tuple[Tensor, Tensor | None]

_DEFAULTS = {"aggr": ("add", "sum"), "flow": ("source_to_target",), "node_dim": (0,)}
"""Options of `MessagePassing`, with the values that these layers accept."""
_INTEGERS = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8


class Graph(NamedTuple):
    """The inputs of a call: nodes, edges sorted by target, and edge features in the same order.

    pairs: (2, E), the edges in the order of the caller.
    """

    source: Tensor
    target: Tensor | None
    edges: Neighbours
    pairs: Tensor
    features: Tensor | None


class GraphLayer(Layer):
    """The base of `GATConv`, `GATv2Conv` and `TransformerConv`: it checks sizes and inputs."""

    lin_edge: Any  # or None
    needs_targets: ClassVar[bool] = True

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int,
        concat: bool,
        dropout: float,
        edge_dim: int | None,
        others: dict[str, Any],
    ) -> None:
        super().__init__()
        others = {name: x for name, x in others.items() if x not in _DEFAULTS.get(name, ())}
        if others:
            raise TypeError(
                f"{type(self).__name__} takes no {', '.join(others)}: it sums over the edges from "
                "sources to targets, as torch_geometric's does unless told otherwise."
            )
        both = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
        if len(both) != 2:
            raise ValueError(
                f"in_channels must be a width or two, of sources and targets, got {brief(both)}."
            )
        if -1 in both:
            raise ValueError(
                f"in_channels is {brief(in_channels)}, but widths are not found out at the first "
                "call: pass those of the node features, data[...].num_features."
            )
        check_size(in_channels=both[0], out_channels=out_channels, heads=heads, edge_dim=edge_dim)
        check_size(in_channels=both[1])
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {brief(dropout)}.")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.dropout, self.edge_dim = concat, dropout, edge_dim
        self.widths = tuple(both)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, see `Layer`.

        Raises:
            TypeError: torch_geometric transforms the model, as `to_hetero` does.
        """
        for x in (*args, *kwargs.values()):
            if isinstance(x, Proxy) and type(x.tracer).__module__.startswith("torch_geometric."):
                name = type(self).__name__
                raise TypeError(
                    f"to_hetero does not know {name}, which is no MessagePassing of "
                    "torch_geometric, and would leave its results apart by edge type: put one for "
                    f"each edge type into torch_geometric.nn.HeteroConv({{edge_type: {name}(…)}})."
                )
        return super().__call__(*args, **kwargs)

    @property
    def inner(self) -> int:
        """The width of all heads together."""
        return self.heads * self.out_channels

    @property
    def width(self) -> int:
        """The width of the output."""
        return self.inner if self.concat else self.out_channels

    def of_heads(self, x: Tensor) -> Tensor:
        """Split x (n, H · C) into heads (H, n, C)."""
        return x.view(-1, self.heads, self.out_channels).transpose(0, 1)

    def take(
        self,
        x: Tensor | Pair,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        loops: tuple[bool, Fill] = (False, "mean"),
        size: tuple[int, int] | None = None,
        own_keys: bool = False,
    ) -> Graph:
        """Check the arguments of a call and sort its edges.

        loops: (True to add self-loops, their features).
        size: the numbers of sources and of targets; without targets and size the two are equal.
        own_keys: True if each edge has its own key.

        Raises:
            TypeError, ValueError: tensors of other shapes or types, or unknown nodes.
        """
        both = (x, x) if isinstance(x, Tensor) else x
        if not isinstance(both, tuple | list) or len(both) != 2:
            raise TypeError(
                f"x is {brief(x)} ({type(x).__name__}), expected a tensor (nodes, width), or two, "
                "of sources and of targets."
            )
        source, target = both
        self._check(source, target, edge_index, edge_attr)
        n = source.shape[0]
        sizes = n, target.shape[0] if target is not None else n if size is None else size[1]
        if size is not None and tuple(size) != sizes:
            raise ValueError(f"size is {tuple(size)}, but x has {sizes} sources and targets.")
        edges = neighbours_of(edge_index, sizes, loops[0], own_keys)
        if edge_attr is not None:
            rows = edge_attr[:, None] if edge_attr.dim() == 1 else edge_attr
            edge_attr = edges.features(rows, loops[1])
        pairs = edge_index if edges.own is None else edges.own
        return Graph(source, target, edges, pairs, edge_attr)

    def attend(
        self,
        graph: Graph,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score: Any,
        mask: Any,
        with_weights: bool | None,
    ) -> tuple[Tensor, Any]:
        """Return (output, attended): output (T_q, H · C), or the mean over heads (T_q, C).

        attended: (edge_index, weights (E, H)) in the order of the caller; None without
        `with_weights`.
        """
        found = attention(
            query,
            key,
            value,
            score=score,
            mask=mask,
            dropout=self.dropout if self.training else 0.0,
            return_weights=bool(with_weights),
        )
        output = found.output if with_weights else found
        output = output.transpose(0, 1).flatten(1) if self.concat else output.mean(0)
        if not with_weights:
            return output, None
        return output, (graph.pairs, graph.edges.as_given(found.weights.transpose(0, 1)))

    def _check(self, source: Any, target: Any, edge_index: Any, edge_attr: Tensor | None) -> None:
        places = ("sources", source), ("targets", target)
        for (name, tensor), width in zip(places, self.widths, strict=True):
            if tensor is None and name == "targets" and not self.needs_targets:
                continue
            if not isinstance(tensor, Tensor) or tensor.dim() != 2 or tensor.shape[1] != width:
                is_tensor = isinstance(tensor, Tensor)
                got = f"shape {tuple(tensor.shape)}" if is_tensor else brief(tensor)
                raise ValueError(f"x has {got} for {name}, expected (nodes, {width}).")
        _check_pairs(edge_index)
        if (edge_attr is None) != (self.lin_edge is None):
            raise ValueError(
                "edge_attr is given but the layer has none: make it with edge_dim=."
                if edge_attr is not None
                else f"edge_attr is missing: the layer was made with edge_dim={self.edge_dim}."
            )
        if edge_attr is None:
            return
        if not isinstance(edge_attr, Tensor) or not edge_attr.is_floating_point():
            is_tensor = isinstance(edge_attr, Tensor)
            kind = edge_attr.dtype if is_tensor else type(edge_attr).__name__
            raise TypeError(f"edge_attr is {kind}, expected a tensor of floating point numbers.")
        expected = edge_index.shape[1], self.edge_dim
        shape = tuple(edge_attr.shape)
        if shape != expected and (shape != expected[:1] or self.edge_dim != 1):
            raise ValueError(
                f"edge_attr has shape {shape}, expected {expected}: one row for each edge."
            )

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _check_pairs(edge_index: Any) -> None:
    """Check that edge_index is a dense tensor of integers (2, E).

    Raises:
        TypeError, ValueError: another layout, dtype or shape.
    """
    is_tensor = isinstance(edge_index, Tensor)
    is_sparse = is_tensor and edge_index.layout != torch.strided
    if is_sparse or not is_tensor or edge_index.dtype not in _INTEGERS:
        dtype = str(edge_index.dtype).removeprefix("torch.") if is_tensor else brief(edge_index)
        got = f"{dtype} ({edge_index.layout})" if is_sparse else dtype
        raise TypeError(
            f"edge_index is {got}, expected a dense tensor of integers (2, edges): sources and "
            "targets. Of a sparse adj_t it is adj_t.to_sparse_coo().coalesce().indices().flip(0)."
        )
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise ValueError(
            f"edge_index has shape {tuple(edge_index.shape)}, expected (2, edges): sources and "
            "targets."
        )


def glorot(*weights: Tensor | None) -> None:
    """Draw weights (..., out, in) from the uniform distribution of Glorot and Bengio 2010."""
    for weight in weights:
        if weight is not None:
            reach = math.sqrt(6 / (weight.shape[-1] + weight.shape[-2]))
            nn.init.uniform_(weight, -reach, reach)
