"""The C++ core, on NumPy arrays.

bfloat16, which NumPy does not have, passes as int16. Arrays may lack leading dimensions of 1.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from anyscore.factors import ABSOLUTE, LEAKY_RELU, PRODUCT, SQUARED, TANH
from anyscore.ops import Array

PAIRS = PRODUCT, TANH, LEAKY_RELU, ABSOLUTE, SQUARED
"""The pairs that the core knows."""

_core: Any = None
_problem: str | None = None
try:
    _core = importlib.import_module("anyscore._core")
except ImportError as error:
    _problem = (
        f"the C++ core cannot be loaded ({error}): to build it, reinstall anyscore where there is "
        "a C++17 compiler"
    )


def problem() -> str | None:
    """Why the core cannot be used, None if it can."""
    return _problem


def isa() -> str | None:
    """The instruction set that the core uses here: "avx512", "avx2", …; None without the core."""
    return None if _core is None else str(_core.isa())


def borrow_threads(library: str) -> None:
    """Compute on the OpenMP threads of a framework's library, if it has such threads.

    Else the core's own would compete with the framework's, which spin between its operations.
    """
    if _core is None:
        return
    try:
        parallel = ctypes.CDLL(library).GOMP_parallel
    except (OSError, AttributeError):
        return
    _core.borrow_threads(ctypes.cast(parallel, ctypes.c_void_p).value)


def forward(
    pair: str,
    a: Array,
    b: Array,
    weight: Array | None,
    key_bias: Array | None,
    value: Array,
    start: Array | None,
    stop: Array | None,
    keep: Array | None,
    scale: float,
    groups: int,
    dropout: float,
    seed: int,
    period: int,
    packed: Array | None,
    output: Array,
    lse: Array,
    threads: int,
) -> None:
    """Writes the output (*lead, T_q, d_v) and the log-sum-exp (*lead, T_q) of the task.

    a (..., T_q, h), b (..., T_k, h), weight (..., h), key_bias (..., T_k), value (..., T_k, d_v),
    start and stop (..., {1, T_q}), keep (..., {1, T_q}, {1, T_k}); leading dimensions are 1 or
    those of `lead`, that of heads divided by `groups` for b, key_bias, value and packed.

    s = scale · Σ_d weight_d · pair(a_d, b_d) + key_bias. It computes in the dtype of `lse`, float32
    or float64. packed: what `prepare_keys` wrote for b. Dropout is that of `anyscore.dropout`, with
    leading indices counted modulo `period`.
    """
    rank = lse.ndim - 1
    _core.forward(
        pair, *_factors(rank, a, b, weight, key_bias), _rows(value, rank + 2),
        *_mask(rank, start, stop, keep), scale, groups, dropout, seed, period,
        _rows(packed, rank + 2), output, lse, threads,
    )  # fmt: skip


def backward(
    pair: str,
    a: Array,
    b: Array,
    weight: Array | None,
    key_bias: Array | None,
    value: Array,
    start: Array | None,
    stop: Array | None,
    keep: Array | None,
    scale: float,
    groups: int,
    dropout: float,
    seed: int,
    period: int,
    output: Array,
    lse: Array,
    d_output: Array,
    d_lse: Array | None,
    d_a: Array,
    d_b: Array,
    d_weight: Array | None,
    d_key_bias: Array | None,
    d_value: Array,
    threads: int,
) -> None:
    """Writes the gradients d_a, d_b, …, each of the shape of its input and the dtype of `lse`."""
    rank = lse.ndim - 1
    _core.backward(
        pair, *_factors(rank, a, b, weight, key_bias), _rows(value, rank + 2),
        *_mask(rank, start, stop, keep), scale, groups, dropout, seed, period,
        output, lse, _rows(d_output, rank + 2), d_lse, _full(d_a, rank + 2),
        _full(d_b, rank + 2), _full(d_weight, rank + 1), _full(d_key_bias, rank + 1),
        _full(d_value, rank + 2), threads,
    )  # fmt: skip


def weights(
    pair: str,
    a: Array,
    b: Array,
    weight: Array | None,
    key_bias: Array | None,
    start: Array | None,
    stop: Array | None,
    keep: Array | None,
    scale: float,
    groups: int,
    lse: Array,
    output: Array,
    threads: int,
) -> None:
    """Writes exp(s − lse), 0 where masked, (*lead, T_q, T_k) in the dtype of `lse`."""
    rank = lse.ndim - 1
    _core.weights(
        pair, *_factors(rank, a, b, weight, key_bias), *_mask(rank, start, stop, keep),
        scale, groups, lse, output, threads,
    )  # fmt: skip


def prepare_keys(pair: str, b: Array, packed: Array, threads: int) -> None:
    """Writes what `forward` may be given for b (*lead, T_k, h), into packed (*lead, T_k + 1, h)."""
    _core.prepare_keys(pair, _rows(b, b.ndim), packed, threads)


def _factors(
    rank: int, a: Array, b: Array, weight: Array | None, key_bias: Array | None
) -> tuple[Array | None, ...]:
    """The factors of a score with all `rank` leading dimensions."""
    return (
        _rows(a, rank + 2),
        _rows(b, rank + 2),
        _rows(weight, rank + 1),
        _full(key_bias, rank + 1),
    )


def _mask(
    rank: int, start: Array | None, stop: Array | None, keep: Array | None
) -> tuple[Array | None, ...]:
    """The same of a mask."""
    return _full(start, rank + 1), _full(stop, rank + 1), _full(keep, rank + 2)


def _full(x: Array | None, rank: int) -> Array | None:
    """x with leading dimensions of 1 up to `rank`."""
    return x if x is None or x.ndim == rank else x[(None,) * (rank - x.ndim)]


def _rows(x: Array | None, rank: int) -> Array | None:
    """The same, and its last axis contiguous."""
    if x is not None and x.strides[-1] != x.itemsize:
        x = x.copy()  # ascontiguousarray leaves empty arrays as they are
    return _full(x, rank)
