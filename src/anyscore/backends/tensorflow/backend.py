"""The C++ core for TensorFlow: first derivatives by its backward, higher ones by the reference.

Eager tensors share memory with the core; graphs call it through `tf.numpy_function`. XLA and
SavedModels cannot hold this function, so calls traced for them run the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.saved_model.save_context import in_save_context

from anyscore.backends import numpy_core
from anyscore.backends.record import (
    how_core,
    operands_of,
    run_reference,
    why_not_core,
    with_edges_by_key,
)
from anyscore.backends.reference.run import reference_in
from anyscore.backends.tensorflow import ragged
from anyscore.call.backend import Adapter, Backend, Implementation, Result
from anyscore.call.operands import N_BACKWARD, N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.modifiers.normalizers import sparse
from anyscore.ops import Array, acc_dtype, load
from anyscore.ops.tensorflow import custom_gradient, integers
from anyscore.ops.tensorflow_size import Size
from anyscore.score.factors import Factors

_xp = load("tensorflow")


class TensorFlow(Backend):
    """The C++ core, else the reference."""

    xp = _xp
    reference = reference_in(_xp)

    def fused(self, task: Task) -> tuple[Implementation, ...]:
        return _FUSED

    def lacks_kernels(self, task: Task) -> bool:
        return _elsewhere(task.first) is not None

    def differentiable(self, tensors: Iterable[Array]) -> bool:
        return _differentiable(tensors)

    def draw_seed(self, query: Array) -> Array:
        return tf.random.uniform((), maxval=2**63 - 1, dtype=tf.int64)

    def sparse(self, scores: Array, power: int) -> Array:
        if not tf.executing_eagerly() or _elsewhere(scores) or cpu.problem():
            return super().sparse(scores, power)
        if not _differentiable([scores]):
            return tf.constant(numpy_core.sparse(_array(scores), power))
        if _has_tangents([scores]):
            return super().sparse(scores, power)

        def forward(s: Array) -> tuple[Array, Callable[..., Any]]:
            weights = tf.constant(numpy_core.sparse(_array(s), power))

            def backward(upstream: Array) -> Array:
                if _differentiable([upstream]):
                    (slope,) = _slopes(lambda x: [sparse(_xp, x, power)], (s,), [upstream])
                    return slope
                return tf.constant(
                    numpy_core.sparse_backward(_array(weights), _array(upstream), power)
                )

            return weights, backward

        return custom_gradient(forward, scores)

    def pack_keys(self, f: Factors) -> Array | None:
        if not tf.executing_eagerly() or _elsewhere(f.b):
            return None
        return numpy_core.pack_keys(f.pair.name, _array(f.b))

    def adapter(self, query: Array, key: Array, value: Array) -> Adapter:
        return ragged.adapter(query, key, value)


def _differentiable(tensors: Iterable[Array]) -> bool:
    if not tf.executing_eagerly() or could_possibly_record():
        return True
    return _has_tangents(tensors)


def _why_not(task: Task, options: Options) -> str | None:
    def why_not_now(xs: list[Array]) -> str | None:
        if _has_tangents((*xs, task.value)):
            return "forward mode does not reach into it"
        if not tf.executing_eagerly():
            if in_save_context():
                return "a saved model cannot hold it"
            if GraphOrParentsInXlaContext(_graph()):
                return "XLA cannot compile it"
        return None

    return why_not_core(_xp, task, _elsewhere, why_not_now)


def _run(task: Task, options: Options, seed: Any) -> Result:
    x, s = operands_of(_xp, task, options, seed)
    if not _differentiable(y for y in x[:N_DIFFERENTIABLE] if y is not None):
        arrays = Operands(*map(_array, x[:N_BACKWARD]))._replace(packed=x.packed)
        results = numpy_core.forward(arrays, s, _numpy_dtype(task.dtype))
        return Result(*(None if y is None else tf.constant(y) for y in results))
    output, stats, scores = _attend(with_edges_by_key(x, task), s)
    return Result(None if output is None else _xp.astype(output, task.dtype), stats, scores)


_FUSED = (Implementation("cpu", _why_not, _run, how_core),)


def _attend(x: Operands, s: Settings) -> Results:
    """Return the results, in the dtype of sums; differentiable."""
    packed, x = x.packed, Operands(*x[:N_BACKWARD])
    given = [tf.convert_to_tensor(y) for y in x.present().values()]
    own = len(x.factors.present())  # operands with derivatives
    dtype = tf.as_dtype(acc_dtype(_xp, *given[:own]))
    shapes = x.result_shapes(s, _xp.shape).present().values()

    def forward(*xs: Array) -> tuple[tuple[Array, ...], Callable[..., Any]]:
        def on_arrays(s: Settings, *arrays: Any) -> Iterable[Any]:
            results = numpy_core.forward(Operands(*arrays)._replace(packed=packed), s)
            return results.present().values()

        made = [(dtype, shape) for shape in shapes]
        found = _call(on_arrays, s, list(x.fill(xs)[:N_BACKWARD]), made)

        def backward(*upstream: Array) -> list[Array | None]:
            upstream = tuple(map(tf.convert_to_tensor, upstream))
            kept = [y for y in x.results_from(s, found)[:2] if y is not None]
            if _differentiable(upstream):
                slopes = custom_gradient(gradients, *kept, *upstream, *xs)
            else:
                slopes, _ = gradients(*kept, *upstream, *xs)
            return [*slopes, *(None for _ in xs[own:])]

        return tuple(found), backward

    def gradients(*given: Array) -> tuple[list[Array], Callable[..., Any]]:
        each = iter(given)
        output = None if x.value is None else next(each)
        stats, upstream, xs = next(each), [next(each) for _ in shapes], tuple(each)

        def on_arrays(s: Settings, *arrays: Any) -> Iterable[Any]:
            *operands, output, stats, d_output, d_stats, d_scores = arrays
            found = numpy_core.backward(
                Operands(*operands), s, Results(output, stats), Results(d_output, d_stats, d_scores)
            )
            return found.present().values()

        made = [(y.dtype, _xp.shape(y)) for y in xs[:own]]
        operands = [*x.fill(xs)[:N_BACKWARD], output, stats, *x.results_from(s, upstream)]
        found = _call(on_arrays, s, operands, made)

        def backward(*again: Array) -> list[Array | None]:
            """Return the reference's derivatives, which recompute the results."""

            def defined(*inputs: Array) -> list[Array]:
                results = run_reference(_xp, x.fill((*inputs, *xs[own:])), s)
                return list(results.present().values())

            def first(*given: Array) -> list[Array]:
                return _slopes(defined, given[len(shapes) :], given[: len(shapes)])

            slopes = _slopes(first, (*upstream, *xs[:own]), again)
            unread = len(given) - len(upstream) - len(xs)
            return [*(None,) * unread, *slopes, *(None for _ in xs[own:])]

        return found, backward

    return x.results_from(s, custom_gradient(forward, *given))


def _slopes(
    function: Callable[..., Any], xs: tuple[Array, ...], upstream: Iterable[Array]
) -> list[Array]:
    """Return the derivatives of Σ upstream · function(*xs), which are differentiable."""
    zero = tf.UnconnectedGradients.ZERO
    if not tf.executing_eagerly():  # forward mode of a function ignores tapes inside it
        found = tf.gradients(function(*xs), xs, list(upstream), unconnected_gradients=zero)
        return cast(list[Array], found)
    xs = tuple(map(tf.identity, xs))  # else a tensor passed twice gets the sum for each place
    with tf.GradientTape() as tape:
        tape.watch(xs)
        results = function(*xs)
    return cast(list[Array], tape.gradient(results, list(xs), list(upstream), zero))


def _call(
    function: Callable[..., Iterable[Any]],
    s: Settings,
    given: list[Any],
    made: list[tuple[Any, tuple[int, ...]]],
) -> list[Array]:
    """Call a function of settings and NumPy arrays on tensors or None.

    made: dtypes and shapes of the results.
    """
    if tf.executing_eagerly():
        return [tf.constant(x) for x in function(s, *map(_array, given))]
    present = [x is not None for x in given]

    def run(lead: Any, *arrays: Any) -> list[Any]:
        each, sizes = iter(arrays), tuple(map(int, lead))
        known = s._replace(lead=sizes, dropout_period=math.prod(sizes))
        return list(function(known, *[next(each) if some else None for some in present]))

    some = [tf.convert_to_tensor(x) for x in given if x is not None]
    lead = integers(s.lead)
    results = tf.numpy_function(run, [lead, *some], [dtype for dtype, _ in made], stateful=False)
    for x, (_, shape) in zip(results, made, strict=True):
        x.set_shape([None if isinstance(n, Size) else n for n in shape])
    return cast(list[Array], results)


def _has_tangents(xs: Iterable[Array]) -> bool:
    """Return whether xs have tangents in forward mode, which no tape records."""
    return bool(pack_tangents([tf.convert_to_tensor(x) for x in xs if x is not None]).tangents)


def _array(x: Any) -> Any:
    """Return an eager tensor as an array on the same memory; bfloat16 has no buffer: a copy."""
    if x is None:
        return None
    x = tf.convert_to_tensor(x)
    return x.numpy() if x.dtype == tf.bfloat16 else np.asarray(memoryview(x))


def _numpy_dtype(dtype: str) -> Any:
    return tf.dtypes.as_dtype(dtype).as_numpy_dtype


def _elsewhere(x: Array) -> str | None:
    """Return why the core cannot reach a tensor, None if it can."""
    device = getattr(x, "device", "")  # Keras's variables have none
    if "GPU" in device or "TPU" in device:
        return f"it runs on the CPU, and the tensors are on {device}"
    if not tf.executing_eagerly() and "CPU" not in device and _accelerated():
        return "it runs on the CPU, and TensorFlow may place this graph on an accelerator"
    return None


@cache
def _accelerated() -> bool:
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()


BACKEND = TensorFlow()
