"""Graph attention by scaled dot products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyscore.score import ScaledDot
from anyscore.torch.graphs.layer import GraphLayer, Pair


class TransformerConv(GraphLayer):
    """Graph attention by scaled dot products.

        x'_i = W_1 x_i + Σ_j α_ij (v_j + W_6 e_ij)        over the edges j → i
        α_ij = softmax_j q_iᵀ (k_j + W_6 e_ij) / √C
        v_j = W_2 x_j,  q_i = W_3 x_i,  k_j = W_4 x_j

    Memory grows with nodes and edges; edge features make three tensors of edges × heads ×
    channels.

    Args:
        in_channels, out_channels, heads, concat, dropout, edge_dim: as for `GATv2Conv`.
        beta: True mixes W_1 x_i and the sum m_i as β W_1 x_i + (1 − β) m_i, with β = sigmoid(w_5ᵀ
            [m_i, W_1 x_i, m_i − W_1 x_i]). By default False.
        bias: True, the default, adds a bias to the linear layers, except `lin_edge` and
            `lin_beta`.
        root_weight: True, the default, adds W_1 x_i; False also switches beta off.
        others: aggr, flow and node_dim of PyTorch Geometric's layer, with their default values
            alone.

    State dict, as in `torch_geometric.nn.TransformerConv` 2.8: lin_key, lin_query, lin_value,
    lin_skip, lin_edge, lin_beta.

    Raises:
        TypeError, ValueError: A size is no integer ≥ 1, dropout is outside [0, 1), or an option is
            unknown.

    Source: Shi et al. 2021, Masked Label Prediction: Unified Message Passing Model for
    Semi-Supervised Classification, eq. 3 to 5.

    >>> import torch
    >>> from anyscore.torch import TransformerConv
    >>> layer = TransformerConv(16, 8, heads=2)
    >>> layer(torch.randn(4, 16), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
    torch.Size([4, 16])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        **others: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, dropout, edge_dim, others)
        self.beta, self.root_weight = beta and root_weight, root_weight
        of_sources, of_targets = self.widths
        self.lin_key = nn.Linear(of_sources, self.inner, bias=bias)
        self.lin_query = nn.Linear(of_targets, self.inner, bias=bias)
        self.lin_value = nn.Linear(of_sources, self.inner, bias=bias)
        self.lin_edge = nn.Linear(edge_dim, self.inner, bias=False) if edge_dim else None
        self.lin_skip = nn.Linear(of_targets, self.width, bias=bias)
        self.lin_beta = nn.Linear(3 * self.width, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights by the rule of `torch.nn.Linear`."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    def forward(
        self,
        x: Tensor | Pair,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Attend along the edges.

        Args:
            x, edge_index, edge_attr: as for `GATv2Conv`.
            return_attention_weights: as in PyTorch Geometric, any value except None returns
                weights.

        Returns:
            (targets, H · C), or (targets, C) with concat=False; or (output, (edge_index, weights
            (E, H))).

        Raises:
            TypeError, ValueError: A tensor has another shape or type, or a node is unknown.
        """
        with_weights = return_attention_weights is not None
        graph = self.take(x, edge_index, edge_attr, own_keys=edge_attr is not None)
        source, target, mask = graph.source, graph.target, graph.edges.sorted
        query = self.of_heads(self.lin_query(target))
        key, value = self.of_heads(self.lin_key(source)), self.of_heads(self.lin_value(source))
        if graph.features is not None:
            of_edges = self.of_heads(self.lin_edge(graph.features))
            of_sources = (y.index_select(-2, graph.edges.source) for y in (key, value))
            key, value = (y + of_edges for y in of_sources)
        output, attended = self.attend(graph, query, key, value, ScaledDot(), mask, with_weights)
        if self.root_weight:
            own = self.lin_skip(target)
            if self.lin_beta is None:
                output = output + own
            else:
                both = torch.cat([output, own, output - own], -1)
                beta = self.lin_beta(both).sigmoid()
                output = beta * own + (1 - beta) * output
        return (output, attended) if with_weights else output
