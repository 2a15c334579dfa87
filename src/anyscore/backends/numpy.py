"""NumPy: the C++ core, forward only, without warnings about NaN and overflow in the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from anyscore.backends import numpy_core
from anyscore.backends.record import (
    how_core,
    operands_of,
    why_not_core,
    why_not_dtype,
)
from anyscore.backends.reference.run import reference_in
from anyscore.backends.repeated import REPEATED, CoreArrays, RepeatedCalls
from anyscore.call.backend import Backend, Implementation, Result
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.ops import Array, acc_dtype, load
from anyscore.score.factors import Factors

_xp = load("numpy")


class NumPyBuffers:
    """See `call.backend.Buffers`."""

    in_place = True

    def zeros(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        return np.zeros(shape, dtype or like.dtype)

    def empty_view(self, shape: tuple[int, ...], like: Array) -> Array:
        return np.broadcast_to(np.zeros((), like.dtype), shape)

    def concrete_int(self, x: Array) -> int | None:
        return int(x)

    def concrete_ints(self, x: Array) -> list[int] | None:
        return [int(n) for n in x]

    def why_not(self, *rows: Array) -> str | None:
        return None

    def write_rows(self, x: Array, rows: Array, start: Array | int, wraps: bool) -> Array:
        n, room = rows.shape[-2], x.shape[-2]
        first = int(start) % room if room else 0
        if first + n <= room:
            x[..., first : first + n, :] = rows
        else:
            x[..., (first + np.arange(n)) % room, :] = rows
        return x

    def add(self, x: Array, n: int) -> Array:
        x += n
        return x

    def reorder_batch(self, x: Array, index: Array, rows: int | None) -> Array:
        x[..., :rows, :] = x[..., :rows, :][index]
        return x

    def pack(self, pair: str, b: Array, packed: Array, start: Array | int, count: int) -> Array:
        cpu.append_keys(
            pair, numpy_core.as_core_array(b), packed, int(start), count, numpy_core.threads()
        )
        return packed

    def packed_buffer(self, b: Array) -> Array | None:
        if why_not_dtype(_xp.dtype(b)):
            return None
        *lead, keys, width = b.shape
        return np.zeros((*lead, keys + 1, width), acc_dtype(_xp, b))


class NumPy(Backend):
    """The C++ core, else the reference."""

    xp = _xp
    reference = reference_in(_xp)
    buffers = NumPyBuffers()

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        return _FUSED

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        return False

    def precision(
        self, query: Array
    ) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
        return _silent, None

    def draw_seed(self, query: Array) -> Array:
        return np.array(np.random.randint(0, 2**63 - 1, dtype=np.int64))

    def sparse(self, scores: Array, power: int) -> Array:
        return super().sparse(scores, power) if cpu.problem() else numpy_core.sparse(scores, power)

    def pack_keys(self, f: Factors) -> Array | None:
        return None if why_not_dtype(_xp.dtype(f.b)) else numpy_core.pack_keys(f.pair.name, f.b)


def _silent() -> AbstractContextManager[Any]:
    return np.errstate(all="ignore")


def _why_not(task: Task, options: Options) -> str | None:
    return why_not_core(_xp, task)


def _run(task: Task, options: Options, seed: Any) -> Result:
    x, s = operands_of(_xp, task, options, seed)
    dtype = None if x.value is None else x.value.dtype.newbyteorder("=")
    return Result(*numpy_core.forward(x, s, dtype))


_FUSED = (Implementation("cpu", _why_not, _run, how_core),)
BACKEND = NumPy()
_ARRAYS = CoreArrays(
    (np.ndarray,),
    BACKEND,
    _FUSED[0],
    layout=lambda x: (type(x), x.shape, x.dtype),
    wants_gradients=lambda *arrays: False,
    thread_count=numpy_core.threads,
    allocate=lambda query, shape: np.empty(shape, query.dtype),
    may_write=lambda x: True,
    mark_written=lambda arrays: None,
    context=_silent,
)
REPEATED[np.ndarray] = RepeatedCalls(_ARRAYS)
