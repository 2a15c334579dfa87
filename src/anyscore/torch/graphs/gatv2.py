"""GATv2: graph attention by an additive score."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyscore.score import GATv2
from anyscore.torch.graphs.layer import GraphLayer, Pair, glorot
from anyscore.torch.graphs.neighbours import Fill


class GATv2Conv(GraphLayer):
    """Graph attention by an additive score.

        x'_i = Σ_j α_ij Θ_l x_j        over the edges j → i
        α_ij = softmax_j aᵀ LeakyReLU(Θ_l x_j + Θ_r x_i + Θ_e e_ij)

    Memory grows with nodes and edges. PyTorch Geometric's layer of this name makes tensors of
    edges × heads × channels; here only edge features make one such tensor.

    Args:
        in_channels: the width of node features, or a pair: widths of sources and of targets.
        out_channels: the width C of each head.
        heads: the number H of heads. By default 1.
        concat: True, the default, concatenates the heads; False averages them.
        negative_slope: the slope of LeakyReLU for negative arguments. By default 0.2.
        dropout: rate p in [0, 1) on the weights, in training only. By default 0.
        add_self_loops: True, the default, replaces all edges from a node to itself by exactly one.
        edge_dim: the width of edge features. By default None: no edge features.
        fill_value: the features of added self-loops. A number; a tensor; or "mean" (the default),
            "add", "min", "max" or "mul" of the features of the node's incoming edges. None: 1.
        bias: True, the default, adds a bias to `lin_l`, `lin_r` and the output.
        share_weights: True uses `lin_l` as `lin_r`. By default False.
        residual: True adds x_i, projected by `res`, to the output. By default False.
        others: aggr, flow and node_dim of PyTorch Geometric's layer, with their default values
            alone.

    State dict, as in `torch_geometric.nn.GATv2Conv` 2.8: lin_l.weight, lin_l.bias, lin_r.weight,
    lin_r.bias, att (1, H, C), bias, lin_edge.weight, res.weight.

    Raises:
        TypeError, ValueError: A size is no integer ≥ 1, dropout is outside [0, 1), or an option is
            unknown.

    Source: Brody et al. 2022, How Attentive are Graph Attention Networks?, eq. 7.

    >>> import torch
    >>> from anyscore.torch import GATv2Conv
    >>> layer, edge_index = GATv2Conv(16, 8, heads=2), torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> layer(torch.randn(4, 16), edge_index).shape
    torch.Size([4, 16])
    >>> _, (edges, weights) = layer(torch.randn(4, 16), edge_index, return_attention_weights=True)
    >>> edges.shape, weights.shape                          # 3 edges and 4 self-loops, 2 heads
    (torch.Size([2, 7]), torch.Size([7, 2]))
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
        fill_value: Fill = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, dropout, edge_dim, others)
        self.negative_slope, self.share_weights = negative_slope, share_weights
        self.add_self_loops, self.fill_value, self.residual = add_self_loops, fill_value, residual
        of_sources, of_targets = self.widths
        self.lin_l = nn.Linear(of_sources, self.inner, bias=bias)
        self.lin_r = self.lin_l if share_weights else nn.Linear(of_targets, self.inner, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = nn.Linear(edge_dim, self.inner, bias=False) if edge_dim else None
        self.res = nn.Linear(of_targets, self.width, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(self.width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by the rule of Glorot and Bengio 2010; set biases as PyTorch Geometric."""
        for linear in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
                glorot(linear.weight)
        glorot(self.att)
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

        Args:
            x: (nodes, in_channels), or a pair of tensors: sources and targets.
            edge_index: (2, E), integers, source and target of each edge in any order. Duplicate
                edges count separately. Layers and calls with the same tensor share one sorted
                copy.
            edge_attr: (E, edge_dim), or (E,) if edge_dim is 1. By default None.
            return_attention_weights: True also returns the weights.

        Returns:
            (targets, H · C), or (targets, C) with concat=False. With return_attention_weights
            (output, (edge_index, weights (E, H))), added self-loops included.

        Raises:
            TypeError, ValueError: A tensor has another shape or type, or a node is unknown.
        """
        loops = self.add_self_loops, self.fill_value
        graph = self.take(x, edge_index, edge_attr, loops)
        source, target, mask = graph.source, graph.target, graph.edges.sorted
        key = query = self.of_heads(self.lin_l(source))
        if not (self.share_weights and source is target):
            query = self.of_heads(self.lin_r(target))
        if graph.features is not None:
            mask = mask.with_terms(self.of_heads(self.lin_edge(graph.features)))
        score = GATv2(None, None, self.att[0], self.negative_slope)
        output, attended = self.attend(
            graph, query, key, key, score, mask, return_attention_weights
        )
        if self.res is not None:
            output = output + self.res(target)
        if self.bias is not None:
            output = output + self.bias
        return (output, attended) if return_attention_weights else output
