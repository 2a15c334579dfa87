"""The Triton kernels over the edges of a graph, on PyTorch tensors: forward and backward.

The interface is that of `attention`, for operands with `rowptr`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels.triton import edges as edge_kernels
from anyscore.kernels.triton import scorers
from anyscore.kernels.triton.attention import delta_of, empty_stats, exactly, scaled
from anyscore.kernels.triton.call import Columns, Inputs, launch, operand
from anyscore.kernels.triton.edges import Compared, Graph
from anyscore.kernels.triton.pairs import Functions
from anyscore.kernels.triton.scorers import Scorer

FEATURES: int = edge_kernels.FEATURES.value


class _Call:
    """Inputs and constants of kernels over edges."""

    def __init__(self, pair: Functions, x: Operands, s: Settings, acc_dtype: torch.dtype) -> None:
        value = x.b[..., :0] if x.value is None else x.value
        self.inputs = inputs = Inputs(*exactly(x._replace(value=value), s, acc_dtype))
        x = inputs.x
        self.width, self.d_v = x.a.shape[-1], value.shape[-1]
        self.columns = Columns(self.d_v, acc_dtype)
        self.edges: int = x.col.shape[0]
        self.scorer: Scorer = scorers.elementwise(pair).of_settings(inputs.s, width=self.width)
        self.compared = Compared(
            self._operand(x.a), self._operand(x.b), self._operand(x.c), self._operand(x.weight, 1),
            self._operand(x.key_bias, 1), self._operand(x.bias),
        )  # fmt: skip
        self.value = self._operand(value)
        self.of_queries = Graph(x.rowptr.contiguous(), x.col.contiguous(), None, self.edges)
        self.sigmoid = bool(s.normalizer)

    def _operand(self, x: Tensor | None, own: int = 2) -> Any:
        return None if x is None else self.inputs.operand(x, own)

    @property
    def of_keys(self) -> Graph:
        """Return the edges sorted by key."""
        x = self.inputs.x
        begin, node, edge = (y.contiguous() for y in (x.colptr, x.row, x.order))
        return Graph(begin, node, edge, self.edges)


def forward(pair: Functions, x: Operands, s: Settings, acc_dtype: torch.dtype) -> Results:
    """Return the results, in acc_dtype; scores are (*lead, E)."""
    queries, edges = x.a.shape[-2], x.col.shape[0]
    d_v = 0 if x.value is None else x.value.shape[-1]
    output = x.a.new_zeros((*s.lead, queries, d_v), dtype=acc_dtype)
    stats = empty_stats(x, s, acc_dtype)
    if s.normalizer:
        stats[..., 0, :] = _shifts(x, s, stats.dtype)
    scores = x.a.new_empty((*s.lead, edges), dtype=acc_dtype) if s.scores else None
    results = Results(None if x.value is None else output, stats, scores)
    if stats.numel() == 0 or not edges:
        return results
    call = _Call(pair, x, s, acc_dtype)
    inputs, blocks = call.inputs, call.columns.blocks
    launch(
        edge_kernels.forward, inputs.problems * queries * blocks, call.compared, call.value,
        call.of_queries, inputs.dropout, output, stats, scores, inputs.sizes, inputs.s.scale,
        blocks, SCORER=call.scorer, D_V=d_v, COLUMNS=call.columns.count, SIGMOID=call.sigmoid,
    )  # fmt: skip
    return scaled(results, s.dropout)


def _shifts(x: Operands, s: Settings, dtype: torch.dtype) -> Tensor:
    """Return the shift (T_q,) that the sigmoid of `Settings.normalizer` subtracts from scores."""
    n = x.rowptr.diff()
    shift = n.clamp(min=1).to(dtype).log() if s.normalizer == 2 else 0.0
    return torch.where(n > 0, shift - s.sigmoid_bias, -torch.inf).to(dtype)


def backward(
    pair: Functions, x: Operands, s: Settings, results: Results, upstream: Results
) -> Operands:
    """Return the gradients of the factors; None for absent ones.

    results: of `forward`; upstream: their gradients. All gradients are in the dtype of stats.
    """
    stats, factors = results.stats, x[:N_DIFFERENTIABLE]
    if stats.numel() == 0 or not x.col.shape[0]:
        return Operands(*(None if y is None else stats.new_zeros(y.shape) for y in factors))
    call = _Call(pair, x, s, stats.dtype)
    inputs, edges = call.inputs, call.edges
    problems, sizes, scale = inputs.problems, inputs.sizes, inputs.s.scale
    upstream_output, delta = delta_of(results, upstream, s)
    d_output = operand(inputs.two(upstream_output / (1 - s.dropout), 2), inputs.heads)
    d_scores = None if upstream.scores is None else upstream.scores.contiguous()
    p, ds = (stats.new_empty((problems, edges)) for _ in range(2))
    outside = torch.empty_like(ds) if call.scorer.after and x.bias is not None else None
    constants = {"D_V": call.d_v, "COLUMNS": call.columns.count}
    launch(
        edge_kernels.slopes_of_edges, problems * sizes.queries, call.compared, call.value, d_output,
        call.of_queries, inputs.dropout, stats, delta, d_scores, p, ds, outside, sizes,
        scale, SCORER=call.scorer, SIGMOID=call.sigmoid, **constants,
    )  # fmt: skip

    def room(rows: int, *columns: int, wanted: Any = True) -> Tensor | None:
        return None if wanted is None else stats.new_zeros((problems, rows, *columns))

    width = call.width
    d_a, d_b = room(sizes.queries, width), room(sizes.keys, width)
    d_weight = room(sizes.queries, width, wanted=x.weight)
    d_c = room(edges, width, wanted=x.c)
    d_value = room(sizes.keys, call.d_v, wanted=x.value)
    d_key_bias = room(sizes.keys, wanted=x.key_bias)
    each_way = (
        (call.of_queries, d_a, d_weight, d_c),
        (call.of_keys, d_b, None, None),
    )
    for of_query, (graph, *targets) in zip((True, False), each_way, strict=True):
        rows = sizes.queries if of_query else sizes.keys
        if width:
            launch(
                edge_kernels.feature_sums, problems * rows * -(-width // FEATURES), call.compared,
                graph, ds, *targets, sizes, scale, SCORER=call.scorer, OF_QUERY=of_query,
            )  # fmt: skip
    if d_value is not None or d_key_bias is not None:
        launch(
            edge_kernels.value_sums, problems * sizes.keys * call.columns.blocks, call.of_keys,
            d_output, p, ds, d_value, d_key_bias, sizes, **constants,
        )  # fmt: skip
    if d_weight is not None:
        d_weight = d_weight.sum(1) * (s.scale / scale)  # `exactly` moved the scale into the weight
    d_bias = None if x.bias is None else (ds if outside is None else outside)[:, None]
    made = d_a, d_b, d_weight, d_key_bias, d_value, d_bias, d_c
    found = (
        None if y is None or d is None else inputs.sum_to(d, y.shape)
        for y, d in zip(factors, made, strict=True)
    )
    return Operands(*found)
