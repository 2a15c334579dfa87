"""Graph attention, with the constructor, call and state dict of PyTorch Geometric's layer."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from anyscore.checks import check_size
from anyscore.formulas import GATv2
from anyscore.functional import attention
from anyscore.messages import shown
from anyscore.torch.layer import Layer
from anyscore.torch.neighbours import neighbours_of

Pair = tuple[Tensor, Tensor]


class GATv2Conv(Layer):
    """x'_i = Σ_j α_ij Θ_l x_j,   α_ij = softmax_j aᵀ LeakyReLU(Θ_l x_j + Θ_r x_i + Θ_e e_ij).

    The sum is over the edges j → i. Where PyTorch Geometric's layer of this name makes tensors of
    edges × heads × channels, this one's memory grows with nodes and edges; edge features cost one
    such tensor.

    Args:
        in_channels: the width of node features, or of sources and of targets.
        out_channels: the width C of each head.
        heads: their number H.
        concat: whether heads are laid side by side, or their mean is taken.
        negative_slope: that of LeakyReLU for negative arguments.
        dropout: the rate at which weights are dropped while training.
        add_self_loops: whether each node has exactly one edge to itself, in place of what there is.
        edge_dim: the width of edge features, None for none.
        fill_value: the features of such edges: a number, a tensor, or "mean", "add", "min", "max"
            or "mul" of those of the edges that lead to the node.
        bias: whether `lin_l`, `lin_r` and the output have one.
        share_weights: whether `lin_r` is `lin_l`.
        residual: whether x_i, projected by `res`, is added to the output.

    State dict: lin_l.weight, lin_l.bias, lin_r.weight, lin_r.bias, att (1, H, C), bias,
    lin_edge.weight, res.weight, as of `torch_geometric.nn.GATv2Conv` 2.8.

    Raises TypeError, ValueError: sizes that are no integers ≥ 1, or a dropout outside [0, 1).

    Source: Brody et al. 2022, How Attentive are Graph Attention Networks?, eq. 7.

    >>> import torch
    >>> from anyscore.torch import GATv2Conv
    >>> layer = GATv2Conv(16, 8, heads=2)
    >>> layer(torch.randn(4, 16), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
    torch.Size([4, 16])
    """

    def __init__(  # noqa: PLR0913 (theirs)
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | Tensor | str = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        **others: Any,
    ) -> None:
        super().__init__()
        if others:
            raise TypeError(
                f"GATv2Conv takes no {', '.join(others)}: it sums over the edges from sources to "
                "targets, as torch_geometric's does unless told otherwise."
            )
        both = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
        check_size(in_channels=both[0], out_channels=out_channels, heads=heads, edge_dim=edge_dim)
        check_size(in_channels=both[1])
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {shown(dropout)}.")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.fill_value = add_self_loops, fill_value
        self.edge_dim, self.residual, self.share_weights = edge_dim, residual, share_weights
        inner, width = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_l = nn.Linear(both[0], inner, bias=bias)
        self.lin_r = self.lin_l if share_weights else nn.Linear(both[1], inner, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = nn.Linear(edge_dim, inner, bias=False) if edge_dim else None
        self.res = nn.Linear(both[1], width, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as Glorot and Bengio 2010 do, from a uniform distribution; zero bias."""
        for linear in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
                nn.init.xavier_uniform_(linear.weight)
        reach = math.sqrt(6 / (self.heads + self.out_channels))
        nn.init.uniform_(self.att, -reach, reach)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor | Pair,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Attend along the edges.

        x: (nodes, in_channels), or such of sources and of targets. edge_index: (2, E), integers:
        source and target of each edge, in any order, duplicates kept apart. It is sorted once for
        all layers and calls that are given the same tensor. edge_attr: (E, edge_dim) or (E,).

        Returns (targets, H · C), or (targets, C) with concat=False; if return_attention_weights,
        also (edge_index, weights (E, H)), with the edges of nodes to themselves that were added.

        Raises TypeError, ValueError: tensors of other shapes or types, nodes that are not there.
        """
        source, target = (x, x) if isinstance(x, Tensor) else x
        self._check(source, target, edge_index, edge_attr)
        sizes = source.shape[0], target.shape[0]
        graph = neighbours_of(edge_index, sizes, self.add_self_loops, edge_attr is not None)
        pairs = edge_index if graph.own is None else graph.own
        key = self._of_heads(self.lin_l(source))
        query = (
            key if self.share_weights and source is target else self._of_heads(self.lin_r(target))
        )
        value = key
        if edge_attr is not None:
            features = edge_attr.reshape(len(edge_attr), -1)
            features = graph.features(features, pairs, self.fill_value)
            value = key.index_select(-2, pairs[0])
            key = value + self._of_heads(self._project(features))
        found = attention(
            query,
            key,
            value,
            score=GATv2(None, None, self.att[0], self.negative_slope),
            mask=graph.edges,
            dropout=self.dropout if self.training else 0.0,
            return_weights=bool(return_attention_weights),
        )
        output = found.output if return_attention_weights else found
        output = output.transpose(0, 1).flatten(1) if self.concat else output.mean(0)
        if self.res is not None:
            output = output + self.res(target)
        if self.bias is not None:
            output = output + self.bias
        if not return_attention_weights:
            return output
        return output, (pairs, found.weights.transpose(0, 1))

    def _of_heads(self, x: Tensor) -> Tensor:
        """(n, H · C) as (H, n, C)."""
        return x.view(-1, self.heads, self.out_channels).transpose(0, 1)

    def _project(self, features: Tensor) -> Tensor:
        assert self.lin_edge is not None
        projected: Tensor = self.lin_edge(features)
        return projected

    def _check(self, source: Any, target: Any, edge_index: Any, edge_attr: Tensor | None) -> None:
        for name, tensor, linear in (
            ("sources", source, self.lin_l),
            ("targets", target, self.lin_r),
        ):
            if (
                not isinstance(tensor, Tensor)
                or tensor.dim() != 2
                or tensor.shape[1] != linear.in_features
            ):
                got = (
                    f"shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else shown(tensor)
                )
                raise ValueError(f"x has {got} for {name}, expected (nodes, {linear.in_features}).")
        if not isinstance(edge_index, Tensor) or edge_index.is_sparse:
            _refuse_index(edge_index)
        if (edge_attr is None) != (self.lin_edge is None):
            raise ValueError(
                "edge_attr is given but the layer has none: make it with edge_dim=."
                if edge_attr is not None
                else f"edge_attr is missing: the layer was made with edge_dim={self.edge_dim}."
            )
        if edge_attr is not None and edge_attr.shape[:1] != edge_index.shape[1:]:
            raise ValueError(
                f"edge_attr has shape {tuple(edge_attr.shape)}, expected ({edge_index.shape[-1]}, "
                f"{self.edge_dim}): one row for each edge."
            )

    def __repr__(self) -> str:
        return f"GATv2Conv({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _refuse_index(edge_index: Any) -> NoReturn:
    raise TypeError(
        f"edge_index is {shown(edge_index)} ({type(edge_index).__name__}), expected a dense tensor "
        "of integers (2, edges): sources and targets."
    )
