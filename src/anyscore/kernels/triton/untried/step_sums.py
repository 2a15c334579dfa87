"""Sums of dS where features are above the kink, in Gluon: packed comparisons and tensor cores.

A comparison of two pairs of numbers of 16 bits makes two numbers, 1 or 0. Comparisons of one own
row with 64 other rows are a left operand (features, others), as they are. The right operand has the
dS of this own row in two columns, as two parts of 16 bits, and 0 in the others. Four own rows fill
the eight columns of a product, which sums in float32.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from anyscore.kernels.triton.backward import range_read
from anyscore.kernels.triton.tiles import TILE, problem_of

ROWS = gl.constexpr(16)
"""Own rows of a program: their features and sums fill the registers."""
STAGES = gl.constexpr(2)
"""Tiles in shared memory: one is read, and the next one is copied."""
VECTOR = gl.constexpr(8)
"""Numbers of 16 bits in an access of 16 bytes."""
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.jit
def _above(b_x, b_y, ORDER: gl.constexpr):
    """Return where b_y (F, K) is in ORDER ("gt", …) to b_x (F,), 1 or 0, in the bits of bfloat16.

    The 1 of float16 has the bits of 2^−7 in bfloat16.
    """
    b_y, b_x = gl.broadcast(b_y, b_x[:, None])
    KIND: gl.constexpr = ".bf16x2.bf16x2" if b_y.dtype == gl.bfloat16 else ".f16x2.f16x2"
    return gl.inline_asm_elementwise(
        "set." + ORDER + KIND + " $0, $1, $2;", "=r,r,r", [b_y, b_x], dtype=gl.bfloat16,
        is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def _only(b_x, b_mask):
    """Return b_x where the bits b_mask of 16 bits are 1, else 0."""
    b_x, b_mask = gl.broadcast(b_x, b_mask)
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, $2;", "=r,r,r", [b_x, b_mask], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def _own(p_x, NEGATED: gl.constexpr):
    """Return the features (F,) of four own rows; p_x: pointers to those of the first row."""
    b_0, b_1, b_2, b_3 = gl.load(p_x), gl.load(p_x + 1), gl.load(p_x + 2), gl.load(p_x + 3)
    return (-b_0, -b_1, -b_2, -b_3) if NEGATED else (b_0, b_1, b_2, b_3)


@gluon.jit
def _add_four(b_sum, own, b_y, ds, RIGHT: gl.constexpr, ORDER: gl.constexpr, AT_ZERO: gl.constexpr):
    """Return b_sum (F, 8) with a tile of others b_y (F, 64) added to four own rows.

    ds: dS in shared memory (64, 8), two equal columns of each row. AT_ZERO: a second order, or "".
    """
    o_c = gl.arange(0, 8, gl.SliceLayout(0, RIGHT))[None, :]
    b_ds = ds.load(RIGHT)
    b_high = (b_ds.to(gl.uint32, bitcast=True) & 0xFFFF0000).to(gl.float32, bitcast=True)
    b_ds = gl.where(o_c % 2 == 0, b_high, b_ds - b_high).to(gl.bfloat16)
    for i in gl.static_range(4):
        b_mask = gl.where(o_c // 2 == i, -1, 0).to(gl.int16)
        b_right = _only(b_ds, b_mask)
        b_sum = mma_v2(_above(own[i], b_y, ORDER), b_right, b_sum)
        if AT_ZERO != "":
            b_sum = mma_v2(_above(own[i], b_y, AT_ZERO), b_right, b_sum)
    return b_sum


@gluon.jit
def _fetch(s_y, s_ds, p_y, p_ds, row, step, n_own, n_others, i):
    """Copy tile i of the other rows, and the dS of n_own own rows with it, 0 beyond the last.

    p_y: a pointer to the first tile. row, step: strides of dS of own and of other rows.
    """
    F: gl.constexpr = s_y.shape[1]
    PANEL: gl.constexpr = gl.BlockedLayout([1, VECTOR], [4, 8], [gl.num_warps(), 1], [1, 0])
    o_y = gl.arange(0, F, gl.SliceLayout(1, PANEL))[:, None] * TILE
    o_y += gl.arange(0, TILE, gl.SliceLayout(0, PANEL))[None, :]
    m_y = (o_y >= 0) & (i * TILE < n_others)
    _copy(s_y.index(i % STAGES), p_y + i * (F * TILE) + o_y, mask=m_y)
    PAIRS: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [gl.num_warps(), 1], [1, 0])
    o_k = i * TILE + gl.arange(0, TILE, gl.SliceLayout(1, PAIRS))[:, None]
    o_r = gl.arange(0, 8, gl.SliceLayout(0, PAIRS))[None, :] // 2
    p_ds += o_k * step + o_r * row
    for g in gl.static_range(ROWS // 4):
        m_ds = (o_k < n_others) & (o_r + 4 * g < n_own)
        _copy(s_ds.index(i % STAGES * (ROWS // 4) + g), p_ds + 4 * g * row, mask=m_ds)
    async_copy.commit_group()


@gluon.jit
def _add(target, b_sum, i_r, n_rows, scale, WIDTH: gl.constexpr):
    """Add scale times b_sum (F, 8) to four rows from i_r on of target (n_rows, WIDTH)."""
    b_high, b_low = gl.split(gl.reshape(b_sum, (b_sum.shape[0], 4, 2)))
    b_x = (b_high + b_low) * scale
    LAYOUT: gl.constexpr = b_x.type.layout
    o_f = gl.arange(0, b_x.shape[0], gl.SliceLayout(1, LAYOUT))[:, None]
    o_r = i_r + gl.arange(0, 4, gl.SliceLayout(0, LAYOUT))[None, :]
    p_x, m_x = target + o_r * WIDTH + o_f, (o_r < n_rows) & (o_f < WIDTH)
    gl.store(p_x, gl.load(p_x, mask=m_x, other=0.0) + b_x, mask=m_x)


@gluon.jit
def step_sums(
    own, other, band, target, sizes, scale, WIDTH: gl.constexpr, F: gl.constexpr,
    DIFFERENCE: gl.constexpr, AT_HALF: gl.constexpr, OF_QUERY: gl.constexpr,
):  # fmt: skip
    """Add to target (problems, rows, WIDTH) scale times the sums of dS above the kink.

    own, other: `Panels` of F features. A program has ROWS queries (OF_QUERY), or ROWS keys of the
    band. DIFFERENCE, AT_HALF: as in `Steps`.
    """
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [gl.num_warps(), 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    HALF: gl.constexpr = own.features.dtype.element_ty
    ABOVE: gl.constexpr = "lt" if DIFFERENCE else "gt"
    AT_ZERO: gl.constexpr = ("le" if DIFFERENCE else "ge") if AT_HALF else ""
    n_band, n_queries = gl.cdiv(band.keys, TILE), gl.cdiv(sizes.queries, TILE)
    n_rows = sizes.queries if OF_QUERY else band.keys  # own rows
    n_others = band.keys if OF_QUERY else sizes.queries
    n_tiles = gl.cdiv(n_rows, ROWS)
    i_own, i_local = gl.program_id(0) % n_tiles, (gl.program_id(0) // n_tiles).to(gl.int64)
    i_p, i_r = i_local + band.problem, i_own * ROWS
    i_x = problem_of(own, i_p, sizes.heads) * own.tiles + i_r // TILE
    i_y = problem_of(other, i_p, sizes.heads) * other.tiles
    p_some = band.some + i_local * n_queries * n_band
    p_ds = band.ds + i_local * sizes.queries * band.keys
    p_target = target + i_p * (sizes.queries if OF_QUERY else sizes.keys) * WIDTH
    o_some = gl.arange(0, TILE, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    if OF_QUERY:
        i_y += band.first // TILE
        i_low, i_high = range_read(p_some + i_r // TILE * n_band, n_band, 1, o_some)
        row, step = band.keys, 1
    else:
        i_x += band.first // TILE
        p_target += band.first * WIDTH
        i_low, i_high = range_read(p_some + i_r // TILE, n_queries, n_band, o_some)
        row, step = 1, band.keys
    p_ds += i_r * row + i_low * TILE * step
    p_y = other.features + (i_y + i_low) * (F * TILE)
    n = i_high - i_low
    if n <= 0:
        return
    n_own, n_copied = n_rows - i_r, gl.minimum(n_others - i_low * TILE, n * TILE)
    o_f = gl.arange(0, F, gl.SliceLayout(1, LEFT))
    p_x = own.features + i_x * (F * TILE) + i_r % TILE + o_f * TILE
    own_0, own_1 = _own(p_x, not DIFFERENCE), _own(p_x + 4, not DIFFERENCE)
    own_2, own_3 = _own(p_x + 8, not DIFFERENCE), _own(p_x + 12, not DIFFERENCE)
    b_0 = gl.zeros((F, 8), gl.float32, SUMS)
    b_1, b_2, b_3 = b_0, b_0, b_0
    SWIZZLED: gl.constexpr = gl.SwizzledSharedLayout(VECTOR, 1, 8, [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    s_y = gl.allocate_shared_memory(HALF, (STAGES, F, TILE), SWIZZLED)
    s_ds = gl.allocate_shared_memory(gl.float32, (STAGES * (ROWS // 4), TILE, 8), PLAIN)
    _fetch(s_y, s_ds, p_y, p_ds, row, step, n_own, n_copied, 0)
    for i in range(n):
        async_copy.wait_group(0)
        _fetch(s_y, s_ds, p_y, p_ds, row, step, n_own, n_copied, i + 1)
        b_y = s_y.index(i % STAGES).load(LEFT)  # (F, 64)
        at = i % STAGES * (ROWS // 4)
        b_0 = _add_four(b_0, own_0, b_y, s_ds.index(at), RIGHT, ABOVE, AT_ZERO)
        b_1 = _add_four(b_1, own_1, b_y, s_ds.index(at + 1), RIGHT, ABOVE, AT_ZERO)
        b_2 = _add_four(b_2, own_2, b_y, s_ds.index(at + 2), RIGHT, ABOVE, AT_ZERO)
        b_3 = _add_four(b_3, own_3, b_y, s_ds.index(at + 3), RIGHT, ABOVE, AT_ZERO)
    if HALF == gl.float16:  # noqa: SIM300
        scale *= 128.0  # see `_above`
    _add(p_target, b_0, i_r, n_rows, scale, WIDTH)
    _add(p_target, b_1, i_r + 4, n_rows, scale, WIDTH)
    _add(p_target, b_2, i_r + 8, n_rows, scale, WIDTH)
    _add(p_target, b_3, i_r + 12, n_rows, scale, WIDTH)
