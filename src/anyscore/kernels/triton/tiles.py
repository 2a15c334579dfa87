"""Building blocks of the Triton kernels: operands, masks, dropout, products with rows.

A tile has 64 keys, and 64 queries or more (`Scorer.queries`).

Prefixes, as in flash-linear-attention: `i_` an index of a tile, problem, block or row, `n_` a
number of them. `o_` is a range of indices, `m_` a mask, `p_` a pointer, `b_` a block in registers.
Comments give shapes: Q queries, K keys, C columns of the value, F features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

TILE = tl.constexpr(64)
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


class Operand(NamedTuple):
    """A tensor with an entry for every problem (n, h): its data, and strides in elements.

    Entry (n, h) starts at n · `n` + (h // `group`) · `h`: strides of 0 broadcast, and a group of
    query heads shares a key/value head.
    """

    data: Any
    n: Any
    h: Any
    group: Any
    row: Any
    column: Any


class Features(NamedTuple):
    """An `Operand` (rows, width) that products of tensor cores read, and its squared norms.

    norms: a pointer to (problems, rows), float32; None if the scorer needs no norms. norm_n,
    norm_h: strides of problems in the norms.
    """

    data: Any
    n: Any
    h: Any
    group: Any
    row: Any
    column: Any
    norms: Any
    norm_n: Any
    norm_h: Any


class Rows(NamedTuple):
    """A copy of an operand's rows with 0 for NaN and ±∞, (problems, tiles · 64, padded).

    The number of tiles is even, for tiles of 128 rows.
    nonfinite: (problems, tiles), 1 where the copy lacks NaN or ±∞. n, h, group: as in `Operand`, in
    problems.
    """

    data: Any
    nonfinite: Any
    n: Any
    h: Any
    group: Any
    tiles: Any
    padded: Any


class Biases(NamedTuple):
    """Operands, or None: keys (T_k,), and pairs (T_q, T_k); diagonals have strides −1 and 1.

    Kernels rebuild this tuple of tuples, and `Mask` too. For one passed as an argument, Triton 3.6
    forgets in loops that numbers are the constant 1.
    """

    keys: Any
    pairs: Any


class Mask(NamedTuple):
    """The lowered mask: operands, or None; mask is boolean, stored as bytes."""

    start: Any
    stop: Any
    mask: Any


class Dropout(NamedTuple):
    """seed: a pointer, None for no dropout. last: the largest random word that is dropped.

    origin: a pointer to the first query and the first key, None for 0 and 0. period: problems are
    counted modulo it. Kernels do not scale by 1/(1 − p).
    """

    seed: Any
    origin: Any
    last: Any
    period: Any


class Sizes(NamedTuple):
    """heads: h of problem p is p % heads. queries, keys: T_q and T_k."""

    heads: Any
    queries: Any
    keys: Any


@triton.jit
def entry(x, i_p, heads):
    """Return a pointer to the entry of problem i_p in the operand x."""
    return x.data + (i_p // heads) * x.n + (i_p % heads) // x.group * x.h


@triton.jit
def problem_of(x, i_p, heads):
    """Return the index of problem i_p in the panels or rows x."""
    return (i_p // heads) * x.n + (i_p % heads) // x.group * x.h


@triton.jit
def bounds_of(mask, i_p, o_q, sizes):
    """Return start and stop (Q,) of queries o_q (Q,); queries past the last attend no key."""
    m_q = o_q < sizes.queries
    b_start = o_q * 0
    if mask.start is not None:
        p_start = entry(mask.start, i_p, sizes.heads) + o_q * mask.start.row
        b_start = tl.load(p_start, mask=m_q, other=0).to(tl.int32)
    if mask.stop is None:
        b_stop = tl.where(m_q, sizes.keys, 0)
    else:
        p_stop = entry(mask.stop, i_p, sizes.heads) + o_q * mask.stop.row
        b_stop = tl.load(p_stop, mask=m_q, other=0).to(tl.int32)
    return b_start, b_stop


@triton.jit
def range_of(b_start, b_stop, keys, WIDE: tl.constexpr = TILE):
    """Return the first key of the first attended tile, and the end of the last attended tile."""
    m_some = b_start < b_stop
    i_low = tl.min(tl.where(m_some, b_start, keys), 0)
    i_high = tl.max(tl.where(m_some, b_stop, 0), 0)
    return i_low // WIDE * WIDE, i_high


@triton.jit
def tiles_of(mask, b_start, b_stop, keys, WIDE: tl.constexpr = TILE):
    """Return the first key of the attended tiles, n_before, n_whole and n_masked.

    From the first key on, n_before tiles have masked entries, the next n_whole have none, and the
    rest have masked entries again. The number of all tiles with masked entries is n_masked.
    A tile has WIDE keys.
    """
    i_low, i_high = range_of(b_start, b_stop, keys, WIDE)
    n_tiles = tl.cdiv(tl.maximum(i_high - i_low, 0), WIDE)
    if mask.mask is None:
        n_before = tl.minimum(tl.cdiv(tl.max(b_start, 0) - i_low, WIDE), n_tiles)
        n_before = tl.maximum(n_before, 0)
        n_inside = (tl.min(b_stop, 0) - i_low) // WIDE
        n_whole = tl.maximum(tl.minimum(n_inside, n_tiles) - n_before, 0)
    else:
        n_before, n_whole = n_tiles, n_tiles * 0
    return i_low, n_before, n_whole, n_tiles - n_whole


@triton.jit
def index_of(i, n_before, n_whole, MASKED: tl.constexpr):
    """Return which tile of `tiles_of` is the i-th one with masked entries, or without them."""
    if MASKED:
        i += tl.where(i < n_before, 0, n_whole)
    else:
        i += n_before
    return i


@triton.jit
def attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes):
    """Return the boolean mask (Q, K) of queries o_q (Q,) and keys o_k (K,), True = may attend."""
    m_s = (o_k[None, :] >= b_start[:, None]) & (o_k[None, :] < b_stop[:, None])
    if mask.mask is not None:
        p_mask = entry(mask.mask, i_p, sizes.heads) + o_q[:, None].to(tl.int64) * mask.mask.row
        p_mask += o_k[None, :].to(tl.int64) * mask.mask.column  # (Q, K)
        m_s = m_s & (tl.load(p_mask, mask=m_s, other=0) != 0)
    return m_s


@triton.jit
def dropout_mask(dropout, i_p, o_q, o_k):
    """Return the boolean dropout mask (Q, K) of `anyscore.modifiers.dropout`, True = kept."""
    seed = tl.load(dropout.seed).to(tl.uint64)
    if dropout.origin is not None:
        o_q = o_q + tl.load(dropout.origin)
        o_k = o_k + tl.load(dropout.origin + 1)
    counter = (i_p % dropout.period).to(tl.uint64)
    zero = (o_q[:, None] + o_k[None, :]) * 0
    one, two, three, four = tl.philox(  # (Q, K) each
        seed,
        (zero + o_k[None, :] // 4).to(tl.uint32),
        (zero + o_q[:, None]).to(tl.uint32),
        zero.to(tl.uint32) + (counter & 0xFFFFFFFF).to(tl.uint32),
        zero.to(tl.uint32) + (counter >> 32).to(tl.uint32),
    )
    word = (o_k % 4)[None, :]
    b_drawn = tl.where(word < 2, tl.where(word == 0, one, two), tl.where(word == 2, three, four))
    return b_drawn.to(tl.int64) > dropout.last


@triton.jit
def add_product(b_total, b_x, p_y, padded, o_c, PRECISION: tl.constexpr):
    """Return b_total (R, C) + b_x (R, 64) @ y (64, C); p_y: a pointer to a tile of `Rows`."""
    b_y = tl.load(p_y + tl.arange(0, TILE)[:, None] * padded + o_c[None, :]).to(b_x.dtype)
    if INTERPRETED:  # whose bfloat16 is wrong
        b_x = b_x.to(b_total.dtype)
        b_y = b_y.to(b_total.dtype)
    elif b_x.dtype == tl.float64:
        # Triton 3.6 chooses the layout of x by its narrowest ancestor, such as a mask's byte, and
        # cannot compile the product in that layout. The search ends at a sum.
        b_x = tl.sum(b_x[:, :, None], 2)
    return tl.dot(b_x, b_y, b_total, input_precision=PRECISION, out_dtype=b_total.dtype)


@triton.jit
def some_nonfinite(p_nonfinite, i_first, i_last):
    """Return whether any tile from i_first up to i_last has NaN or ±∞."""
    b_found = tl.zeros((TILE,), tl.int32)
    for i in range(i_first, i_last, TILE):
        o_t = i + tl.arange(0, TILE)
        b_found = tl.maximum(b_found, tl.load(p_nonfinite + o_t, mask=o_t < i_last, other=0))
    return tl.max(b_found, 0) != 0


@triton.jit
def add_nonfinite(b_total, m_reads, p_y, row, column, n_rows, o_c, width):
    """Add to b_total (R, C) the NaN and ±∞ of rows of y that are read, by m_reads (R, 64).

    The product leaves them out, because 0 · NaN would reach queries that do not read the row. p_y:
    a pointer to the tile in the operand, which has strides `row` and `column`, n_rows rows and
    `width` columns.
    """
    o_r = tl.arange(0, TILE)
    m_y = (o_r < n_rows)[:, None] & (o_c < width)[None, :]
    b_y = tl.load(p_y + o_r[:, None] * row + o_c[None, :] * column, mask=m_y, other=0.0)  # (64, C)
    dtype: tl.constexpr = tl.float32 if INTERPRETED else tl.bfloat16
    for i in range(3):
        poison = tl.where(i == 0, float("inf"), tl.where(i == 1, float("-inf"), float("nan")))
        m_found = (b_y == poison) | ((i == 2) & (b_y != b_y))
        zeros = tl.zeros(b_total.shape, tl.float32)
        b_count = tl.dot(m_reads.to(dtype), m_found.to(dtype), zeros)  # counts of reads, (R, C)
        b_total += tl.where(b_count > 0, poison, 0.0)
    return b_total
