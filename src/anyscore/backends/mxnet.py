"""MXNet: the C++ core, as an operator while autograd records; `mx.np` and `mx.nd` arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import mxnet as mx
from mxnet import autograd

from anyscore.backends import numpy_core
from anyscore.backends.record import (
    how_core,
    operands_of,
    why_not_core,
    why_not_dtype,
)
from anyscore.backends.reference.run import reference_in
from anyscore.call.backend import Adapter, Backend, Implementation, Result
from anyscore.call.operands import N_DIFFERENTIABLE, Operands
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.modifiers.biases import Bias
from anyscore.ops import Array, acc_dtype, load
from anyscore.ops.mxnet_operator import Arrays, Operator, call, device
from anyscore.ops.mxnet_operator import host as to_host
from anyscore.score.base import Score
from anyscore.score.factors import Factors

_xp = load("mxnet")
known_shapes: Callable[[], AbstractContextManager[Any]] = partial(mx.util.np_shape, True)
"""Returns a context in which () and (0, …) are known shapes."""


class MXNet(Backend):
    """The C++ core, else the reference."""

    xp = _xp
    reference = reference_in(_xp)

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        return _FUSED

    def lacks_kernels(self, task: Task) -> bool:
        return bool(task.first.ctx.device_type != "cpu")

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        return bool(autograd.is_recording())

    def precision(
        self, query: Array
    ) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
        return known_shapes, None

    def draw_seed(self, query: Array) -> int:
        return int(mx.nd.random.randint(0, 2**63 - 1, shape=(1,), dtype="int64").asscalar())

    def sparse(self, scores: Array, power: int) -> Array:
        if cpu.problem() or _why_not_array(scores) or not scores.size:
            return super().sparse(scores, power)
        if not autograd.is_recording():
            return device(numpy_core.sparse(to_host(scores), power))

        def forward(arrays: Arrays) -> list[Array]:
            return [numpy_core.sparse(arrays[0], power)]

        def backward(arrays: Arrays, made: Arrays, upstream: Arrays) -> list[Array | None]:
            return [numpy_core.sparse_backward(made[0], upstream[0], power)]

        form = scores.shape, _xp.dtype(scores)
        return call(Operator(1, (form,), forward, backward), [scores])[0]

    def pack_keys(self, f: Factors) -> Array | None:
        return None if _why_not_array(f.b) else numpy_core.pack_keys(f.pair.name, to_host(f.b))

    def adapter(self, query: Array, key: Array, value: Array) -> Adapter:
        return _Kinds(query)


class _Kinds(Adapter):
    """Computes with `mx.np` and `mx.nd` arrays as `mx.np.ndarray`."""

    def __init__(self, query: Array) -> None:
        self.query = query

    def take(self, tensors: tuple[Any, ...], score: Any) -> tuple[tuple[Any, ...], Any]:
        return unwrap(tensors, score)

    def give(self, x: Array, own: int = 1) -> Array:
        return wrap(x, self.query)


def unwrap(tensors: tuple[Array, ...], score: Any) -> tuple[tuple[Array, ...], Any]:
    """Return tensors and score as `mx.np.ndarray`; a callable still gets the type of tensors[0]."""
    first, tensors = tensors[0], tuple(map(as_np, tensors))
    if isinstance(score, Score):
        kinds = {type(x) for x in score.tensors().values()}
        score = score.map(as_np) if mx.nd.NDArray in kinds else score
        if autograd.is_recording() and any(0 in x.shape[:-1] for x in tensors):
            with mx.util.np_shape(True):
                return tuple(map(_still, tensors)), score.map(_still)
    elif callable(score) and not isinstance(score, type) and type(first) is mx.nd.NDArray:
        return tensors, lambda query, key: as_np(score(wrap(query, first), wrap(key, first)))
    return tensors, score


def wrap(x: Array, like: Array) -> Array:
    """Return x as an `mx.nd.NDArray` if `like` is one, else x."""
    return x.as_nd_ndarray() if type(like) is mx.nd.NDArray else x


def _still(x: Array) -> Array:
    """Return x with derivatives of 0, as for masked keys; MXNet would not write them."""
    return _xp.where(_xp.array([False], x), x, x.detach())


def as_np(x: Any) -> Any:
    """Return an `mx.nd.NDArray` as an `mx.np.ndarray` of the same graph and memory, else x.

    The tensors of a bias are converted too.
    """
    if isinstance(x, Bias):
        return x.map(as_np)
    if not isinstance(x, mx.nd.NDArray) or isinstance(x, mx.np.ndarray):
        return x
    if x.stype != "default":
        raise TypeError(f"got a {type(x).__name__}, expected a dense array of MXNet.")
    return x.as_np_ndarray()


def _why_not(task: Task, options: Options) -> str | None:
    def why_not_now(xs: list[Array]) -> str | None:
        xs = [*xs, *([] if task.value is None else [task.value])]
        if autograd.is_recording() and any(0 in x.shape for x in xs):
            return "there is nothing to compute"
        return None if task.value is None else _why_not_array(task.value)

    return why_not_core(_xp, task, _why_not_array, why_not_now, has_edges=False)


def _run(task: Task, options: Options, seed: Any) -> Result:
    x, s = operands_of(_xp, task, options, seed)
    differentiated = x.factors
    given = list(differentiated.present().values())

    def operands(arrays: Arrays) -> Operands:
        return Operands(*differentiated.fill(arrays)[:N_DIFFERENTIABLE], *x[N_DIFFERENTIABLE:])

    def forward(arrays: Arrays) -> list[Array]:
        return list(numpy_core.forward(operands(arrays), s).present().values())

    def backward(arrays: Arrays, made: Arrays, upstream: Arrays) -> list[Array | None]:
        results, d_results = x.results_from(s, made), x.results_from(s, upstream)
        return list(numpy_core.backward(operands(arrays), s, results, d_results).present().values())

    if autograd.is_recording():
        shapes, dtype = x.result_shapes(s).present().values(), acc_dtype(_xp, *given)
        outputs = tuple((shape, dtype) for shape in shapes)
        found = call(Operator(len(given), outputs, forward, backward), given)
    else:
        found = list(map(device, forward([to_host(y) for y in given])))
    output, stats, scores = x.results_from(s, found)
    return Result(None if output is None else _xp.astype(output, task.dtype), stats, scores)


def _why_not_array(x: Array) -> str | None:
    """Return why the core cannot take an array, None if it can."""
    if x.ctx.device_type != "cpu":
        return f"it runs on the CPU, and the arrays are on {x.ctx}"
    return why_not_dtype(_xp.dtype(x))


_FUSED = (Implementation("cpu", _why_not, _run, how_core),)
BACKEND = MXNet()
