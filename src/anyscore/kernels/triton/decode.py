"""Forward in Triton for one or two queries: a decoder's step, as fast as memory gives the keys.

Rows are read as they are, no panels are made. The keys are split among programs, whose sums are
combined by a second kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import LN_2, add_bias, take
from anyscore.kernels.triton.tiles import LOG2_E, TILE, attended, entry, kept, span

FEATURES = tl.constexpr(32)
"""How many are read at a time."""


@triton.jit
def _scores(a, b, weight, keys, sizes, scale, ACC, VALUE: tl.constexpr, WIDTH: tl.constexpr):
    """Scores (1, 64) in base 2 of the query at a and the keys at b."""
    f = tl.arange(0, FEATURES)
    there = keys < sizes.keys
    total = tl.zeros((TILE,), ACC)
    for _ in range(0, WIDTH, FEATURES):
        x = tl.load(a[0] + f * a[1], mask=f < WIDTH, other=0.0).to(ACC)
        at = b[0] + keys.to(tl.int64)[:, None] * b[1] + f[None, :] * b[2]
        y = tl.load(at, mask=there[:, None] & (f < WIDTH)[None, :], other=0.0).to(ACC)
        value = VALUE(x[None, :], y)
        if weight is not None:
            w = tl.load(weight[0] + f * weight[1], mask=f < WIDTH, other=0.0).to(ACC)
            value = value * w[None, :]
        total += tl.sum(tl.where((f < WIDTH)[None, :], value, 0.0), 1)
        f += FEATURES
    return total[None, :] * (scale * LOG2_E)


@triton.jit
def few_queries(
    a, b, weight, bias, value, mask, dropout, tops, totals, sums, sizes, scale, chunk, splits,
    PAIR: tl.constexpr, WIDTH: tl.constexpr, D_V: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One query, one part of its keys and COLUMNS of the value a program; all are operands.

    tops, totals (problems, T_q, splits): the largest score, and the sum of exponentials relative to
    it; sums (problems, T_q, splits, D_V): of the values.
    """
    ACC: tl.constexpr = tops.dtype.element_ty
    blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS) if D_V else 1
    block, rest = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    split, rest = rest % splits, rest // splits
    i, p = rest % sizes.queries, (rest // sizes.queries).to(tl.int64)
    row = i + tl.arange(0, 1)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    query = entry(a, p, sizes.heads) + i * a.row, a.column
    key = entry(b, p, sizes.heads), b.row, b.column
    of_weight = None if weight is None else (entry(weight, p, sizes.heads), weight.column)
    source = entry(value, p, sizes.heads)

    start, stop = span(mask, p, row, sizes)
    low = tl.maximum(tl.max(start, 0), split * chunk)
    high = tl.minimum(tl.max(stop, 0), split * chunk + chunk)
    top = tl.full((1,), float("-inf"), ACC)
    total = tl.zeros((1,), ACC)
    summed = tl.zeros((COLUMNS,), ACC)
    for j in range(low // TILE * TILE, high, TILE):
        keys = tl.arange(0, TILE) + j
        reads = attended(mask, p, row, keys, start, stop, sizes)
        reads = reads & ((keys >= low) & (keys < high))[None, :]
        s = _scores(query, key, of_weight, keys, sizes, scale, ACC, PAIR.value, WIDTH)
        s = tl.where(reads, add_bias(s, bias, p, keys, sizes), float("-inf"))
        x, fade, top, total = take(s, top, total)
        if dropout.seed is not None:
            x = tl.where(kept(dropout, p, row, keys), x, 0.0)
        of_key, read = tl.sum(x, 0), tl.max(reads.to(tl.int32), 0) != 0
        at = source + keys.to(tl.int64)[:, None] * value.row + columns[None, :] * value.column
        there = read[:, None] & (columns < D_V)[None, :]
        v = tl.load(at, mask=there, other=0.0).to(ACC)
        summed = summed * fade + tl.sum(tl.where(there, of_key[:, None] * v, 0.0), 0)
    at = (p * sizes.queries + i) * splits + split
    if block == 0:
        tl.store(tops + at + tl.arange(0, 1), top)
        tl.store(totals + at + tl.arange(0, 1), total)
    tl.store(sums + at * D_V + columns, summed, mask=columns < D_V)


@triton.jit
def combine(tops, totals, sums, output, lse, splits, D_V: tl.constexpr, COLUMNS: tl.constexpr):
    """Output (rows, D_V) and log-sum-exp (rows,) of the parts; COLUMNS of one row a program."""
    blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS) if D_V else 1
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    columns = block * COLUMNS + tl.arange(0, COLUMNS)
    top = tl.load(tops + row * splits)
    for split in range(1, splits):
        top = tl.maximum(top, tl.load(tops + row * splits + split))
    shift = tl.where(top == float("-inf"), 0.0, top)
    total = shift * 0
    summed = tl.zeros((COLUMNS,), sums.dtype.element_ty)
    for split in range(splits):
        at = row * splits + split
        weight = tl.exp2(tl.load(tops + at) - shift)
        total += tl.load(totals + at) * weight
        summed += tl.load(sums + at * D_V + columns, mask=columns < D_V, other=0.0) * weight
    some = total != 0
    safe = tl.where(some, total, 1.0)
    if block == 0:
        tl.store(lse + row, tl.where(some, (top + tl.log2(safe)) * LN_2, float("-inf")))
    tl.store(output + row * D_V + columns, summed / safe, mask=columns < D_V)
