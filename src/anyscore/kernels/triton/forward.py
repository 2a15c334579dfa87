"""Forward in Triton: output and log-sum-exp, tile by tile with a running maximum."""

from __future__ import annotations

import triton
import triton.language as tl

from anyscore.kernels.triton.scores import tile_scores
from anyscore.kernels.triton.tiles import (
    LOG2_E,
    TILE,
    add_odd,
    add_product,
    attended,
    entry,
    kept,
    problem_of,
    range_of,
    some_odd,
    span,
    tiles_of,
)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def add_bias(s, bias, p, columns, sizes):
    """s plus the key bias, if there is one."""
    if bias is not None:
        at = entry(bias, p, sizes.heads) + columns.to(tl.int64) * bias.column
        x = tl.load(at, mask=columns < sizes.keys, other=0.0).to(s.dtype)
        s += (x * LOG2_E)[None, :]
    return s


@triton.jit
def take(s, top, total):
    """Exponentials of scores (rows, 64) relative to the largest so far, by what earlier ones fade,
    that largest, and the sum of all.
    """
    new = tl.maximum(top, tl.max(s, 1))
    shift = tl.where(new == float("-inf"), 0.0, new)
    x = tl.exp2(s - shift[:, None])
    fade = tl.exp2(top - shift)
    return x, fade, new, total * fade + tl.sum(x, 1)


@triton.jit
def forward(
    a, b, weights, bias, value, mask, dropout, output, lse, sizes, scale, seed,
    blocks, PAIR: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, D_V: tl.constexpr,
    COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """64 queries of one problem and COLUMNS of the value a program.

    output (problems, T_q, D_V) and lse (problems, T_q), in the dtype of sums. value: `Rows`.
    """
    ACC: tl.constexpr = lse.dtype.element_ty
    block, rest = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    tile, p = rest % a.tiles, (rest // a.tiles).to(tl.int64)
    o = tl.arange(0, TILE)
    rows, columns = tile * TILE + o, block * COLUMNS + tl.arange(0, COLUMNS)
    of_a = problem_of(a, p, sizes.heads) * a.tiles + tile
    of_b = problem_of(b, p, sizes.heads) * b.tiles
    of_w = problem_of(weights, p, sizes.heads)
    of_value = problem_of(value, p, sizes.heads) * b.tiles
    bounds = 0.0 if a.bounds is None else tl.load(a.bounds + of_a * 2)

    start, stop = span(mask, p, rows, sizes)
    low, before, whole, masked = tiles_of(mask, start, stop, sizes.keys)
    v = value.data + of_value * TILE * value.padded
    top = tl.full((TILE,), float("-inf"), ACC)
    total = tl.zeros((TILE,), ACC)
    summed = tl.zeros((TILE, COLUMNS), ACC)
    for MASKED in tl.static_range(2):
        count = masked if MASKED else whole
        for i in range(count):
            if MASKED:
                j = low + TILE * (i + tl.where(i < before, 0, whole))
            else:
                j = low + TILE * (i + before)
            s = tile_scores(
                a, b, of_a, of_b + j // TILE, weights, of_w, scale, seed, bounds,
                PAIR, WIDTH, PADDED, ACC, PRECISION,
            )  # fmt: skip
            keys = j + o
            s = add_bias(s, bias, p, keys, sizes)
            if MASKED:
                s = tl.where(attended(mask, p, rows, keys, start, stop, sizes), s, float("-inf"))
            x, fade, top, total = take(s, top, total)
            if dropout.seed is not None:
                x = tl.where(kept(dropout, p, rows, keys), x, 0.0)
            summed = add_product(
                summed * fade[:, None], x.to(value.data.dtype.element_ty),
                v + (p * 0 + j) * value.padded, value.padded, columns, PRECISION,
            )  # fmt: skip
    some = total != 0
    safe = tl.where(some, total, 1.0)
    constant = 0.0
    if a.exponentials is not None:
        constant = tl.load(weights.constants + of_w * 2 + 1)
    of_row = tl.where(some, (top + constant + tl.log2(safe)) * LN_2, float("-inf"))
    within = rows < sizes.queries
    at = p * sizes.queries + rows
    if block == 0:
        tl.store(lse + at, of_row, mask=within)
    tl.store(
        output + at[:, None] * D_V + columns[None, :],
        summed / safe[:, None],
        mask=within[:, None] & (columns < D_V)[None, :],
    )


@triton.jit
def forward_odd(value, finite, mask, output, sizes, D_V: tl.constexpr, COLUMNS: tl.constexpr):
    """Adds to the output (problems, T_q, D_V) what is not finite in value, for those who attend it.

    Apart from the product, where 0 · NaN would reach those who do not. value as an operand, and as
    `Rows`. The programs are those of `forward`.
    """
    blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS)
    tiles = tl.cdiv(sizes.queries, TILE)
    block, rest = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    tile, p = rest % tiles, (rest // tiles).to(tl.int64)
    o = tl.arange(0, TILE)
    rows, columns = tile * TILE + o, block * COLUMNS + tl.arange(0, COLUMNS)
    start, stop = span(mask, p, rows, sizes)
    low, high = range_of(start, stop, sizes.keys)
    odd = finite.odd + problem_of(finite, p, sizes.heads) * finite.tiles
    if some_odd(odd, low // TILE, tl.cdiv(high, TILE)):
        total = tl.zeros((TILE, COLUMNS), tl.float32)
        source = entry(value, p, sizes.heads)
        for j in range(low, high, TILE):
            if tl.load(odd + j // TILE) != 0:
                reads = attended(mask, p, rows, j + o, start, stop, sizes)
                total = add_odd(
                    total, reads, source + (p * 0 + j) * value.row, value.row, value.column,
                    sizes.keys - j, columns, D_V,
                )  # fmt: skip
        there = (rows < sizes.queries)[:, None] & (columns < D_V)[None, :]
        at = output + (p * sizes.queries + rows)[:, None] * D_V + columns[None, :]
        tl.store(at, tl.load(at, mask=there) + total, mask=there)
