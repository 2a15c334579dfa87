"""The C++ core, on arrays of any framework that lends their memory.

Those are NumPy arrays, and whatever speaks DLPack. bfloat16 may pass as int16, as NumPy does not
have it. Arrays may lack leading dimensions of 1.
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


def xla_targets() -> dict[str, Any]:
    """The core as targets of XLA's foreign function interface, by name; see `kernels.xla`."""
    if _core is None:
        raise RuntimeError(_problem)
    if not hasattr(_core, "xla_targets"):
        raise RuntimeError("it was built where there was no jaxlib to take XLA's headers from")
    targets: dict[str, Any] = _core.xla_targets()
    return targets


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
    _core.forward(
        pair, a, b, weight, key_bias, value, start, stop, keep, scale, groups, dropout, seed,
        period, packed, output, lse, threads,
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
    _core.backward(
        pair, a, b, weight, key_bias, value, start, stop, keep, scale, groups, dropout, seed,
        period, output, lse, d_output, d_lse, d_a, d_b, d_weight, d_key_bias, d_value, threads,
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
    _core.weights(
        pair, a, b, weight, key_bias, start, stop, keep, scale, groups, lse, output, threads
    )


def prepare_keys(pair: str, b: Array, packed: Array, threads: int) -> None:
    """Writes what `forward` may be given for b (*lead, T_k, h), into packed (*lead, T_k + 1, h)."""
    _core.prepare_keys(pair, b, packed, threads)
