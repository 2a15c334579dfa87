"""Attention over the edges of a graph in Triton: forward, and backward in two passes.

    forward              output and statistics of each query, by a running maximum
    slopes_of_edges      P and dS of each edge, for all sums of gradients
    feature_sums         of each query, then of each key: da, dc and dw, then db
    value_sums           of each key: dV and the gradient of its bias

Each program loops over the edges of one query or key. Every sum has one program and one order, so
there are no atomics, and results are the same bits each time. Rows are gathered without panels.

Indices on a GPU are not checked before a launch, because the host does not know their values. For
any indices a program reads and writes within its operands only, and uses NaN for a missing row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from anyscore.kernels.triton.forward import shift_of, sigmoid, store_stats, take
from anyscore.kernels.triton.outer import outer
from anyscore.kernels.triton.tiles import dropout_mask, entry

EDGES = tl.constexpr(32)
"""The number of edges per step."""
FEATURES = tl.constexpr(32)
"""The number of features per load."""


class Compared(NamedTuple):
    """The operands of scores: a (T_q, width), b (T_k, width); or None: c (E, width), weight
    (width,), key_bias (T_k,), bias (1, E).
    """

    a: Any
    b: Any
    c: Any
    weight: Any
    key_bias: Any
    bias: Any


class Graph(NamedTuple):
    """The edges of rows; row i has edges begin[i] … begin[i + 1] − 1.

    node: (E,), the row at the other end. edge: (E,), the index among all edges, None if edges are
    in order. count: E.
    """

    begin: Any
    node: Any
    edge: Any
    count: Any


@triton.jit
def _gather(x, p_x, o_r, m_r, o_c, WIDTH: tl.constexpr, ACC: tl.constexpr):
    """Return rows o_r (E,) and columns o_c (C,) of an operand's entry at p_x: (E, C)."""
    m_x = m_r[:, None] & (o_c < WIDTH)[None, :]
    p_rows = p_x + o_r.to(tl.int64)[:, None] * x.row + o_c[None, :] * x.column
    return tl.load(p_rows, mask=m_x, other=0.0).to(ACC)


@triton.jit
def _edges_of(graph, i_row, n_rows):
    """Return the first edge of a row and one more than its last, in [0, graph.count].

    All rows together have all edges, even with an invalid `begin`, so every edge is written.
    """
    i_first, i_last = tl.load(graph.begin + i_row), tl.load(graph.begin + i_row + 1)
    i_first = tl.where(i_row == 0, 0, tl.maximum(tl.minimum(i_first, graph.count), 0))
    i_last = tl.where(i_row == n_rows - 1, graph.count, tl.minimum(i_last, graph.count))
    return i_first, i_last


@triton.jit
def _indices(x, o_e, m_e, n):
    """Return entries o_e (E,) of an array of indices, and whether each exists and is in [0, n)."""
    o_x = tl.load(x + o_e, mask=m_e, other=0)
    return o_x, m_e & (o_x >= 0) & (o_x < n)


@triton.jit
def _weight_of(x, i_p, o_f, sizes, WIDTH: tl.constexpr, ACC: tl.constexpr):
    """Return the weight of features o_f (F,), 1 if there is none."""
    b_w = tl.full(o_f.shape, 1.0, ACC)
    if x.weight is not None:
        p_w = entry(x.weight, i_p, sizes.heads) + o_f * x.weight.column
        b_w = tl.load(p_w, mask=o_f < WIDTH, other=0.0).to(ACC)
    return b_w


@triton.jit
def _add_bias(b_s, x, i_p, o_e, m_e, sizes):
    """Return b_s (E,) plus the bias of edges o_e (E,), if there is one."""
    if x.bias is not None:
        p_bias = entry(x.bias, i_p, sizes.heads) + o_e.to(tl.int64) * x.bias.column
        b_s += tl.load(p_bias, mask=m_e, other=0.0).to(b_s.dtype)
    return b_s


@triton.jit
def _scores(x, i_p, i_q, o_e, o_k, m_k, sizes, scale, ACC: tl.constexpr, SCORER: tl.constexpr):
    """Return scores (E,) of edges o_e from keys o_k to query i_q, and the slope of φ.

    m_k (E,): whether each key exists; scores of missing keys are NaN.
    """
    WIDTH: tl.constexpr = SCORER.width
    AFTER: tl.constexpr = SCORER.after
    p_a, p_b = entry(x.a, i_p, sizes.heads) + i_q * x.a.row, entry(x.b, i_p, sizes.heads)
    o_f = tl.arange(0, FEATURES)
    b_s = tl.zeros((EDGES,), ACC)
    for _ in range(0, WIDTH, FEATURES):
        m_f = o_f < WIDTH
        b_a = tl.load(p_a + o_f * x.a.column, mask=m_f, other=0.0).to(ACC)  # (F,)
        b_b = _gather(x.b, p_b, o_k, m_k, o_f, WIDTH, ACC)  # (E, F)
        if x.c is not None:
            b_b += _gather(x.c, entry(x.c, i_p, sizes.heads), o_e, m_k, o_f, WIDTH, ACC)
        b_x = SCORER.pair.value(b_a[None, :], b_b) * _weight_of(x, i_p, o_f, sizes, WIDTH, ACC)
        b_s += tl.sum(tl.where(m_f[None, :], b_x, 0.0), 1)
        o_f += FEATURES
    b_s = b_s * scale
    if x.key_bias is not None:
        p_bias = entry(x.key_bias, i_p, sizes.heads) + o_k.to(tl.int64) * x.key_bias.column
        b_s += tl.load(p_bias, mask=m_k, other=0.0).to(ACC)
    if not AFTER:
        b_s = _add_bias(b_s, x, i_p, o_e, m_k, sizes)
    b_s, b_slope = outer(b_s, SCORER)
    if AFTER:
        b_s = _add_bias(b_s, x, i_p, o_e, m_k, sizes)
    return tl.where(m_k, b_s, float("nan")), b_slope


@triton.jit
def forward(
    x, value, graph, dropout, output, stats, scores, sizes, scale, n_blocks, SCORER: tl.constexpr,
    D_V: tl.constexpr, COLUMNS: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Write output (problems, T_q, D_V) and stats (problems, 2, T_q), in the accumulation dtype.

    x: `Compared`. graph: the edges of queries. scores: (problems, E), written too, or None.
    SIGMOID: whether a sigmoid is the normalizer; stats then hold its shift and are not written. A
    program has one query and COLUMNS of the value.
    """
    ACC: tl.constexpr = stats.dtype.element_ty
    x = Compared(x.a, x.b, x.c, x.weight, x.key_bias, x.bias)  # see `Biases`
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_q = (rest % sizes.queries).to(tl.int64)
    i_p = (rest // sizes.queries).to(tl.int64)
    o_c = i_block * COLUMNS + tl.arange(0, COLUMNS)
    o_stats = i_p * 2 * sizes.queries + i_q + tl.arange(0, 1)
    p_v = entry(value, i_p, sizes.heads)
    i_first, i_last = _edges_of(graph, i_q, sizes.queries)
    b_top = tl.full((1,), 0.0 if SIGMOID else float("-inf"), ACC)
    b_total = tl.zeros((1,), ACC)
    b_o = tl.zeros((COLUMNS,), ACC)
    if SIGMOID:
        b_shift = shift_of(stats, o_stats, o_stats >= 0)
    for i_e in range(i_first, i_last, EDGES):
        o_e = i_e + tl.arange(0, EDGES)
        m_e = o_e < i_last
        o_k, m_k = _indices(graph.node, o_e, m_e, sizes.keys)
        b_s, _ = _scores(x, i_p, i_q, o_e, o_k, m_k, sizes, scale, ACC, SCORER)
        if scores is not None:
            m_s = o_e < tl.where(i_block == 0, i_last, 0)
            tl.store(scores + i_p * graph.count + o_e, b_s, mask=m_s)
        b_x = tl.where(m_e, b_s, float("-inf"))[None, :]  # (1, E)
        if SIGMOID:
            b_x = sigmoid(b_x - b_shift[:, None])
        else:
            b_x, b_fade, b_top, b_total = take(b_x, b_top, b_total)
            b_o = b_o * b_fade
        if dropout.seed is not None:
            b_x = tl.where(dropout_mask(dropout, i_p, tl.arange(0, 1), o_e), b_x, 0.0)
        b_weight = tl.sum(b_x, 0)  # (E,)
        b_v = _gather(value, p_v, o_k, m_k, o_c, D_V, ACC)  # (E, C)
        b_o += tl.sum(tl.where(m_e[:, None], b_weight[:, None] * b_v, 0.0), 0)
    if i_block == 0 and not SIGMOID:
        store_stats(stats, o_stats, b_top, b_total, o_stats >= 0, sizes.queries)
    b_safe = tl.where(b_total == 0, 1.0, b_total)
    p_o = output + (i_p * sizes.queries + i_q) * D_V + o_c
    tl.store(p_o, b_o / b_safe, mask=o_c < D_V)


@triton.jit
def slopes_of_edges(
    x, value, d_output, graph, dropout, stats, delta, d_scores, p, ds, outside, sizes, scale,
    SCORER: tl.constexpr, D_V: tl.constexpr, COLUMNS: tl.constexpr, SIGMOID: tl.constexpr,
):  # fmt: skip
    """Write p, the weights after dropout, and ds, both (problems, E); see `backward`.

    outside: dS before the slope of an outer function, for a bias after it, of the same shape, or
    None. value, d_output: operands. d_scores: (problems, E), or None. A program has one query.
    """
    ACC: tl.constexpr = stats.dtype.element_ty
    x = Compared(x.a, x.b, x.c, x.weight, x.key_bias, x.bias)  # see `Biases`
    i_q = (tl.program_id(0) % sizes.queries).to(tl.int64)
    i_p = (tl.program_id(0) // sizes.queries).to(tl.int64)
    o_row = i_p * sizes.queries + i_q
    p_v, p_do = entry(value, i_p, sizes.heads), entry(d_output, i_p, sizes.heads)
    i_first, i_last = _edges_of(graph, i_q, sizes.queries)
    p_stats = stats + i_p * 2 * sizes.queries + i_q
    shift, log_sum = tl.load(p_stats), tl.load(p_stats + sizes.queries)
    shift = tl.where(shift == float("-inf"), 0.0, shift)  # all scores are −∞
    below = tl.load(delta + o_row)
    for i_e in range(i_first, i_last, EDGES):
        o_e = i_e + tl.arange(0, EDGES)
        m_e = o_e < i_last
        o_k, m_k = _indices(graph.node, o_e, m_e, sizes.keys)
        b_s, b_slope = _scores(x, i_p, i_q, o_e, o_k, m_k, sizes, scale, ACC, SCORER)
        b_p = sigmoid(b_s - shift) if SIGMOID else tl.exp((b_s - shift) - log_sum)
        b_dp = tl.zeros((EDGES,), ACC)
        o_c = tl.arange(0, COLUMNS)
        for _ in range(0, D_V, COLUMNS):
            p_x = p_do + i_q * d_output.row + o_c * d_output.column
            b_do = tl.load(p_x, mask=o_c < D_V, other=0.0).to(ACC)
            b_v = _gather(value, p_v, o_k, m_k, o_c, D_V, ACC)
            b_dp += tl.sum(b_v * b_do[None, :], 1)
            o_c += COLUMNS
        b_dropped = b_p
        if dropout.seed is not None:
            m_kept = dropout_mask(dropout, i_p, tl.arange(0, 1), o_e)  # (1, E)
            b_kept = tl.sum(m_kept.to(tl.int32), 0)
            b_dp = tl.where(b_kept != 0, b_dp, 0.0)
            b_dropped = tl.where(b_kept != 0, b_p, 0.0)
        b_ds = b_p * (b_dp - below)
        if SIGMOID:
            b_ds *= 1 - b_p
        o_edge = i_p * graph.count + o_e
        if d_scores is not None:
            b_ds += tl.load(d_scores + o_edge, mask=m_e, other=0.0)
        if outside is not None:
            tl.store(outside + o_edge, b_ds, mask=m_e)
        tl.store(ds + o_edge, b_ds * b_slope, mask=m_e)
        tl.store(p + o_edge, b_dropped, mask=m_e)


@triton.jit
def feature_sums(
    x, graph, ds, d_own, d_weight, d_c, sizes, scale, SCORER: tl.constexpr, OF_QUERY: tl.constexpr
):
    """Write d_own (problems, rows, width): Σ dS ∂s/∂own over the edges of a query, or of a key.

    With OF_QUERY also write d_weight (problems, T_q, width), the part of each query, and d_c
    (problems, E, width), unless None. A program has FEATURES features of one row.
    """
    ACC: tl.constexpr = ds.dtype.element_ty
    x = Compared(x.a, x.b, x.c, x.weight, x.key_bias, x.bias)  # see `Biases`
    WIDTH: tl.constexpr = SCORER.width
    SLOPE: tl.constexpr = SCORER.pair.d_a if OF_QUERY else SCORER.pair.d_b
    n_blocks: tl.constexpr = tl.cdiv(WIDTH, FEATURES)
    if OF_QUERY:
        own, other, n_rows, n_others = x.a, x.b, sizes.queries, sizes.keys
    else:
        own, other, n_rows, n_others = x.b, x.a, sizes.keys, sizes.queries
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_row, i_p = (rest % n_rows).to(tl.int64), (rest // n_rows).to(tl.int64)
    o_f = i_block * FEATURES + tl.arange(0, FEATURES)
    m_f = o_f < WIDTH
    p_own = entry(own, i_p, sizes.heads) + i_row * own.row + o_f * own.column
    b_own = tl.load(p_own, mask=m_f, other=0.0).to(ACC)[None, :]  # (1, F)
    b_unit = _weight_of(x, i_p, o_f, sizes, WIDTH, ACC) * scale
    p_other = entry(other, i_p, sizes.heads)
    i_first, i_last = _edges_of(graph, i_row, n_rows)
    b_slopes = tl.zeros((FEATURES,), ACC)
    b_values = tl.zeros((FEATURES,), ACC)
    for i in range(i_first, i_last, EDGES):
        o_e = i + tl.arange(0, EDGES)
        m_e = o_e < i_last
        o_r, m_r = _indices(graph.node, o_e, m_e, n_others)
        if graph.edge is not None:
            o_e, m_r = _indices(graph.edge, o_e, m_r, graph.count)
        m_x = m_e[:, None] & m_f[None, :]
        p_ds = ds + i_p * graph.count + o_e
        b_ds = tl.load(p_ds, mask=m_r, other=float("nan"))[:, None]  # (E, 1)
        b_other = _gather(other, p_other, o_r, m_r, o_f, WIDTH, ACC)  # (E, F)
        if OF_QUERY:
            b_a, b_b = b_own, b_other
        else:
            b_a, b_b = b_other, b_own
        if x.c is not None:
            b_b += _gather(x.c, entry(x.c, i_p, sizes.heads), o_e, m_r, o_f, WIDTH, ACC)
        b_slopes += tl.sum(tl.where(m_x, b_ds * SLOPE(b_a, b_b), 0.0), 0)
        if d_weight is not None:
            b_x = b_ds * SCORER.pair.value(b_a, b_b)
            b_values += tl.sum(tl.where(m_x, b_x, 0.0), 0)
        if d_c is not None:
            b_x = b_ds * SCORER.pair.d_b(b_a, b_b) * b_unit[None, :]
            p_c = d_c + (i_p * graph.count + o_e)[:, None] * WIDTH + o_f[None, :]
            tl.store(p_c, b_x, mask=m_x)
    o_own = (i_p * n_rows + i_row) * WIDTH + o_f
    tl.store(d_own + o_own, b_slopes * b_unit, mask=m_f)
    if d_weight is not None:
        tl.store(d_weight + o_own, b_values * scale, mask=m_f)


@triton.jit
def value_sums(
    graph, d_output, p, ds, d_value, d_key_bias, sizes, D_V: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write d_value (problems, T_k, D_V) and, unless None, d_key_bias (problems, T_k).

    graph: the edges of keys. d_output: an operand. A program has one key and COLUMNS of the value.
    """
    ACC: tl.constexpr = ds.dtype.element_ty
    n_blocks: tl.constexpr = tl.cdiv(D_V, COLUMNS) if D_V else 1
    i_block, rest = tl.program_id(0) % n_blocks, tl.program_id(0) // n_blocks
    i_k, i_p = (rest % sizes.keys).to(tl.int64), (rest // sizes.keys).to(tl.int64)
    o_c = i_block * COLUMNS + tl.arange(0, COLUMNS)
    p_do = entry(d_output, i_p, sizes.heads)
    i_first, i_last = _edges_of(graph, i_k, sizes.keys)
    b_values = tl.zeros((COLUMNS,), ACC)
    b_bias = tl.zeros((EDGES,), ACC)
    for i in range(i_first, i_last, EDGES):
        o = i + tl.arange(0, EDGES)
        m_e = o < i_last
        o_q, m_q = _indices(graph.node, o, m_e, sizes.queries)
        o_e, m_q = _indices(graph.edge, o, m_q, graph.count)
        o_e += i_p * graph.count
        b_ds = tl.load(ds + o_e, mask=m_q, other=float("nan"))
        b_bias += tl.where(m_e, b_ds, 0.0)
        b_p = tl.load(p + o_e, mask=m_q, other=float("nan"))
        b_do = _gather(d_output, p_do, o_q, m_q, o_c, D_V, ACC)  # (E, C)
        b_values += tl.sum(tl.where(m_e[:, None], b_p[:, None] * b_do, 0.0), 0)
    p_value = d_value + (i_p * sizes.keys + i_k) * D_V + o_c
    tl.store(p_value, b_values, mask=o_c < D_V)
    if d_key_bias is not None and i_block == 0:
        tl.store(d_key_bias + i_p * sizes.keys + i_k, tl.sum(b_bias, 0))
