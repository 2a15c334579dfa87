"""MXNet: the C++ core, as an operator while autograd records; arrays of both its kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias, cast

import mxnet as mx
from mxnet import autograd

from anyscore.backends import host
from anyscore.backends.common import obstacle, settings, tensors, unpack
from anyscore.factors import TANH, Factors
from anyscore.implementations import Implementation
from anyscore.kernels import cpu
from anyscore.ops import DTYPES, Array, load
from anyscore.ops.mxnet_operator import Arrays, Operator, call, device
from anyscore.ops.mxnet_operator import host as to_host
from anyscore.score import Score
from anyscore.task import Task

_xp = load("mxnet")
_Five: TypeAlias = tuple[Any, Any, Any, Any, Any]


def enter(tensors: tuple[Array, ...], score: Any) -> tuple[tuple[Array, ...], Any]:
    """All as `mx.np.ndarray`; a callable score is given the kind of the first tensor still."""
    first, tensors = tensors[0], tuple(map(as_np, tensors))
    if isinstance(score, Score):
        kinds = {type(x) for x in score.tensors().values()}
        score = score.map(as_np) if mx.nd.NDArray in kinds else score
        if autograd.is_recording() and any(0 in x.shape[:-1] for x in tensors):
            with mx.util.np_shape(True):
                return tuple(map(_still, tensors)), score.map(_still)
    elif callable(score) and not isinstance(score, type) and type(first) is mx.nd.NDArray:
        return tensors, lambda query, key: as_np(score(leave(query, first), leave(key, first)))
    return tensors, score


def leave(x: Array, like: Array) -> Array:
    return x.as_nd_ndarray() if type(like) is mx.nd.NDArray else x


def _still(x: Array) -> Array:
    """x with derivatives of 0, as where nothing is attended; MXNet would not write them."""
    return _xp.where(_xp.array([False], x), x, x.detach())


def as_np(x: Any) -> Any:
    """An `mx.nd.NDArray` as `mx.np.ndarray`, of one graph and memory; anything else as it is."""
    if not isinstance(x, mx.nd.NDArray) or isinstance(x, mx.np.ndarray):
        return x
    if x.stype != "default":
        raise TypeError(f"got a {type(x).__name__}, expected a dense array of MXNet.")
    return x.as_np_ndarray()


def precision(query: Array) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    return partial(mx.util.np_shape, True), None  # shapes () and (0, …) are known shapes


def draw_seed(query: Array) -> int:
    return int(mx.nd.random.randint(0, 2**63 - 1, shape=(1,), dtype="int64").asscalar())


def differentiable(tensors: Iterable[Array]) -> bool:
    return bool(autograd.is_recording())


def pack_keys(f: Factors) -> Array | None:
    if f.pair != TANH or cpu.problem() is not None or _odd(f.b):
        return None
    return host.pack_keys(f.pair.name, to_host(f.b))


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    reason = obstacle(task)
    if reason is not None:
        return reason
    xs = tensors(cast(Factors, task.score))
    xs += [] if task.value is None else [task.value]  # it is not needed for weights
    if autograd.is_recording() and any(0 in x.shape for x in xs):
        return "there is nothing to compute"
    return next(filter(None, map(_odd, xs)), None)


def _run(task: Task, dropout: float, seed: Any) -> tuple[Array, Array]:
    (f, m), told = unpack(task), settings(task, dropout)
    inputs = f.a, f.b, f.weight, f.key_bias, task.value
    xs = [x for x in inputs if x is not None]
    masks = m.start, m.stop, m.keep
    seed = int(_xp.seed(seed, like=task.value)) if dropout else None

    def five(given: Arrays) -> _Five:
        rest = iter(given)
        return cast(_Five, tuple(None if x is None else next(rest) for x in inputs))

    def forward(given: Arrays) -> tuple[Array, Array]:
        return host.forward(told, *five(given), *masks, seed, task.packed)

    def backward(given: Arrays, made: Arrays, upstream: Arrays) -> list[Array]:
        (output, lse), (d_output, d_lse) = made, upstream
        found = host.backward(told, *five(given), *masks, seed, output, lse, d_output, d_lse)
        return [d for d in found if d is not None]

    if autograd.is_recording():
        rows, sums = (*told.lead, f.a.shape[-2]), host.wide(*xs)
        outputs = ((*rows, task.value.shape[-1]), sums), (rows, sums)
        output, lse = call(Operator(len(xs), outputs, forward, backward), xs)
    else:
        output, lse = map(device, forward([to_host(x) for x in xs]))
    return _xp.astype(output, task.dtype), lse


def _weights(task: Task, lse: Array) -> Array:
    f, m = unpack(task)
    a, b, weight, key_bias = (
        None if x is None else to_host(x) for x in (f.a, f.b, f.weight, f.key_bias)
    )
    told, masks = settings(task, 0.0), (m.start, m.stop, m.keep)
    made = host.weights(told, a, b, weight, key_bias, *masks, to_host(lse))
    return _xp.astype(device(made), task.dtype)


def _odd(x: Array) -> str | None:
    """Why the core cannot take an array."""
    if x.ctx.device_type != "cpu":
        return f"it runs on the CPU, and the arrays are on {x.ctx}"
    return None if _xp.dtype(x) in DTYPES else f"a factor of the score is {_xp.dtype(x)}"


def routes(task: Task) -> tuple[Implementation, ...]:
    return _ROUTES


_ROUTES = (Implementation("cpu", _usable, _run, _weights),)
