"""Forward of `minima` in Gluon: the layouts of tensor cores are explicit there.

The features of a tile of queries stay in registers, as a left operand of products. Minima with the
features of a key are a left operand too. The right operand of a key has the two parts of the
weights in two columns, and 0 in the others. Four keys fill the eight columns of a product.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from anyscore.kernels.triton.forward import shift_of, sigmoid, store_scores, store_stats, take
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
from anyscore.kernels.triton.untried.minima_rows import parts
from anyscore.kernels.triton.untried.rows import weights_of

KEYS = gl.constexpr(16)
"""Keys of a step. More would exceed the registers of three programs a multiprocessor."""
STAGES = gl.constexpr(4)
"""Steps in shared memory: one is read, and the next ones are copied."""
VECTOR = gl.constexpr(8)
"""Numbers of 16 bits in an access of 16 bytes."""
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def _feature(o_f, F: gl.constexpr):
    """Return the features at places o_f (F,) of an operand; a thread has F / 4 in a row."""
    return o_f // 2 % 4 * (F // 4) + o_f // 16 * 4 + o_f // 8 % 2 * 2 + o_f % 2


@gluon.jit
def _minima(b_a, keys, j: gl.constexpr):
    """Return the minima (Q, F) of features b_a (Q, F) and of key j in shared memory (K, F)."""
    F: gl.constexpr = b_a.shape[1]
    ROW: gl.constexpr = gl.BlockedLayout([1, F // 4], [1, 32], [1, gl.num_warps()], [1, 0])
    b_b = gl.reshape(keys.slice(j, 1).load(ROW), (4, F // 16, 2, 2))  # as in `_feature`
    b_b = gl.reshape(gl.permute(b_b, (1, 2, 0, 3)), (F,))
    b_b = gl.convert_layout(b_b, gl.SliceLayout(0, b_a.type.layout), assert_trivial=True)
    b_x, b_y = gl.broadcast(b_a, b_b[None, :])
    MIN: gl.constexpr = "min.bf16x2" if b_a.dtype == gl.bfloat16 else "min.f16x2"
    return gl.inline_asm_elementwise(
        MIN + " $0, $1, $2;", "=r,r,r", [b_x, b_y], dtype=b_a.dtype, is_pure=True, pack=2
    )


@gluon.jit
def _of_four_keys(b_high, b_low, RIGHT: gl.constexpr):
    """Return the right operands (F, 8) of four keys, from the parts of the weights (F,)."""
    o_c = gl.arange(0, 8, gl.SliceLayout(0, RIGHT))[None, :]
    b_parts = gl.where(o_c % 2 == 0, b_high[:, None], b_low[:, None])
    b_zero = gl.zeros_like(b_parts)
    return (
        gl.where(o_c // 2 == 0, b_parts, b_zero),
        gl.where(o_c // 2 == 1, b_parts, b_zero),
        gl.where(o_c // 2 == 2, b_parts, b_zero),
        gl.where(o_c // 2 == 3, b_parts, b_zero),
    )


@gluon.jit
def _sum_of_parts(b_x):
    """Return the sums (Q, 4) of the two columns of each key in b_x (Q, 8)."""
    b_high, b_low = gl.split(gl.reshape(b_x, (b_x.shape[0], 4, 2)))
    return b_high + b_low


@gluon.jit
def _sums_of_eight(b_a, keys, b_w, FIRST: gl.constexpr, SUMS: gl.constexpr):
    """Return Σ_f w_f min(a_f, b_f) (Q, 8) of keys from FIRST on.

    One product has the even keys and another the odd ones. A thread then has two keys in a row, as
    in the sums (Q, 8) of a product.
    """
    b_even = gl.zeros((b_a.shape[0], 8), gl.float32, SUMS)
    b_odd = gl.zeros((b_a.shape[0], 8), gl.float32, SUMS)
    for j in gl.static_range(4):
        b_x, b_y = _minima(b_a, keys, FIRST + 2 * j), _minima(b_a, keys, FIRST + 2 * j + 1)
        b_even, b_odd = mma_v2(b_x, b_w[j], b_even), mma_v2(b_y, b_w[j], b_odd)
    b_s = gl.join(_sum_of_parts(b_even), _sum_of_parts(b_odd))
    return gl.reshape(b_s, (b_a.shape[0], 8))


@gluon.jit
def _sums(b_a, keys, b_w, SUMS: gl.constexpr):
    """Return Σ_f w_f min(a_f, b_f) (Q, K) of keys in shared memory (K, F)."""
    b_x, b_y = _sums_of_eight(b_a, keys, b_w, 0, SUMS), _sums_of_eight(b_a, keys, b_w, 8, SUMS)
    b_s = gl.reshape(gl.permute(gl.join(b_x, b_y), (0, 2, 1)), (b_a.shape[0], KEYS))
    return gl.convert_layout(b_s, SUMS, assert_trivial=True)


@gluon.jit
def _fetch(shared, p_x, padded, i, n):
    """Copy step i of n to shared memory (STAGES, K, C). p_x: a pointer to rows of `padded`."""
    C: gl.constexpr = shared.shape[2]
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, VECTOR], [32 * VECTOR // C, C // VECTOR], [gl.num_warps(), 1], [1, 0]
    )
    o_k = i * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT))[:, None]
    p_x += o_k * padded + gl.arange(0, C, gl.SliceLayout(0, LAYOUT))[None, :]
    _copy(shared.index(i % STAGES), p_x, mask=o_k < n * KEYS)


@gluon.jit
def minima_forward(
    a, keys, weight, u, biases, value, mask, dropout, output, stats, scores, sizes, chunks, factor,
    n_blocks, SCORER: gl.constexpr, NEGATED: gl.constexpr, D_V: gl.constexpr,
    COLUMNS: gl.constexpr, SIGMOID: gl.constexpr,
):  # fmt: skip
    """Write the results of problems with chunks, as `forward` in `forward.py` does.

    a: an operand. keys: `Rows`. u (problems, T_q), biases.keys: the sums of `token_sums`. factor:
    of the sum of minima. NEGATED: whether the minima are those of −a. A program has a tile of
    queries of one problem and COLUMNS of the value.
    """
    QUERIES: gl.constexpr = SCORER.queries
    WIDTH: gl.constexpr = SCORER.width
    F: gl.constexpr = SCORER.padded
    HALF: gl.constexpr = keys.data.dtype.element_ty
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [gl.num_warps(), 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    OF_ROWS: gl.constexpr = gl.SliceLayout(1, SUMS)
    OF_COLUMNS: gl.constexpr = gl.SliceLayout(0, SUMS)
    mask = Mask(mask.start, mask.stop, mask.mask)  # see `Biases`
    biases = Biases(biases.keys, biases.pairs)
    i_block, rest = gl.program_id(0) % n_blocks, gl.program_id(0) // n_blocks
    n_tiles = gl.cdiv(sizes.queries, QUERIES)
    i_tile, i_p = rest % n_tiles, (rest // n_tiles).to(gl.int64)
    if gl.load(chunks + i_p) == 0:
        return
    o_a = i_tile * QUERIES + gl.arange(0, QUERIES, gl.SliceLayout(1, LEFT))[:, None]
    o_f = _feature(gl.arange(0, F, gl.SliceLayout(0, LEFT)), F)[None, :]
    p_a = entry(a, i_p, sizes.heads) + o_a.to(gl.int64) * a.row + o_f * a.column
    b_a = gl.load(p_a, mask=(o_a < sizes.queries) & (o_f < WIDTH), other=0.0)  # (Q, F)
    b_a = -b_a if NEGATED else b_a
    o_w = _feature(gl.arange(0, F, gl.SliceLayout(1, RIGHT)), F)
    b_high, b_low, unit = parts(weights_of(weight, i_p, o_w, WIDTH, sizes.heads), HALF)
    b_w = _of_four_keys(b_high, b_low, RIGHT)

    o_q = i_tile * QUERIES + gl.arange(0, QUERIES, OF_ROWS)
    o_c = i_block * COLUMNS + gl.arange(0, COLUMNS, OF_COLUMNS)
    m_q = o_q < sizes.queries
    o_row, o_stats = i_p * sizes.queries + o_q, i_p * 2 * sizes.queries + o_q
    b_u = gl.load(u + o_row, mask=m_q, other=0.0)
    b_start, b_stop = bounds_of(mask, i_p, o_q, sizes)  # (Q,)
    i_low, n_before, n_whole, n_masked = tiles_of(mask, b_start, b_stop, sizes.keys, KEYS)
    n = n_whole + n_masked
    i_b = problem_of(keys, i_p, sizes.heads) * (keys.tiles * TILE) + i_low
    i_v = problem_of(value, i_p, sizes.heads) * (value.tiles * TILE) + i_low
    p_b, p_v = keys.data + i_b * F, value.data + i_v * value.padded + i_block * COLUMNS
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(VECTOR, 1, 8, [1, 0])
    of_value: gl.constexpr = value.data.dtype.element_ty
    s_b = gl.allocate_shared_memory(HALF, (STAGES, KEYS, F), PLAIN)
    s_v = gl.allocate_shared_memory(of_value, (STAGES, KEYS, COLUMNS), SWIZZLED)
    for i in gl.static_range(STAGES - 1):
        _fetch(s_b, p_b, F, i, n)
        _fetch(s_v, p_v, value.padded, i, n)
        async_copy.commit_group()
    b_top = gl.full((QUERIES,), float("-inf"), gl.float32, OF_ROWS)
    b_total = gl.zeros((QUERIES,), gl.float32, OF_ROWS)
    b_o = gl.zeros((QUERIES, COLUMNS), gl.float32, SUMS)
    if SIGMOID:
        b_shift = shift_of(stats, o_stats, m_q)
    for i in range(n):
        async_copy.wait_group(STAGES - 2)
        _fetch(s_b, p_b, F, i + STAGES - 1, n)
        _fetch(s_v, p_v, value.padded, i + STAGES - 1, n)
        async_copy.commit_group()
        o_k = i_low + i * KEYS + gl.arange(0, KEYS, OF_COLUMNS)
        b_s = _sums(b_a, s_b.index(i % STAGES), b_w, SUMS) * (factor * unit) + b_u[:, None]
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
        b_x = gl.convert_layout(b_x.to(of_value), LEFT)
        b_o = mma_v2(b_x, s_v.index(i % STAGES).load(RIGHT), b_o)
    if i_block == 0 and not SIGMOID:
        store_stats(stats, o_stats, b_top, b_total, m_q, sizes.queries)
    b_safe = gl.where(b_total == 0, 1.0, b_total)
    p_o = output + o_row[:, None] * D_V + o_c[None, :]
    gl.store(p_o, b_o / b_safe[:, None], mask=m_q[:, None] & (o_c < D_V)[None, :])
