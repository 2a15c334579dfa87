"""The Triton kernels on PyTorch tensors: forward and backward.

Results and gradients are in the accumulation dtype, float32 or float64. `Operands.packed` is not
read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels.triton import backward as backward_kernels
from anyscore.kernels.triton import decode, scorers
from anyscore.kernels.triton import forward as forward_kernels
from anyscore.kernels.triton.backward import Band
from anyscore.kernels.triton.call import (
    BLOCK,
    HALF,
    PROGRAMS,
    TILE,
    Columns,
    Inputs,
    PackedCall,
    launch,
    operand,
    round_up,
    tiles_of,
)
from anyscore.kernels.triton.pairs import Functions, Steps
from anyscore.kernels.triton.tiles import Operand, Rows
from anyscore.kernels.triton.untried import comparisons, minima

DECODE_QUERIES = 2
"""The most queries for which kernels read keys without panels."""
SKEWED = 256
"""The number of queries whose diagonals are summed at a time."""
REGISTERS = {True: 168, False: 128}
"""Registers per thread of `feature_sums` of tanh, for queries and for keys. A multiprocessor then
runs three and four programs at a time, faster than two.
"""
LEAST_FEATURES = 4
"""Features per program of the backward if tiles are few; otherwise `BLOCK`."""


Approximation: TypeAlias = Callable[[Inputs, Rows, Results], Tensor]
"""(inputs, value, results) → chunks (problems,), not 0 for problems whose results it has written.
"""


def forward(
    pair: Functions, x: Operands, s: Settings, acc_dtype: torch.dtype,
    approximation: Approximation | None = None,
) -> Results:  # fmt: skip
    """Return the results, in acc_dtype. approximation: runs first, and leaves other problems."""
    value = x.b[..., :0] if x.value is None else x.value
    queries, keys, d_v = x.a.shape[-2], x.b.shape[-2], value.shape[-1]
    output = x.a.new_empty((*s.lead, queries, d_v), dtype=acc_dtype)
    stats = empty_stats(x, s, acc_dtype)
    if s.normalizer and stats.numel():
        stats[..., 0, :] = _shifts(x, s, acc_dtype)
    scores = None
    if s.scores:
        scores = x.a.new_full((*s.lead, queries, keys), -torch.inf, dtype=acc_dtype)
    results = Results(None if x.value is None else output, stats, scores)
    if stats.numel() == 0 or keys == 0:
        output.zero_()
        return results
    inputs = Inputs(*exactly(x._replace(value=value), s, acc_dtype))
    if queries <= DECODE_QUERIES:
        _decode(pair, inputs, output, stats, scores)
        return scaled(results, s.dropout)
    call = PackedCall(pair, inputs, acc_dtype)
    kind = value.dtype if value.dtype in HALF else acc_dtype
    columns = Columns(d_v, kind)
    finite = inputs.rows(inputs.two(value, 2), kind)
    if approximation is None and minima.fits(pair, call):
        approximation = partial(minima.forward, pair)
    chunks = None if approximation is None else approximation(inputs, finite, results)
    grid = inputs.problems * call.query_tiles * columns.blocks
    launch(
        forward_kernels.forward, grid, call.of_queries, call.of_keys, call.weights, inputs.biases,
        finite, inputs.mask, inputs.dropout, output, stats, scores, inputs.sizes, call.scale, 0.0,
        columns.blocks, chunks, SCORER=call.scorer, D_V=d_v, COLUMNS=columns.count,
        SIGMOID=bool(s.normalizer), **call.options,
    )  # fmt: skip
    if d_v:
        grid = inputs.problems * tiles_of(queries) * columns.blocks
        launch(
            forward_kernels.forward_nonfinite, grid, inputs.operand(value, 2), finite, inputs.mask,
            output, inputs.sizes, D_V=d_v, COLUMNS=columns.count,
        )  # fmt: skip
    return scaled(results, s.dropout)


def empty_stats(x: Operands, s: Settings, acc_dtype: torch.dtype) -> Tensor:
    """Return the statistics (*lead, 2, T_q) of queries without keys, −∞ and 0."""
    stats: Tensor = x.a.new_zeros((*s.lead, 2, x.a.shape[-2]), dtype=acc_dtype)
    stats[..., 0, :] = -torch.inf
    return stats


def _shifts(x: Operands, s: Settings, dtype: torch.dtype) -> Tensor:
    """Return the shift (..., {1, T_q}) that the sigmoid of `Settings.normalizer` subtracts.

    The shift broadcasts to (*lead, T_q).
    """
    keys = x.b.shape[-2]
    start = 0 if x.start is None else x.start.clamp(min=0)
    stop = keys if x.stop is None else x.stop.clamp(max=keys)
    if x.mask is None:
        n = torch.as_tensor(stop - start, device=x.a.device).clamp(min=0)
    else:
        j, keep = torch.arange(keys, device=x.a.device), x.mask
        for bound, inside in ((x.start, torch.ge), (x.stop, torch.lt)):
            keep = keep if bound is None else keep & inside(j, bound[..., None])
        n = keep.expand(*keep.shape[:-1], keys).sum(-1)
    shift = n.clamp(min=1).to(dtype).log() if s.normalizer == 2 else 0.0
    return torch.where(n > 0, shift - s.sigmoid_bias, -torch.inf).to(dtype)


def scaled(results: Results, dropout: float) -> Results:
    """Return results with the output divided by 1 − dropout."""
    if not dropout or results.output is None:
        return results
    return results._replace(output=results.output / (1 - dropout))


def exactly(x: Operands, s: Settings, acc_dtype: torch.dtype) -> tuple[Operands, Settings]:
    """Return operands with the scale in the weight in float64: kernels take float32 numbers."""
    if acc_dtype != torch.float64 or s.scale == 1:
        return x, s
    weight = x.a.new_ones(x.a.shape[-1]) if x.weight is None else x.weight
    return x._replace(weight=weight.to(acc_dtype) * s.scale), s._replace(scale=1.0)


def _decode(
    pair: Functions, inputs: Inputs, output: Tensor, stats: Tensor, scores: Tensor | None
) -> None:
    """Write the results of one or two queries."""
    x, sizes, width, d_v = inputs.x, inputs.sizes, inputs.x.a.shape[-1], output.shape[-1]
    columns, sigmoid = Columns(d_v, stats.dtype), bool(inputs.s.normalizer)
    rows = inputs.problems * sizes.queries
    splits = max(min(PROGRAMS // (rows * columns.blocks), sizes.keys // (4 * TILE)), 1)
    chunk = round_up(-(-sizes.keys // splits), TILE)
    splits = -(-sizes.keys // chunk)
    tops, totals = (stats.new_empty((rows, splits)) for _ in range(2))
    summed = stats.new_empty((rows, splits, d_v))
    a, b, value = (inputs.operand(y, 2) for y in (x.a, x.b, x.value))
    weight = None if x.weight is None else inputs.operand(x.weight, 1)
    scorer = scorers.elementwise(pair).of_settings(inputs.s, width=width)
    launch(
        decode.decode_queries, rows * splits * columns.blocks, a, b, weight, inputs.biases,
        value, inputs.mask, inputs.dropout, stats, tops, totals, summed, scores, sizes,
        inputs.s.scale, chunk, splits, SCORER=scorer, D_V=d_v, COLUMNS=columns.count,
        SIGMOID=sigmoid,
    )  # fmt: skip
    unknown = None if sigmoid else stats
    launch(
        decode.combine, rows * columns.blocks, tops, totals, summed, output, unknown, splits,
        sizes.queries, D_V=d_v, COLUMNS=columns.count,
    )  # fmt: skip


class Gradients(NamedTuple):
    """Gradients of each problem, before sums over problems that share an input.

    a (problems, T_q, width), b (problems, T_k, width), weight (problems, query tiles, width),
    query_bias (problems, T_q), key_bias (problems, T_k), value (problems, T_k, d_v). bias: of the
    shape of the input, or None.
    """

    a: Tensor
    b: Tensor
    weight: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value: Tensor
    bias: Tensor | None


def delta_of(results: Results, upstream: Results, s: Settings) -> tuple[Tensor, Tensor]:
    """Return dO, without columns if the output has no gradient, and D (*lead, T_q)."""
    rows = results.stats[..., 0, :]
    d_output, delta = rows.new_zeros((*rows.shape, 0)), rows.new_zeros(rows.shape)
    if upstream.output is not None:
        d_output = upstream.output
        delta = ((0.0 if s.normalizer else results.output) * d_output).sum(-1)  # NaN propagates
    if upstream.stats is not None and not s.normalizer:
        delta = delta - upstream.stats[..., 1, :]
    return d_output, delta.contiguous()


class Upstream(NamedTuple):
    """Inputs of a backward alone: `Rows` of value and dO, dO (n, h, T_q, d_v), D, statistics."""

    values: Rows
    d_outputs: Rows
    d_output: Tensor
    delta: Tensor
    stats: Tensor


BackwardApproximation: TypeAlias = Callable[[Inputs, Upstream, Gradients], Tensor]
"""(inputs, upstream, gradients) → chunks (problems,), not 0 for problems whose gradients it has
written.
"""


def backward(
    pair: Functions, x: Operands, s: Settings, results: Results, upstream: Results,
    approximation: BackwardApproximation | None = None,
) -> Operands:  # fmt: skip
    """Return the gradients of a, b, weight, key_bias, value and bias; None for absent ones.

    results: of `forward`; upstream: their gradients. All gradients are in the dtype of stats.
    approximation: as in `forward`; it is not for a bias of pairs.
    """
    stats, factors = results.stats, x[:N_DIFFERENTIABLE]
    value = x.b[..., :0] if x.value is None else x.value
    x = x._replace(value=value)
    queries, keys, d_v = x.a.shape[-2], x.b.shape[-2], value.shape[-1]
    if stats.numel() == 0 or keys == 0:
        return Operands(*(None if y is None else stats.new_zeros(y.shape) for y in factors))
    inputs = Inputs(*exactly(x, s, stats.dtype))
    call = PackedCall(pair, inputs, stats.dtype)
    problems, width, tiles = inputs.problems, call.width, call.query_tiles
    kind = value.dtype if value.dtype in HALF else stats.dtype
    rounded = call.wide and x.bias is None and call.a.dtype == kind == torch.bfloat16
    ds_dtype = kind if rounded else stats.dtype  # gradients in float16 could overflow
    with_outside = call.scorer.after and x.bias is not None
    most_problems, most_keys = call.band(
        kind.itemsize + ds_dtype.itemsize * (2 if with_outside else 1)
    )
    p_band = stats.new_empty((most_problems, queries, most_keys), dtype=kind)
    ds_band = torch.empty_like(p_band, dtype=ds_dtype)
    outside = torch.empty_like(ds_band) if with_outside else None
    some = stats.new_empty((most_problems, tiles, tiles_of(most_keys)), dtype=torch.int32)
    made = Gradients(
        stats.new_zeros((problems, queries, width)),
        stats.new_zeros((problems, keys, width)),
        stats.new_zeros((problems, tiles, width)),
        stats.new_zeros((problems, queries)),
        stats.new_zeros((problems, keys)),
        stats.new_zeros((problems, keys, d_v)),
        None if x.bias is None else stats.new_zeros(x.bias.shape),
    )
    d_output, delta = delta_of(results, upstream, s)
    d_output = inputs.two(d_output / (1 - s.dropout), 2)
    d_scores = None if upstream.scores is None else upstream.scores.contiguous()
    values, d_outputs = inputs.rows(inputs.two(value, 2), kind), inputs.rows(d_output, kind)
    raw_d_output = operand(d_output, inputs.heads)
    depth = min(Columns(d_v, kind).count, 64 if kind in HALF else BLOCK)
    others = _others(call, ds_dtype) if call.by_products else None
    compared = comparisons.panels_of(call) if comparisons.fits(pair, call) else None
    chunks = None
    if approximation is not None:
        given = Upstream(values, d_outputs, d_output, delta, stats)
        chunks = approximation(inputs, given, made)
    scorer = call.scorer._replace(at_once=2 if s.outer else 4)  # more would exceed the registers
    for problem, first in product(range(0, problems, most_problems), range(0, keys, most_keys)):
        here = slice(problem, min(problem + most_problems, problems))
        there = slice(first, min(first + most_keys, keys))
        size = here.stop - problem, queries, there.stop - first
        band = Band(p_band, ds_band, outside, some, problem, first, size[2])
        launch(
            backward_kernels.weights_and_gradients, size[0] * tiles * tiles_of(size[2]),
            call.of_queries, call.of_keys, call.weights, inputs.biases, inputs.mask,
            inputs.dropout, stats, values, d_outputs, delta, d_scores, band, inputs.sizes,
            call.scale, 0.0, chunks, SCORER=scorer, DEPTH=depth, SIGMOID=bool(s.normalizer),
            **call.options,
        )  # fmt: skip
        sums = partial(_matrix_sums, call, band, size[0])
        sums(band.p, (d_outputs, raw_d_output), made.value)
        if width and others is not None:
            of_a, of_b = others
            sums(band.ds, of_a, made.a, call.scale, of_query=True)
            sums(band.ds, of_b, made.b, call.scale)
        elif compared is not None and pair.steps is not None:
            add_sums = partial(comparisons.add_sums, pair.steps, call, compared, band, size[0])
            add_sums(made.a, of_query=True)
            add_sums(made.b, of_query=False)
        elif width:
            _feature_sums(call, band, size[0], made, of_query=True)
            _feature_sums(call, band, size[0], made, of_query=False)
        ds = ds_band.view(-1)[: prod(size)].view(size)
        if x.key_bias is not None or call.by_sums:
            of_band, summed_keys = made.key_bias[here, there], ds.sum(1, dtype=stats.dtype)
            if chunks is not None:
                summed_keys = summed_keys.where(chunks[here, None] == 0, of_band)
            of_band.copy_(summed_keys)
        if call.by_sums:
            made.query_bias[here].add_(ds.sum(2, dtype=stats.dtype))
        if made.bias is not None:
            if outside is not None:
                ds = outside.view(-1)[: prod(size)].view(size)
            _add_to_bias(inputs, ds, first, made.bias)
    if call.by_norms:
        made = _of_norms(call, made)
    elif pair.steps is not None:
        made = _of_steps(pair.steps, call.scale, made)
    made = _of_weight(pair, x, s, call, made)
    found = made.a, made.b, made.weight, made.key_bias, made.value
    summed = [
        None if y is None else inputs.sum_to(d, y.shape)
        for y, d in zip(factors, found, strict=False)  # the bias is computed apart
    ]
    return Operands(*summed)._replace(bias=made.bias)


def _of_norms(call: PackedCall, made: Gradients) -> Gradients:
    """Return gradients of scale Σ_f (a_f − b_f)² from the sums scale · dS b and scale · dSᵀ a.

    da_i = 2 scale (a_i Σ_j dS_ij − Σ_j dS_ij b_j)
    """
    a, b = (call.inputs.of_problems(x).to(made.a.dtype) for x in (call.a, call.b))
    of_a, of_b = call.scale * made.query_bias[..., None], call.scale * made.key_bias[..., None]
    return made._replace(a=2 * (_times(a, of_a) - made.a), b=2 * (_times(b, of_b) - made.b))


def _times(x: Tensor, sums: Tensor) -> Tensor:
    """Return x · sums, 0 where the sum is: rows that nobody reads may be NaN."""
    return torch.where(sums == 0, 0.0, x * sums)


def _of_steps(steps: Steps, scale: float, made: Gradients) -> Gradients:
    """Return gradients from the sums of scale · dS above the kink, see `stepped_slopes`.

    The slope below the kink times all dS is added.
    """
    rise, low = steps.rise / (2 if steps.at_half else 1), scale * steps.low
    return made._replace(
        a=rise * made.a + low * made.query_bias[..., None],
        b=rise * made.b + low * made.key_bias[..., None],
    )


def _of_weight(
    pair: Functions, x: Operands, s: Settings, call: PackedCall, made: Gradients
) -> Gradients:
    """Return gradients with d_weight (problems, width), without factors folded into the weight.

    Euler: a pair of degree n is (a ∂pair/∂a + b ∂pair/∂b) / n. The gradient of its weight is
    therefore a sum over tokens.
    """
    d_weight, weight = made.weight.sum(1), call.inputs.x.weight
    made = made._replace(weight=d_weight)
    if call.unweighted and call.weight is not None:
        of_weight = call.inputs.of_problems(call.weight)
        a, b = (call.inputs.of_problems(y).to(made.a.dtype) for y in (call.a, call.b))
        d_weight = _times(a, made.a).sum(1) + _times(b, made.b).sum(1)
        of_problem = of_weight[:, None].to(made.a.dtype)
        made = made._replace(
            weight=d_weight / (2 if call.by_norms else 1),
            a=made.a * of_problem,
            b=made.b * of_problem,
        )
    elif pair.is_product and weight is not None:
        d_a = made.a.view(*s.lead, *x.a.shape[-2:])
        made = made._replace(
            weight=(d_a * x.a).sum(-2).view(d_weight.shape),
            a=(d_a * weight[..., None, :]).view(made.a.shape),
        )
    if call.inputs.s.scale != s.scale:  # the scale is in the weight
        made = made._replace(weight=made.weight * s.scale)
    return made


def _add_to_bias(inputs: Inputs, ds: Tensor, first: int, target: Tensor) -> None:
    """Add dS (problems, T_q, keys of a band from `first` on) to the gradient of a bias.

    Diagonals are summed for a few queries at a time. Each of n rows is padded by n numbers, and
    the rows are read again as rows one number shorter. Each row is then
    shifted right by one more column.
    """
    lead, (problems, queries, band) = target.shape[:-2], ds.shape
    if not inputs.s.bias_is_diagonal:
        summed = inputs.sum_to(ds, torch.Size((*lead, queries, band)))
        target[..., first : first + band].copy_(summed)
        return
    for i in range(0, queries, SKEWED):
        rows = ds[:, i : i + SKEWED].flip(1)
        count = rows.shape[1]
        filled = torch.nn.functional.pad(rows, (0, count)).view(problems, -1)[:, :-count]
        diagonals = filled.view(problems, count, band + count - 1).sum(1, keepdim=True)
        start = first + queries - i - count
        part = target[..., start : start + band + count - 1]
        part.add_(inputs.sum_to(diagonals, part.shape))


_Others = tuple[Rows, Operand]
"""Rows to multiply a band with, and their operand, for its NaN and ±∞."""


def _others(call: PackedCall, dtype: torch.dtype) -> tuple[_Others, _Others]:
    """Return the rows to multiply dS with, for the gradients of a and of b; dtype: of dS."""
    of_a, of_b = (
        (call.inputs.rows(y, dtype), operand(y, call.inputs.heads)) for y in (call.b, call.a)
    )
    return of_a, of_b


def _matrix_sums(
    call: PackedCall, band: Band, problems: int, stored: Tensor, others: _Others, target: Tensor,
    scale: float = 1.0, of_query: bool = False,
) -> None:  # fmt: skip
    """Add to target (problems, rows, columns) the products of a band's stored dS or weights."""
    rows, raw = others
    columns = Columns(target.shape[-1], rows.data.dtype)
    count = call.query_tiles if of_query else -(-band.keys // call.tile)
    if columns.width:
        launch(
            backward_kernels.matrix_sums, problems * count * columns.blocks, stored, rows, raw,
            band, target, call.inputs.sizes, scale, WIDTH=columns.width, COLUMNS=columns.count,
            PRECISION=call.precision, QUERIES=call.tile, OF_QUERY=of_query, **call.options,
        )  # fmt: skip


def _feature_sums(
    call: PackedCall, band: Band, problems: int, made: Gradients, of_query: bool
) -> None:
    """Add to the gradients of a and weight (of_query), or of b, the sums over a band."""
    own, other, target = call.of_keys, call.of_queries, made.b
    count = tiles_of(band.keys)
    if of_query:
        own, other, target, count = other, own, made.a, call.query_tiles
    tiles = problems * count
    features = BLOCK if tiles * -(-call.width // BLOCK) >= 2 * PROGRAMS else LEAST_FEATURES
    bounded = call.exponentials and call.target.takes_registers
    registers = {"maxnreg": REGISTERS[of_query]} if bounded else {}
    with_weight = of_query and call.weight is not None and not call.unweighted
    launch(
        backward_kernels.feature_sums, tiles * -(-call.width // features), own, other, call.weights,
        band, target, made.weight, call.inputs.sizes, call.scale, SCORER=call.scorer,
        FEATURES=features, OF_QUERY=of_query, WITH_WEIGHT=with_weight, **registers,
    )  # fmt: skip
