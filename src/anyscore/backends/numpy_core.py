"""The C++ core on NumPy arrays: for NumPy, and for frameworks that share memory as NumPy arrays."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels import cpu
from anyscore.ops import Array, acc_dtype, load

_xp = load("numpy")


def forward(x: Operands, s: Settings, dtype: Any = None) -> Results:
    """Return the results. dtype: of the output; None for the accumulation dtype."""
    shapes, sums = x.result_shapes(s), acc_dtype(_xp, *x[:N_DIFFERENTIABLE])
    output = None if shapes.output is None else np.empty(shapes.output, dtype or sums)
    scores = None if shapes.scores is None else np.empty(shapes.scores, sums)
    stats = np.empty(shapes.stats, sums)
    if x.packed is not None and x.packed.dtype != sums:
        x = x._replace(packed=None)
    cpu.forward(_as_core_operands(x), s, Results(as_core_array(output), stats, scores), threads())
    return Results(output, stats, scores)


def backward(x: Operands, s: Settings, results: Results, upstream: Results) -> Operands:
    """Return the gradients of the factors in x, each in the dtype of its operand.

    results: of `forward`, in the dtype of sums; its scores are not read. upstream: the gradients of
    the results; gradients of stats and scores may be None.
    """
    factors, dtype = x.factors, results.stats.dtype
    made = factors.map(lambda y: np.empty(y.shape, dtype))
    output, stats, d_stats, d_scores = (
        None if y is None else np.ascontiguousarray(y) for y in (*results[:2], *upstream[1:])
    )
    upstream = Results(as_core_array(upstream.output), d_stats, d_scores)
    cpu.backward(_as_core_operands(x), s, Results(output, stats), upstream, made, threads())
    pairs = zip(made, factors, strict=True)
    return Operands(*(d if d is None else d.astype(y.dtype, copy=False) for d, y in pairs))


def pack_keys(pair: str, b: Array) -> Array:
    """Return packed keys (..., T_k + 1, h), an operand of `forward`, of b (..., T_k, h)."""
    *lead, keys, width = b.shape
    packed = np.empty((*lead, keys + 1, width), acc_dtype(_xp, b))
    cpu.prepare_keys(pair, as_core_array(b), packed, threads())
    return packed


def sparse(scores: Array, power: int) -> Array:
    """Return `normalizers.sparse` of scores (..., T_k), of float32 or float64."""
    made = np.empty(scores.shape, scores.dtype)
    cpu.sparse(power, np.ascontiguousarray(scores), made, threads())
    return made


def sparse_backward(weights: Array, upstream: Array, power: int) -> Array:
    """Return the gradients of scores, from weights of `sparse` and the gradients of the weights."""
    made = np.empty(weights.shape, weights.dtype)
    weights, upstream = np.ascontiguousarray(weights), np.ascontiguousarray(upstream)
    cpu.sparse_backward(power, weights, upstream, made, threads())
    return made


def _as_core_operands(x: Operands) -> Operands:
    """Return operands as arrays for the core, and the seed of dropout as an integer."""
    seed = None if x.seed is None else int(x.seed)
    n = N_DIFFERENTIABLE
    return Operands(*map(as_core_array, x[:n]), *x[n:])._replace(seed=seed)


def as_core_array(x: Array | None) -> Any:
    """Return x for the core: whole strides, in this machine's byte order, bfloat16 as int16."""
    if x is None:
        return None
    whole = x.dtype.isnative
    if not x.flags.c_contiguous:  # faster than a look at the strides
        whole = whole and not any(n % x.itemsize for n in x.strides)
    if not whole:
        x = x.astype(x.dtype.newbyteorder("="), order="C", copy=True)
    return x.view(np.int16) if _xp.dtype(x) == "bfloat16" else x


def threads() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
