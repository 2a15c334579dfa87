"""The C++ core on NumPy arrays: for NumPy, and for frameworks that lend their tensors as such.

Arguments are those of `kernels.cpu`; seed is an integer or an integer array (), of use with dropout
alone.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from anyscore.backends.common import Settings
from anyscore.kernels import cpu
from anyscore.ops import Array


def forward(
    settings: Settings,
    a: Array, b: Array, weight: Array | None, key_bias: Array | None, value: Array,
    start: Array | None, stop: Array | None, keep: Array | None,
    seed: Any = None,
    packed: Array | None = None,
    dtype: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Output, of the dtype given or that of sums, and log-sum-exp."""
    s, rows, sums = settings, (*settings.lead, a.shape[-2]), wide(a, b, weight, key_bias, value)
    output, lse = np.empty((*rows, value.shape[-1]), dtype or sums), np.empty(rows, sums)
    cpu.forward(
        s.pair, raw(a), raw(b), raw(weight), raw(key_bias), raw(value), start, stop, keep, s.scale,
        s.groups, s.dropout, int(seed) if s.dropout else 0, s.period,
        None if packed is None or packed.dtype != sums else packed, raw(output), lse, threads(),
    )  # fmt: skip
    return output, lse


def backward(
    settings: Settings,
    a: Array, b: Array, weight: Array | None, key_bias: Array | None, value: Array,
    start: Array | None, stop: Array | None, keep: Array | None,
    seed: Any,
    output: Array, lse: Array, d_output: Array, d_lse: Array | None,
) -> list[Array | None]:  # fmt: skip
    """Gradients of a, b, weight, key_bias and value, each as its input is; None where that is None.

    output: in the dtype of sums. d_output, d_lse: of what `forward` gave.
    """
    s, inputs = settings, (a, b, weight, key_bias, value)
    made = [None if x is None else np.empty(x.shape, lse.dtype) for x in inputs]
    output, lse = np.ascontiguousarray(output), np.ascontiguousarray(lse)
    d_lse = None if d_lse is None else np.ascontiguousarray(d_lse)
    d_a, d_b, d_weight, d_key_bias, d_value = made
    cpu.backward(
        s.pair, raw(a), raw(b), raw(weight), raw(key_bias), raw(value), start, stop, keep, s.scale,
        s.groups, s.dropout, int(seed) if s.dropout else 0, s.period, output, lse, raw(d_output),
        d_lse, d_a, d_b, d_weight, d_key_bias, d_value, threads(),
    )  # fmt: skip
    return [
        d if d is None or x is None else d.astype(x.dtype, copy=False)
        for d, x in zip(made, inputs, strict=True)
    ]


def weights(
    settings: Settings,
    a: Array, b: Array, weight: Array | None, key_bias: Array | None,
    start: Array | None, stop: Array | None, keep: Array | None,
    lse: Array,
) -> Array:  # fmt: skip
    """The weights (*lead, T_q, T_k) before dropout, in the dtype of lse."""
    s, lse = settings, np.ascontiguousarray(lse)
    output = np.empty((*lse.shape, b.shape[-2]), lse.dtype)
    cpu.weights(
        s.pair, raw(a), raw(b), raw(weight), raw(key_bias), start, stop, keep, s.scale, s.groups,
        lse, output, threads(),
    )  # fmt: skip
    total = output.sum(axis=-1, keepdims=True)  # 1 but for the rounding of a large lse
    return output / np.where(total == 0, 1, total)


def pack_keys(pair: str, b: Array) -> Array:
    """What `forward` takes as `packed`."""
    *lead, keys, width = b.shape
    packed = np.empty((*lead, keys + 1, width), wide(b))
    cpu.prepare_keys(pair, raw(b), packed, threads())
    return packed


def wide(*xs: Array | None) -> str:
    """The dtype that sums over these are taken in."""
    return "float64" if any(x is not None and x.dtype.name == "float64" for x in xs) else "float32"


def raw(x: Array | None) -> Any:
    """As the core takes it: aligned, in this machine's byte order, bfloat16 as int16."""
    if x is None:
        return None
    if not (x.flags.aligned and x.dtype.isnative) or any(n % x.itemsize for n in x.strides):
        x = x.astype(x.dtype.newbyteorder("="), order="C", copy=True)
    return x.view(np.int16) if x.dtype.name == "bfloat16" else x


def threads() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
