"""GAT: graph attention by a sum of one number of the source and one of the target."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyscore.score import GATv2
from anyscore.torch.graphs.layer import GraphLayer, Pair, glorot
from anyscore.torch.graphs.neighbours import Fill


class GATConv(GraphLayer):
    """Graph attention by a sum of one number of the source and one of the target.

        x'_i = Σ_j α_ij Θ x_j        over the edges j → i
        α_ij = softmax_j LeakyReLU(a_sᵀ Θ x_j + a_tᵀ Θ x_i + a_eᵀ Θ_e e_ij)

    Each node and each edge has one number for each head, so the layer needs no other memory. All
    queries rank their keys alike; `GATv2Conv` removes this limit.

    Args:
        in_channels: the width of node features; or a pair, widths of sources and of targets, which
            makes linear layers for each.
        out_channels, heads, concat, negative_slope, dropout: as for `GATv2Conv`.
        add_self_loops, edge_dim, fill_value, bias, residual: as for `GATv2Conv`.
        others: aggr, flow and node_dim of PyTorch Geometric's layer, with their default values
            alone.

    State dict, as in `torch_geometric.nn.GATConv` 2.8: lin.weight, or lin_src.weight and
    lin_dst.weight; att_src, att_dst, att_edge (1, H, C); bias, lin_edge.weight, res.weight.

    Raises:
        TypeError, ValueError: A size is no integer ≥ 1, dropout is outside [0, 1), or an option is
            unknown.

    Source: Veličković et al. 2018, Graph Attention Networks, eq. 3.

    >>> import torch
    >>> from anyscore.torch import GATConv
    >>> layer, edge_index = GATConv(16, 8, heads=2), torch.tensor([[0, 1, 2], [1, 2, 3]])
    >>> layer(torch.randn(4, 16), edge_index).shape
    torch.Size([4, 16])
    >>> _, (edges, weights) = layer(torch.randn(4, 16), edge_index, return_attention_weights=True)
    >>> edges.shape, weights.shape                          # 3 edges and 4 self-loops, 2 heads
    (torch.Size([2, 7]), torch.Size([7, 2]))
    """

    needs_targets = False

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
        residual: bool = False,
        **others: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, dropout, edge_dim, others)
        self.negative_slope, self.residual = negative_slope, residual
        self.add_self_loops, self.fill_value = add_self_loops, fill_value
        of_sources, of_targets = self.widths
        self.lin: Any = None
        self.lin_src: Any = None
        self.lin_dst: Any = None
        if isinstance(in_channels, int):
            self.lin = nn.Linear(in_channels, self.inner, bias=False)
        else:
            self.lin_src = nn.Linear(of_sources, self.inner, bias=False)
            self.lin_dst = nn.Linear(of_targets, self.inner, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = nn.Linear(edge_dim, self.inner, bias=False) if edge_dim else None
        self.att_edge: Any = None
        if edge_dim:
            self.att_edge = nn.Parameter(torch.empty(1, heads, out_channels))
        self.res = nn.Linear(of_targets, self.width, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(self.width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by the rule of Glorot and Bengio 2010; set the bias to 0."""
        for linear in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            glorot(None if linear is None else linear.weight)
        glorot(self.att_src, self.att_dst, self.att_edge)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor | Pair,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Attend along the edges.

        Args:
            x, edge_index, edge_attr, return_attention_weights: as for `GATv2Conv`. Targets may be
                None: then scores depend on sources and edges alone, without a residual.
            size: the numbers of sources and of targets, for targets that are None.

        Returns:
            (targets, H · C), or (targets, C) with concat=False. With return_attention_weights
            (output, (edge_index, weights (E, H))), added self-loops included.

        Raises:
            TypeError, ValueError: A tensor has another shape or type, or a node is unknown.
        """
        loops = self.add_self_loops, self.fill_value
        graph = self.take(x, edge_index, edge_attr, loops, size)
        source, target, mask = graph.source, graph.target, graph.edges.sorted
        value = other = self.of_heads((self.lin or self.lin_src)(source))
        if target is None:
            query = value.new_zeros((self.heads, graph.edges.targets, 1))
        else:
            if self.lin is None or target is not source:
                other = self.of_heads((self.lin or self.lin_dst)(target))
            query = _numbers(other, self.att_dst)
        if graph.features is not None:
            mask = mask.with_terms((graph.features @ self._of_features()).mT[..., None])
        score = GATv2(None, None, value.new_ones(1), self.negative_slope)
        key = _numbers(value, self.att_src)
        output, attended = self.attend(
            graph, query, key, value, score, mask, return_attention_weights
        )
        if self.res is not None and target is not None:
            output = output + self.res(target)
        if self.bias is not None:
            output = output + self.bias
        return (output, attended) if return_attention_weights else output

    def _of_features(self) -> Tensor:
        """Return the matrix (edge_dim, H) that maps features of an edge to a number for each head.

        The linear layer is called: with an adapter, for instance, it has more than its weight.
        """
        each = torch.eye(self.edge_dim or 0, dtype=self.att_src.dtype, device=self.att_src.device)
        return _numbers(self.of_heads(self.lin_edge(each)), self.att_edge)[..., 0].mT


def _numbers(x: Tensor, by: Tensor) -> Tensor:
    """Return the dot products (H, n, 1) of x (H, n, C) and by (1, H, C)."""
    return x @ by[0, :, :, None]
