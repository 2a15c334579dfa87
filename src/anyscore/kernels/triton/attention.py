"""The Triton kernels on PyTorch tensors: forward, backward and weights.

Arguments are those of `kernels.cpu`, and so are shapes; the seed is a tensor, and results are in
the dtype of sums, float32 or float64.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from anyscore.kernels.triton import backward as triton_backward
from anyscore.kernels.triton import decode as triton_decode
from anyscore.kernels.triton import forward as triton_forward
from anyscore.kernels.triton.packed import (
    BLOCK,
    HALF,
    TILE,
    Call,
    Columns,
    Inputs,
    dropout_of,
    launch,
    operand,
    round_up,
    tiles_of,
)
from anyscore.kernels.triton.pairs import Functions
from anyscore.kernels.triton.tiles import Dropout, Operand, Rows

Maybe: TypeAlias = Tensor | None

FEW = 2
"""Queries up to which keys are read as they are, without panels."""
PROGRAMS = 512
"""What a GPU should be given to do at a time."""


def forward(
    pair: Functions, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
    start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe, scale: float, groups: int,
    dropout: float, period: int, lead: tuple[int, ...], sums: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (*lead, T_q, d_v) and the log-sum-exp (*lead, T_q)."""
    queries, keys, d_v = a.shape[-2], b.shape[-2], value.shape[-1]
    output = a.new_zeros((*lead, queries, d_v), dtype=sums)
    lse = a.new_full((*lead, queries), -torch.inf, dtype=sums)
    if lse.numel() == 0 or keys == 0:
        return output, lse
    weight, scale = _exactly(weight, scale, a, sums)
    inputs = Inputs(a, b, weight, key_bias, start, stop, keep, lead, groups)
    kind = value.dtype if value.dtype in HALF else sums
    dropped, columns = dropout_of(dropout, seed, period), Columns(d_v, kind)
    if queries <= FEW:
        _few(pair, inputs, value, dropped, scale, output, lse)
        return _scaled(output, dropout), lse
    call = Call(pair, inputs, scale, sums)
    finite = call.rows(inputs.two(value, 2), kind)
    grid = inputs.problems * call.query_tiles * columns.blocks
    launch(
        triton_forward.forward, grid, call.of_queries, call.of_keys, call.weights, inputs.bias,
        finite, inputs.mask, dropped, output, lse, inputs.sizes, scale, 0.0, columns.blocks,
        **call.options, D_V=d_v, COLUMNS=columns.count, PRECISION=call.precision,
    )  # fmt: skip
    if d_v:
        launch(
            triton_forward.forward_odd,
            grid,
            inputs.operand(value, 2),
            finite,
            inputs.mask,
            output,
            inputs.sizes,
            D_V=d_v,
            COLUMNS=columns.count,
        )
    return _scaled(output, dropout), lse


def _scaled(x: Tensor, dropout: float) -> Tensor:
    """What is kept stands for what is dropped."""
    return x / (1 - dropout) if dropout else x


def _exactly(weight: Maybe, scale: float, a: Tensor, sums: torch.dtype) -> tuple[Maybe, float]:
    """Weight and scale of a score: in float64 one, for kernels are given numbers in float32."""
    if sums != torch.float64 or scale == 1:
        return weight, scale
    return (a.new_ones(a.shape[-1]) if weight is None else weight).to(sums) * scale, 1.0


def _few(
    pair: Functions, inputs: Inputs, value: Tensor, dropped: Dropout, scale: float, output: Tensor,
    lse: Tensor,
) -> None:  # fmt: skip
    sizes, d_v = inputs.sizes, value.shape[-1]
    columns = Columns(d_v, lse.dtype)
    rows = inputs.problems * sizes.queries
    splits = max(min(PROGRAMS // (rows * columns.blocks), sizes.keys // (4 * TILE)), 1)
    chunk = round_up(-(-sizes.keys // splits), TILE)
    splits = -(-sizes.keys // chunk)
    tops, totals = (lse.new_empty((rows, splits)) for _ in range(2))
    sums = lse.new_empty((rows, splits, d_v))
    weight = None if inputs.weight is None else inputs.operand(inputs.weight, 1)
    launch(
        triton_decode.few_queries, rows * splits * columns.blocks, inputs.operand(inputs.a, 2),
        inputs.operand(inputs.b, 2), weight, inputs.bias, inputs.operand(value, 2), inputs.mask,
        dropped, tops, totals, sums, sizes, scale, chunk, splits, PAIR=pair,
        WIDTH=inputs.a.shape[-1], D_V=d_v, COLUMNS=columns.count,
    )  # fmt: skip
    launch(
        triton_decode.combine,
        rows * columns.blocks,
        tops,
        totals,
        sums,
        output,
        lse,
        splits,
        D_V=d_v,
        COLUMNS=columns.count,
    )


def backward(
    pair: Functions, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, value: Tensor,
    start: Maybe, stop: Maybe, keep: Maybe, seed: Maybe, output: Tensor, lse: Tensor,
    d_output: Tensor, d_lse: Tensor, scale: float, groups: int, dropout: float, period: int,
    lead: tuple[int, ...],
) -> tuple[Maybe, ...]:  # fmt: skip
    """The gradients of a, b, weight, key_bias and value."""
    given = a, b, weight, key_bias, value
    queries, keys, d_v = a.shape[-2], b.shape[-2], value.shape[-1]
    if lse.numel() == 0 or keys == 0:
        return tuple(None if x is None else lse.new_zeros(x.shape) for x in given)
    asked = scale
    weight, scale = _exactly(weight, scale, a, lse.dtype)
    inputs = Inputs(a, b, weight, key_bias, start, stop, keep, lead, groups)
    call = Call(pair, inputs, scale, lse.dtype)
    problems, width, tiles = inputs.problems, call.width, call.query_tiles
    kind = value.dtype if value.dtype in HALF else lse.dtype
    dropped = dropout_of(dropout, seed, period)
    band = call.band(kind)
    depth = min(Columns(d_v, kind).count, 64 if kind in HALF else BLOCK)
    weights = lse.new_empty((problems, queries, band), dtype=kind)
    d_scores = lse.new_empty((problems, queries, band))
    some = lse.new_empty((problems, tiles, tiles_of(band)), dtype=torch.int32)
    made = {
        "a": lse.new_zeros((problems, queries, width)),
        "b": lse.new_zeros((problems, keys, width)),
        "weight": lse.new_zeros((problems, tiles, width)),
        "key_bias": lse.new_zeros((problems, keys)),
        "value": lse.new_zeros((problems, keys, d_v)),
    }
    delta = (output * d_output).sum(-1) - d_lse
    d_output = _scaled(d_output, dropout)
    values = call.rows(inputs.two(value, 2), kind)
    d_outputs = call.rows(inputs.two(d_output, 2), kind)
    others = {}
    if pair.is_product:
        others = {"a": (call.rows(call.b, lse.dtype), operand(call.b, inputs.heads))}
        others["b"] = call.rows(call.a, lse.dtype), operand(call.a, inputs.heads)
    for first in range(0, keys, band):
        size = min(band, keys - first)
        part = some, first, size, inputs.sizes
        launch(
            triton_backward.weights_and_gradients, problems * tiles * tiles_of(size),
            call.of_queries, call.of_keys, call.weights, inputs.bias, inputs.mask,
            dropped, lse, values, d_outputs, delta, weights, d_scores,
            *part, scale, 0.0, **call.options, DEPTH=depth,
            PRECISION=call.precision, GRADIENTS=True,
        )  # fmt: skip
        _matrix_sums(call, weights, d_outputs, inputs.operand(d_output, 2), made["value"], part)
        for name in ("a", "b") if width else ():
            of_query = name == "a"
            if pair.is_product:
                rows, raw = others[name]
                _matrix_sums(call, d_scores, rows, raw, made[name], part, scale, of_query)
                continue
            own, other = (call.of_queries, call.of_keys)[:: 1 if of_query else -1]
            count = tiles if of_query else tiles_of(size)
            launch(
                triton_backward.feature_sums, problems * count * -(-width // 2), own, other,
                call.weights, d_scores, some, made[name], made["weight"], first, size,
                inputs.sizes, scale, **call.options, OF_QUERY=of_query,
                WITH_WEIGHT=of_query and weight is not None,
            )  # fmt: skip
        if key_bias is not None:
            stored = d_scores.view(-1)[: problems * queries * size].view(problems, queries, size)
            made["key_bias"][:, first : first + size] = stored.sum(1)
    made["weight"] = made["weight"].sum(1)
    if pair.is_product and weight is not None:
        d_a = made["a"].view(*lead, queries, width)
        made["weight"] = (d_a * a).sum(-2).view(problems, width)
        made["a"] = (d_a * weight[..., None, :]).view(problems, queries, width)
    if asked != scale:
        made["weight"] *= asked
    return tuple(
        None if x is None else inputs.sum_to(d, x.shape)
        for x, d in zip(given, made.values(), strict=True)
    )


def _matrix_sums(
    call: Call, stored: Tensor, rows: Rows, raw: Operand, target: Tensor, part: tuple[Any, ...],
    scale: float = 1.0, of_query: bool = False,
) -> None:  # fmt: skip
    """Adds to target the products of what is stored of a band with rows, also given as they are."""
    columns = Columns(target.shape[-1], rows.data.dtype)
    count = call.query_tiles if of_query else tiles_of(part[2])
    if columns.width:
        launch(
            triton_backward.matrix_sums, target.shape[0] * count * columns.blocks, stored, rows,
            raw, part[0], target, *part[1:], scale, WIDTH=columns.width,
            COLUMNS=columns.count, PRECISION=call.precision, OF_QUERY=of_query,
        )  # fmt: skip


def weights(
    pair: Functions, a: Tensor, b: Tensor, weight: Maybe, key_bias: Maybe, start: Maybe,
    stop: Maybe, keep: Maybe, lse: Tensor, scale: float, groups: int,
) -> Tensor:  # fmt: skip
    """exp(s − lse), 0 where masked, (*lead, T_q, T_k)."""
    keys = b.shape[-2]
    found = lse.new_zeros((*lse.shape, keys))
    if found.numel() == 0:
        return found
    weight, scale = _exactly(weight, scale, a, lse.dtype)
    inputs = Inputs(a, b, weight, key_bias, start, stop, keep, tuple(lse.shape[:-1]), groups)
    call = Call(pair, inputs, scale, lse.dtype)
    launch(
        triton_backward.weights_and_gradients,
        inputs.problems * call.query_tiles * call.key_tiles,
        call.of_queries, call.of_keys, call.weights, inputs.bias, inputs.mask,
        dropout_of(0.0, None, 1), lse.contiguous(), None, None, None, found, None, None, 0, keys,
        inputs.sizes, scale, 0.0, **call.options, DEPTH=BLOCK, PRECISION=call.precision,
        GRADIENTS=False,
    )  # fmt: skip
    return found
