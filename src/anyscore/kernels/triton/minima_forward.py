"""Forward of `minima` in Gluon: packed minima, summed by tensor cores, then a softmax as elsewhere.

A program has a tile of queries. Their features stay in registers in the layout of a left operand.
The minima with one key are such an operand too. The right operand has the weights in the two
columns of the key and 0 in the others, so that four keys fill the eight columns of a product.
"""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from anyscore.kernels.triton.forward import shift_of, sigmoid, store_scores, store_stats, take
from anyscore.kernels.triton.minima_rows import parts, weights_of
from anyscore.kernels.triton.scores import with_biases
from anyscore.kernels.triton.tiles import (
    TILE,
    Biases,
    Mask,
    attended,
    bounds_of,
    dropout_mask,
    entry,
    problem_of,
    tiles_of,
)

KEYS = gl.constexpr(16)
"""Keys of a step, whose scores a softmax takes at once."""
STAGES = gl.constexpr(4)
"""Steps in shared memory: one is read, and the next ones are copied."""
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def _minima(b_a, b_b, BFLOAT16: gl.constexpr):
    """Return the minima of features b_a (Q, F) and of a key b_b (F,), two an instruction."""
    b_x, b_y = gl.broadcast(b_a, b_b[None, :])
    if BFLOAT16:
        b_x = gl.inline_asm_elementwise(
            "min.bf16x2 $0, $1, $2;", "=r,r,r", [b_x, b_y], gl.bfloat16, is_pure=True, pack=2
        )
    else:
        b_x = gl.inline_asm_elementwise(
            "min.f16x2 $0, $1, $2;", "=r,r,r", [b_x, b_y], gl.float16, is_pure=True, pack=2
        )
    return b_x


@gluon.jit
def _key(keys, F: gl.constexpr, LEFT: gl.constexpr):
    """Return a row of shared memory (F,), in the order of `_feature`, by reads of 16 bytes."""
    ROW: gl.constexpr = gl.BlockedLayout([1, F // 4], [1, 32], [1, gl.num_warps()], [1, 0])
    b_b = gl.permute(gl.reshape(keys.load(ROW), (4, F // 16, 2, 2)), (1, 2, 0, 3))
    return gl.convert_layout(gl.reshape(b_b, (F,)), gl.SliceLayout(0, LEFT), assert_trivial=True)


@gluon.jit
def _feature(o_f, F: gl.constexpr):
    """Return the feature in place o_f (F,) of an operand: a thread reads F / 4 in a row."""
    return o_f // 2 % 4 * (F // 4) + o_f // 16 * 4 + o_f // 8 % 2 * 2 + o_f % 2


@gluon.jit
def _right_operands(b_high, b_low, RIGHT: gl.constexpr):
    """Return the right operands (F, 8) of four keys, from the parts of the weights (F,)."""
    o_c = gl.arange(0, 8, gl.SliceLayout(0, RIGHT))[None, :]
    b_parts = gl.where(o_c % 2 == 0, b_high[:, None], b_low[:, None])
    b_zero = gl.zeros_like(b_parts)
    return (
        gl.where(o_c // 2 == 0, b_parts, b_zero), gl.where(o_c // 2 == 1, b_parts, b_zero),
        gl.where(o_c // 2 == 2, b_parts, b_zero), gl.where(o_c // 2 == 3, b_parts, b_zero),
    )  # fmt: skip


@gluon.jit
def _side_by_side(b_x, b_y):
    """Return (Q, 2 N) of two tensors (Q, N)."""
    b_x = gl.permute(gl.join(b_x, b_y), (0, 2, 1))
    return gl.reshape(b_x, (b_x.shape[0], 2 * b_x.shape[2]))


@gluon.jit
def _of_parts(b_x):
    """Return the sums (Q, 4) of the parts of four keys (Q, 8)."""
    b_high, b_low = gl.split(gl.reshape(b_x, (b_x.shape[0], 4, 2)))
    return b_high + b_low


@gluon.jit
def _eight(
    b_a, keys, b_w, FIRST: gl.constexpr, F: gl.constexpr, LEFT: gl.constexpr, SUMS: gl.constexpr
):
    """Return the sums (Q, 8) of keys from FIRST on.

    Even keys have one product's columns and odd keys another's, so that a thread has two keys in a
    row, as in a product (Q, 8).
    """
    BFLOAT16: gl.constexpr = b_a.dtype == gl.bfloat16
    b_even = gl.zeros((b_a.shape[0], 8), gl.float32, SUMS)
    b_odd = gl.zeros((b_a.shape[0], 8), gl.float32, SUMS)
    for j in gl.static_range(4):
        b_x = _minima(b_a, _key(keys.slice(FIRST + 2 * j, 1), F, LEFT), BFLOAT16)
        b_y = _minima(b_a, _key(keys.slice(FIRST + 2 * j + 1, 1), F, LEFT), BFLOAT16)
        b_even = mma_v2(b_x, b_w[j], b_even)
        b_odd = mma_v2(b_y, b_w[j], b_odd)
    b_s = gl.join(_of_parts(b_even), _of_parts(b_odd))
    return gl.reshape(b_s, (b_a.shape[0], 8))


@gluon.jit
def _sums(b_a, keys, b_w, F: gl.constexpr, LEFT: gl.constexpr, SUMS: gl.constexpr):
    """Return Σ_f w_f min(a_f, b_f) (Q, K) of keys in shared memory (K, F)."""
    b_x = _eight(b_a, keys, b_w, 0, F, LEFT, SUMS)
    b_y = _eight(b_a, keys, b_w, 8, F, LEFT, SUMS)
    return gl.convert_layout(_side_by_side(b_x, b_y), SUMS, assert_trivial=True)


@gluon.jit
def _fetch(p_x, shared, i, n, padded, VECTOR: gl.constexpr):
    """Copy step i of n of rows p_x to shared memory (STAGES, K, C)."""
    C: gl.constexpr = shared.shape[2]
    ACROSS: gl.constexpr = C // VECTOR
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0]
    )
    o_k = gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT))[:, None]
    o_c = gl.arange(0, C, gl.SliceLayout(0, LAYOUT))[None, :]
    _copy(
        shared.index(i % STAGES), p_x + (i * KEYS + o_k) * padded + o_c, mask=(o_k >= 0) & (i < n)
    )


@gluon.jit
def minima_forward(
    a, keys, weight, u, biases, value, mask, dropout, output, stats, scores, sizes, chunks, scale,
    n_blocks, SCORER: gl.constexpr, NEGATED: gl.constexpr, F: gl.constexpr, D_V: gl.constexpr,
    COLUMNS: gl.constexpr, SIGMOID: gl.constexpr,
):  # fmt: skip
    """Write output and stats as `forward.forward` does, of problems with chunks."""
    QUERIES: gl.constexpr = SCORER.queries
    WIDTH: gl.constexpr = SCORER.width
    HALF: gl.constexpr = keys.data.dtype.element_ty
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [gl.num_warps(), 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    i_block, rest = gl.program_id(0) % n_blocks, gl.program_id(0) // n_blocks
    n_tiles = gl.cdiv(sizes.queries, QUERIES)
    i_tile, i_p = rest % n_tiles, (rest // n_tiles).to(gl.int64)
    if gl.load(chunks + i_p) != 0:
        o_f = _feature(gl.arange(0, F, gl.SliceLayout(0, LEFT)), F)[None, :]
        o_a = i_tile * QUERIES + gl.arange(0, QUERIES, gl.SliceLayout(1, LEFT))[:, None]
        p_a = entry(a, i_p, sizes.heads) + o_a.to(gl.int64) * a.row + o_f * a.column
        b_a = gl.load(p_a, mask=(o_a < sizes.queries) & (o_f < WIDTH), other=0.0)
        if NEGATED:
            b_a = -b_a
        o_w = _feature(gl.arange(0, F, gl.SliceLayout(1, RIGHT)), F)
        b_high, b_low, unit = parts(weights_of(weight, i_p, o_w, sizes.heads, WIDTH), HALF)
        b_w = _right_operands(b_high, b_low, RIGHT)
        factor = scale * unit

        o_q, o_t = (
            i_tile * QUERIES + gl.arange(0, QUERIES, ROWS),
            gl.arange(0, KEYS, gl.SliceLayout(0, SUMS)),
        )
        o_c = i_block * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, SUMS))
        m_q = o_q < sizes.queries
        o_row, o_stats = i_p * sizes.queries + o_q, i_p * 2 * sizes.queries + o_q
        b_u = gl.load(u + o_row, mask=m_q, other=0.0)
        b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)  # (Q,)
        i_low, n_before, n_whole, n_masked = tiles_of(mask, b_start, b_stop, sizes.keys, KEYS)
        n = n_whole + n_masked
        p_b = (
            keys.data
            + (problem_of(keys, i_p, sizes.heads) * (keys.tiles * TILE) + i_low) * keys.padded
        )
        p_v = (
            value.data
            + (problem_of(value, i_p, sizes.heads) * (value.tiles * TILE) + i_low) * value.padded
        )
        p_v += i_block * COLUMNS
        b_top = gl.full((QUERIES,), float("-inf"), gl.float32, ROWS)
        b_total = gl.zeros((QUERIES,), gl.float32, ROWS)
        b_o = gl.zeros((QUERIES, COLUMNS), gl.float32, SUMS)
        if SIGMOID:
            b_shift = shift_of(stats, o_stats, m_q)

        s_b = gl.allocate_shared_memory(HALF, (STAGES, KEYS, F), PLAIN)
        s_v = gl.allocate_shared_memory(
            value.data.dtype.element_ty, (STAGES, KEYS, COLUMNS), SWIZZLED
        )
        for i in gl.static_range(STAGES - 1):
            _fetch(p_b, s_b, i, n, keys.padded, 8)
            _fetch(p_v, s_v, i, n, value.padded, 8)
            async_copy.commit_group()
        for i in range(n):
            async_copy.wait_group(STAGES - 2)
            _fetch(p_b, s_b, i + STAGES - 1, n, keys.padded, 8)
            _fetch(p_v, s_v, i + STAGES - 1, n, value.padded, 8)
            async_copy.commit_group()
            o_k = i_low + i * KEYS + o_t
            b_s = _sums(b_a, s_b.index(i % STAGES), b_w, F, LEFT, SUMS) * factor + b_u[:, None]
            b_s, _ = with_biases(b_s, biases, i_p, o_q, o_k, sizes, SCORER)
            if (i < n_before) | (i >= n_before + n_whole):
                m_s = attended(mask, i_p, o_q, o_k, b_start, b_stop, sizes)
                b_s = gl.where(m_s, b_s, float("-inf"))
            if scores is not None:
                store_scores(scores, b_s, i_p, o_q, o_k, sizes, i_block)
            if SIGMOID:
                b_x = sigmoid(b_s - b_shift[:, None])
            else:
                b_x, b_fade, b_top, b_total = take(b_s, b_top, b_total)
                b_o = b_o * b_fade[:, None]
            if dropout.seed is not None:
                b_x = gl.where(dropout_mask(dropout, i_p, o_q, o_k), b_x, 0.0)
            b_v = s_v.index(i % STAGES).load(RIGHT)
            b_o = mma_v2(gl.convert_layout(b_x.to(b_v.dtype), LEFT), b_v, b_o)
        async_copy.wait_group(0)
        if i_block == 0 and not SIGMOID:
            store_stats(stats, o_stats, b_top, b_total, m_q, sizes.queries)
        b_safe = gl.where(b_total == 0, 1.0, b_total)
        p_o = output + o_row[:, None] * D_V + o_c[None, :]
        gl.store(p_o, b_o / b_safe[:, None], mask=m_q[:, None] & (o_c < D_V)[None, :])
