"""What the Triton kernels are made of: operands, who may attend, dropout, sums of rows.

Shapes in comments: a tile has 64 queries and 64 keys; scores are in base 2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

TILE = tl.constexpr(64)
LOG2_E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Operand(NamedTuple):
    """A tensor with an entry for every problem (n, h): its data, and strides in numbers.

    Entry (n, h) starts at n · `n` + (h // `group`) · `h`: strides of 0 broadcast, and a group of
    query heads shares a key/value head.
    """

    data: Any
    n: Any
    h: Any
    group: Any
    row: Any
    column: Any


class Rows(NamedTuple):
    """A copy of an operand's rows with 0 for what is not finite, (problems, tiles · 64, padded).

    odd (problems, tiles): whether something was not. n, h, group: as of `Operand`, in problems.
    """

    data: Any
    odd: Any
    n: Any
    h: Any
    group: Any
    tiles: Any
    padded: Any


class Mask(NamedTuple):
    """The lowered mask: operands, or None. keep is boolean, as bytes."""

    start: Any
    stop: Any
    keep: Any


class Dropout(NamedTuple):
    """seed: where it lies, None for no dropout. last: the largest word that is dropped.

    period: problems are counted modulo it. What is kept is not scaled by 1/(1 − p) here.
    """

    seed: Any
    last: Any
    period: Any


class Sizes(NamedTuple):
    """heads: the h of problem p are p % heads."""

    heads: Any
    queries: Any
    keys: Any


@triton.jit
def entry(x, p, heads):
    """Where the entry of problem p starts."""
    return x.data + (p // heads) * x.n + (p % heads) // x.group * x.h


@triton.jit
def problem_of(x, p, heads):
    """Which problem of panels or rows problem p has."""
    return (p // heads) * x.n + (p % heads) // x.group * x.h


@triton.jit
def span(mask, p, rows, sizes):
    """The keys [start, stop) that each of the queries `rows` may attend; none beyond the last."""
    within = rows < sizes.queries
    start = tl.zeros(rows.shape, tl.int32)
    if mask.start is not None:
        at = entry(mask.start, p, sizes.heads) + rows * mask.start.row
        start = tl.load(at, mask=within, other=0).to(tl.int32)
    if mask.stop is None:
        stop = tl.where(within, sizes.keys, 0)
    else:
        at = entry(mask.stop, p, sizes.heads) + rows * mask.stop.row
        stop = tl.load(at, mask=within, other=0).to(tl.int32)
    return start, stop


@triton.jit
def range_of(start, stop, keys):
    """The first key of the first tile that anyone attends, and the end of the last."""
    some = start < stop
    low = tl.min(tl.where(some, start, keys), 0)
    high = tl.max(tl.where(some, stop, 0), 0)
    return low // TILE * TILE, high


@triton.jit
def tiles_of(mask, start, stop, keys):
    """The tiles that anyone attends, from key `low` on: `before` of which not everyone attends all,
    `whole` of which everyone does, and others again; `masked` in all of which not everyone does.
    """
    low, high = range_of(start, stop, keys)
    tiles = tl.cdiv(tl.maximum(high - low, 0), TILE)
    if mask.keep is None:
        before = tl.minimum(tl.cdiv(tl.max(start, 0) - low, TILE), tiles)
        before = tl.maximum(before, 0)
        whole = tl.maximum(tl.minimum((tl.min(stop, 0) - low) // TILE, tiles) - before, 0)
    else:
        before, whole = tiles, tiles * 0
    return low, before, whole, tiles - whole


@triton.jit
def attended(mask, p, rows, columns, start, stop, sizes):
    """Boolean (queries, keys)."""
    inside = (columns[None, :] >= start[:, None]) & (columns[None, :] < stop[:, None])
    if mask.keep is not None:
        at = entry(mask.keep, p, sizes.heads) + rows[:, None].to(tl.int64) * mask.keep.row
        at += columns[None, :].to(tl.int64) * mask.keep.column
        inside = inside & (tl.load(at, mask=inside, other=0) != 0)
    return inside


@triton.jit
def kept(dropout, p, rows, columns):
    """Boolean (queries, keys): what dropout keeps, by `anyscore.dropout`."""
    seed = tl.load(dropout.seed).to(tl.uint64)
    counter = (p % dropout.period).to(tl.uint64)
    zero = (rows[:, None] + columns[None, :]) * 0
    one, two, three, four = tl.philox(
        seed,
        (zero + columns[None, :] // 4).to(tl.uint32),
        (zero + rows[:, None]).to(tl.uint32),
        zero.to(tl.uint32) + (counter & 0xFFFFFFFF).to(tl.uint32),
        zero.to(tl.uint32) + (counter >> 32).to(tl.uint32),
    )
    word = (columns % 4)[None, :]
    drawn = tl.where(word < 2, tl.where(word == 0, one, two), tl.where(word == 2, three, four))
    return drawn.to(tl.int64) > dropout.last


@triton.jit
def add_product(total, x, y, padded, columns, PRECISION: tl.constexpr):
    """total (64, D) + x (64, 64) @ y (64, D). y: where a tile of `Rows` starts; columns (D,)."""
    y = tl.load(y + tl.arange(0, TILE)[:, None] * padded + columns[None, :]).to(x.dtype)
    if INTERPRETED:  # whose bfloat16 is wrong
        x = x.to(total.dtype)
        y = y.to(total.dtype)
    return tl.dot(x, y, total, input_precision=PRECISION, out_dtype=total.dtype)


@triton.jit
def some_odd(odd, first, last):
    """Whether any tile from `first` up to `last` has something that is not finite."""
    found = tl.zeros((TILE,), tl.int32)
    for at in range(first, last, TILE):
        tiles = at + tl.arange(0, TILE)
        found = tl.maximum(found, tl.load(odd + tiles, mask=tiles < last, other=0))
    return tl.max(found, 0) != 0


@triton.jit
def add_odd(total, reads, y, row, column, left, columns, width):
    """total plus what is not finite in the rows of y that `reads` (64, 64) says are read.

    Apart from the product, where 0 · NaN would reach those who do not read it. y: where the tile
    starts in the operand itself, of strides `row` and `column`; `left` rows and `width` columns
    are there.
    """
    o = tl.arange(0, TILE)
    there = (o < left)[:, None] & (columns < width)[None, :]
    y = tl.load(y + o[:, None] * row + columns[None, :] * column, mask=there, other=0.0)
    dtype: tl.constexpr = tl.float32 if INTERPRETED else tl.bfloat16
    for kind in range(3):
        poison = tl.where(kind == 0, float("inf"), tl.where(kind == 1, float("-inf"), float("nan")))
        found = (y == poison) | ((kind == 2) & (y != y))
        some = tl.dot(reads.to(dtype), found.to(dtype), tl.zeros(total.shape, tl.float32))
        total += tl.where(some > 0, poison, 0.0)
    return total
