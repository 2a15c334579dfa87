"""NumPy: the C++ core, forward; silent about the NaN and overflow that the input brings along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np

from anyscore.backends import host
from anyscore.backends.common import obstacle, settings, tensors, unpack
from anyscore.factors import TANH, Factors
from anyscore.implementations import Implementation
from anyscore.kernels import cpu
from anyscore.ops import DTYPES, Array
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
    return host.pack_keys(f.pair.name, f.b)


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    reason = obstacle(task)
    if reason is not None:
        return reason
    odd = [x for x in tensors(cast(Factors, task.score)) if not _known(x)]
    return f"a factor of the score is {odd[0].dtype.name}" if odd else None


def _run(task: Task, dropout: float, seed: Any) -> tuple[Array, Array]:
    f, m = unpack(task)
    return host.forward(
        settings(task, dropout), f.a, f.b, f.weight, f.key_bias, task.value, m.start, m.stop,
        m.keep, seed, task.packed, task.value.dtype.newbyteorder("="),
    )  # fmt: skip


def _weights(task: Task, lse: Array) -> Array:
    f, m = unpack(task)
    attended = host.weights(
        settings(task, 0.0), f.a, f.b, f.weight, f.key_bias, m.start, m.stop, m.keep, lse
    )
    return attended.astype(task.dtype, copy=False)


def routes(task: Task) -> tuple[Implementation, ...]:
    return _ROUTES


_ROUTES = (Implementation("cpu", _usable, _run, _weights),)


def _known(x: Array) -> bool:
    return x.dtype.name in DTYPES
