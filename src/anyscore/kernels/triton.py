"""The Triton kernels on PyTorch tensors: forward, backward and weights."""

from __future__ import annotations

import torch
from torch import Tensor

from anyscore.kernels import triton_backward, triton_forward
from anyscore.kernels.triton_call import HALF, TILE, Call, blocks_of, columns_of
from anyscore.kernels.triton_pairs import Functions


def forward(
    pair: Functions,
    a: Tensor,
    b: Tensor,
    weight: Tensor | None,
    key_bias: Tensor | None,
    value: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    keep: Tensor | None,
    seed: Tensor | None,
    scale: float,
    groups: int,
    dropout: float,
    period: int,
    lead: tuple[int, ...],
    sums: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The output (*lead, T_q, d_v) and the log-sum-exp (*lead, T_q), in the dtype of sums.

    Arguments are those of `kernels.cpu.forward`; the seed is a tensor.
    """
    rows, d_v = (*lead, a.shape[-2]), value.shape[-1]
    output, lse = a.new_zeros((*rows, d_v), dtype=sums), a.new_full(rows, -torch.inf, dtype=sums)
    if lse.numel() == 0 or b.shape[-2] == 0:
        return output, lse
    call = Call(pair, a, b, weight, key_bias, start, stop, keep, scale, groups, lead, sums)
    finite = call.rows(call.lead.two(value, 2), value.dtype if value.dtype in HALF else sums)
    of_value = {"D_V": d_v, "COLUMNS": columns_of(d_v)}
    grid = (call.lead.problems * call.query_tiles * blocks_of(d_v),)
    triton_forward.forward[grid](
        call.of_queries, call.of_keys, call.weights, call.bias, finite, call.mask,
        call.dropout(dropout, seed, period), output, lse, call.sizes, scale, 0.0, blocks_of(d_v),
        **call.options(), **of_value, PRECISION=call.precision,
    )  # fmt: skip
    triton_forward.forward_odd[grid](
        call.lead.operand(value, 2), finite, call.mask, output, call.sizes, **of_value
    )
    return output, lse


def backward(
    pair: Functions,
    a: Tensor,
    b: Tensor,
    weight: Tensor | None,
    key_bias: Tensor | None,
    value: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    keep: Tensor | None,
    seed: Tensor | None,
    output: Tensor,
    lse: Tensor,
    d_output: Tensor,
    d_lse: Tensor,
    scale: float,
    groups: int,
    dropout: float,
    period: int,
    lead: tuple[int, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of a, b, weight, key_bias and value, in the dtype of lse."""
    inputs = a, b, weight, key_bias, value
    sums, (queries, keys), d_v = lse.dtype, (a.shape[-2], b.shape[-2]), value.shape[-1]
    if lse.numel() == 0 or keys == 0:
        return tuple(None if x is None else lse.new_zeros(x.shape) for x in inputs)
    call = Call(pair, a, b, weight, key_bias, start, stop, keep, scale, groups, lead, sums)
    problems, width = call.lead.problems, call.width
    delta = (output * d_output).sum(-1) - d_lse
    kind = value.dtype if value.dtype in HALF else sums
    values = call.rows(call.lead.two(value, 2), kind)
    d_outputs = call.rows(call.lead.two(d_output, 2), kind)
    band = call.band(kind)
    p_band = lse.new_empty((problems, queries, band), dtype=kind)
    ds_band = lse.new_empty((problems, queries, band))
    tiles = call.query_tiles
    some = lse.new_empty((problems, tiles, -(-band // TILE)), dtype=torch.int32)
    d_a, d_b, d_values = (
        lse.new_zeros((problems, n, m)) for n, m in ((queries, width), (keys, width), (keys, d_v))
    )
    d_weight = lse.new_zeros((problems, tiles, width))
    d_bias = lse.new_zeros((problems, keys))
    sums_of = {"WIDTH": width, "COLUMNS": columns_of(width), "PRECISION": call.precision}
    of_value = {"WIDTH": d_v, "COLUMNS": columns_of(d_v), "PRECISION": call.precision}
    if pair.is_product:
        rows_a, rows_b = call.rows(call.a, sums), call.rows(call.b, sums)
    for first in range(0, keys, band):
        size = min(band, keys - first)
        band_tiles = -(-size // TILE)
        triton_backward.weights_and_gradients[(problems * tiles * band_tiles,)](
            call.of_queries, call.of_keys, call.weights, call.bias, call.mask,
            call.dropout(dropout, seed, period), lse, values, d_outputs, delta, p_band, ds_band,
            some, first, size, call.sizes, scale, 0.0, **call.options(),
            COLUMNS=columns_of(d_v), PRECISION=call.precision, GRADIENTS=True,
        )  # fmt: skip
        triton_backward.matrix_sums[(problems * band_tiles * blocks_of(d_v),)](
            p_band, d_outputs, call.lead.operand(d_output, 2), some, d_values, first, size,
            call.sizes, 1.0, **of_value, OF_QUERY=False,
        )  # fmt: skip
        for own, of_query in ((d_a, True), (d_b, False)):
            count = tiles if of_query else band_tiles
            if pair.is_product:
                rows, operand = (rows_b, call.b) if of_query else (rows_a, call.a)
                triton_backward.matrix_sums[(problems * count * blocks_of(width),)](
                    ds_band, rows, call.lead.operand(operand, 2), some, own, first, size,
                    call.sizes, scale, **sums_of, OF_QUERY=of_query,
                )  # fmt: skip
            elif width:
                panels = call.of_queries, call.of_keys
                triton_backward.feature_sums[(problems * count * -(-width // 2),)](
                    *(panels if of_query else panels[::-1]), call.weights, ds_band, some, own,
                    d_weight, first, size, call.sizes, scale, **call.options(),
                    OF_QUERY=of_query, WITH_WEIGHT=of_query and weight is not None,
                )  # fmt: skip
        if key_bias is not None:
            flat = ds_band.view(-1)[: problems * queries * size]
            d_bias[:, first : first + size] = flat.view(problems, queries, size).sum(1)
    if pair.is_product and weight is not None:
        found = d_a.view(*lead, queries, width)
        d_weight = (found * a).sum(-2).view(problems, width)
        d_a = (found * weight[..., None, :]).view(problems, queries, width)
    else:
        d_weight = d_weight.sum(1)
    made = d_a, d_b, d_weight, d_bias, d_values
    return tuple(
        None if x is None else call.lead.sum_to(d, x.shape)
        for x, d in zip(inputs, made, strict=True)
    )
