"""NumPy: the C++ core, forward; silent about the NaN and overflow that the input brings along."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np

from anyscore.factors import TANH, Factors
from anyscore.kernels import cpu
from anyscore.ops import DTYPES, Array
from anyscore.routes import Route
from anyscore.seams.cpu import obstacle, tensors
from anyscore.task import Task


def precision(query: Array) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    return lambda: np.errstate(all="ignore"), None


def draw_seed(query: Array) -> Array:
    return np.array(np.random.randint(0, 2**63 - 1, dtype=np.int64))


def differentiable(tensors: Iterable[Array]) -> bool:
    return False


def pack_keys(f: Factors) -> Array | None:
    if f.pair != TANH or cpu.problem() is not None or not _known(f.b):
        return None
    *lead, keys, width = f.b.shape
    packed = np.empty((*lead, keys + 1, width), _wide([f.b]))
    cpu.prepare_keys(f.pair.name, _raw(f.b), packed, _threads())
    return packed


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    reason = obstacle(task)
    if reason is not None:
        return reason
    odd = [x for x in tensors(cast(Factors, task.score)) if not _known(x)]
    return f"a factor of the score is {odd[0].dtype.name}" if odd else None


def _run(task: Task, dropout: float, seed: Any) -> tuple[Array, Array]:
    f, sizes = cast(Factors, task.score), task.sizes
    start, stop, keep = _mask(task)
    rows = (*sizes.lead, sizes.queries)
    output = np.empty((*rows, task.value.shape[-1]), task.value.dtype.newbyteorder("="))
    lse = np.empty(rows, _wide([*tensors(f), task.value]))
    packed = task.packed if task.packed is None or task.packed.dtype == lse.dtype else None
    cpu.forward(
        f.pair.name, _raw(f.a), _raw(f.b), _raw(f.weight), _raw(f.key_bias), _raw(task.value),
        start, stop, keep, float(f.scale), sizes.groups, float(dropout),
        int(seed) if dropout else 0, math.prod(sizes.lead), packed, _raw(output), lse, _threads(),
    )  # fmt: skip
    return output, lse


def _weights(task: Task, lse: Array) -> Array:
    f, (start, stop, keep) = cast(Factors, task.score), _mask(task)
    output = np.empty((*lse.shape, task.sizes.keys), lse.dtype)
    cpu.weights(
        f.pair.name, _raw(f.a), _raw(f.b), _raw(f.weight), _raw(f.key_bias), start, stop, keep,
        float(f.scale), task.sizes.groups, lse, output, _threads(),
    )  # fmt: skip
    total = output.sum(axis=-1, keepdims=True)  # 1 but for the rounding of a large lse
    return (output / np.where(total == 0, 1, total)).astype(task.dtype, copy=False)


def routes() -> tuple[Route, ...]:
    return _ROUTES


_ROUTES = (Route("cpu", _usable, _run, _weights),)


def _mask(task: Task) -> tuple[Array | None, Array | None, Array | None]:
    m = task.attendable
    return (None, None, None) if m is None else (m.start, m.stop, m.keep)


def _known(x: Array) -> bool:
    return x.dtype.name in DTYPES


def _wide(xs: list[Array]) -> str:
    """The dtype that sums over these are taken in."""
    return "float64" if any(x.dtype.name == "float64" for x in xs) else "float32"


def _raw(x: Array | None) -> Any:
    """As the core takes it: aligned, in this machine's byte order, bfloat16 as int16."""
    if x is None:
        return None
    if not (x.flags.aligned and x.dtype.isnative) or any(n % x.itemsize for n in x.strides):
        x = x.astype(x.dtype.newbyteorder("="), order="C", copy=True)
    return x.view(np.int16) if x.dtype.name == "bfloat16" else x


def _threads() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
