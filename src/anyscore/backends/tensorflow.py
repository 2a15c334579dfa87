"""The C++ core for TensorFlow, differentiable: first order by its own backward, then by definition.

Eager tensors lend the core their memory; graphs call it through `tf.numpy_function`, which neither
XLA nor a SavedModel can hold: traced for those, calls take the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.saved_model.save_context import in_save_context

from anyscore.backends import host
from anyscore.backends.common import Settings, by_definition, obstacle, settings, tensors, unpack
from anyscore.factors import TANH, Factors
from anyscore.implementations import Implementation
from anyscore.intervals import LoweredMask
from anyscore.kernels import cpu
from anyscore.ops import DTYPES, Array, accumulation, load
from anyscore.ops.tensorflow import custom_gradient, integers
from anyscore.ops.tensorflow_size import Size
from anyscore.task import Task

_xp = load("tensorflow")
_forward: Callable[..., Any] = host.forward


def precision(query: Array) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    return nullcontext, None


def draw_seed(query: Array) -> Array:
    return tf.random.uniform((), maxval=2**63 - 1, dtype=tf.int64)


def differentiable(tensors: Iterable[Array]) -> bool:
    if not tf.executing_eagerly() or could_possibly_record():
        return True
    return _has_tangents(tensors)


def pack_keys(f: Factors) -> Array | None:
    if f.pair != TANH or not tf.executing_eagerly() or cpu.problem() is not None:
        return None
    return host.pack_keys(f.pair.name, _array(f.b)) if _elsewhere(f.b) is None else None


def routes(task: Task) -> tuple[Implementation, ...]:
    return _ROUTES


def _usable(task: Task, dropout: float, return_lse: bool) -> str | None:
    reason = obstacle(task)
    if reason is not None:
        return reason
    for x in tensors(cast(Factors, task.score)):
        if _xp.dtype(x) not in DTYPES:
            return f"a factor of the score is {_xp.dtype(x)}"
        if (reason := _elsewhere(x)) is not None:
            return reason
    if _has_tangents((*tensors(cast(Factors, task.score)), task.value)):
        return "forward mode does not reach into it"
    if tf.executing_eagerly():
        return None
    if in_save_context():
        return "a saved model cannot hold it"
    return "XLA cannot compile it" if GraphOrParentsInXlaContext(_graph()) else None


def _run(task: Task, dropout: float, seed: Any) -> tuple[Array, Array]:
    f, m = unpack(task)
    told, inputs = settings(task, dropout), [f.a, f.b, f.weight, f.key_bias, task.value]
    beside = [m.start, m.stop, m.keep, _xp.seed(seed, like=task.value) if dropout else None]
    if not differentiable(inputs):
        arrays, dtype = map(_array, (*inputs, *beside)), _numpy_dtype(task.dtype)
        output, lse = _forward(told, *arrays, packed=task.packed, dtype=dtype)
        return tf.constant(output), tf.constant(lse)
    output, lse = _attend(told, inputs, beside, task.packed)
    return _xp.astype(output, task.dtype), lse


def _weights(task: Task, lse: Array) -> Array:
    f, m = unpack(task)
    arrays = map(_array, (f.a, f.b, f.weight, f.key_bias, m.start, m.stop, m.keep, lse))
    return _xp.astype(tf.constant(host.weights(settings(task, 0.0), *arrays)), task.dtype)


_ROUTES = (Implementation("cpu", _usable, _run, _weights),)


def _attend(
    told: Settings, inputs: list[Any], beside: list[Any], packed: Any
) -> tuple[Array, Array]:
    """Output, in the dtype of sums, and log-sum-exp of a, b, weight, key_bias and value.

    beside: start, stop, keep, seed.
    """
    present = [x is not None for x in (*inputs, *beside)]
    given = [tf.convert_to_tensor(x) for x in (*inputs, *beside) if x is not None]
    own = sum(present[: len(inputs)])  # that have derivatives
    sums = _sums(given[:own])
    rows = (*told.lead, _xp.shape(given[0])[-2])
    results = [(sums, (*rows, _xp.shape(given[own - 1])[-1])), (sums, rows)]

    def all_of(xs: Iterable[Any]) -> list[Any]:
        """The inputs and what is beside them, of those that are present."""
        each = iter(xs)
        return [next(each) if some else None for some in present]

    def forward(*xs: Array) -> tuple[tuple[Array, Array], Callable[..., Any]]:
        def on_arrays(told: Settings, *arrays: Any) -> Iterable[Any]:
            return cast(Iterable[Any], _forward(told, *arrays, packed=packed))

        output, lse = _call(on_arrays, told, all_of(xs), results)

        def backward(*upstream: Array) -> list[Array | None]:
            upstream = tuple(map(tf.convert_to_tensor, upstream))
            if differentiable(upstream):
                found = custom_gradient(gradients, output, lse, *upstream, *xs)
            else:
                found, _ = gradients(output, lse, *upstream, *xs)
            return [*found, *(None for _ in xs[own:])]

        return (output, lse), backward

    def gradients(
        output: Array, lse: Array, d_output: Array, d_lse: Array, *xs: Array
    ) -> tuple[list[Array], Callable[..., Any]]:
        def on_arrays(*arrays: Any) -> list[Any]:
            return [x for x in host.backward(*arrays) if x is not None]

        made = [(x.dtype, _xp.shape(x)) for x in xs[:own]]
        found = _call(on_arrays, told, [*all_of(xs), output, lse, d_output, d_lse], made)

        def backward(*upstream: Array) -> list[Array | None]:
            """Of the definition, which computes output and log-sum-exp itself."""

            def defined(*inputs: Array) -> tuple[Array, Array]:
                *five, start, stop, keep, seed = all_of((*inputs, *xs[own:]))
                mask = LoweredMask(start, stop, keep)
                return by_definition(_xp, told, five, mask, seed, sums.name)

            def first(d_output: Array, d_lse: Array, *inputs: Array) -> list[Array]:
                return _slopes(defined, inputs, [d_output, d_lse])

            found = _slopes(first, (d_output, d_lse, *xs[:own]), upstream)
            return [None, None, *found, *(None for _ in xs[own:])]

        return found, backward

    return cast(tuple[Array, Array], custom_gradient(forward, *given))


def _slopes(
    function: Callable[..., Any], xs: tuple[Array, ...], upstream: Iterable[Array]
) -> list[Array]:
    """Derivatives of Σ upstream · function(*xs), which can be differentiated again."""
    zero = tf.UnconnectedGradients.ZERO
    if not tf.executing_eagerly():  # forward mode of a function does not see tapes inside of it
        found = tf.gradients(function(*xs), xs, list(upstream), unconnected_gradients=zero)
        return cast(list[Array], found)
    with tf.GradientTape() as tape:
        tape.watch(xs)
        results = function(*xs)
    return cast(list[Array], tape.gradient(results, list(xs), list(upstream), zero))


def _call(
    function: Callable[..., Iterable[Any]],
    told: Settings,
    given: list[Any],
    made: list[tuple[Any, tuple[int, ...]]],
) -> list[Array]:
    """`function` of settings and NumPy arrays, on tensors or None; made: dtypes and shapes."""
    if tf.executing_eagerly():
        return [tf.constant(x) for x in function(told, *map(_array, given))]
    present = [x is not None for x in given]

    def run(lead: Any, *arrays: Any) -> list[Any]:
        each, sizes = iter(arrays), tuple(map(int, lead))
        known = replace(told, lead=sizes, period=math.prod(sizes))
        return list(function(known, *[next(each) if some else None for some in present]))

    some = [tf.convert_to_tensor(x) for x in given if x is not None]
    lead = integers(told.lead)
    results = tf.numpy_function(run, [lead, *some], [dtype for dtype, _ in made], stateful=False)
    for x, (_, shape) in zip(results, made, strict=True):
        x.set_shape([None if isinstance(n, Size) else n for n in shape])
    return cast(list[Array], results)


def _has_tangents(xs: Iterable[Array]) -> bool:
    """Whether derivatives of these are taken in forward mode, which no tape knows of."""
    return bool(pack_tangents([tf.convert_to_tensor(x) for x in xs if x is not None]).tangents)


def _array(x: Any) -> Any:
    """An eager tensor as an array on the same memory; bfloat16, which has no buffers, copied."""
    if x is None:
        return None
    x = tf.convert_to_tensor(x)
    return x.numpy() if x.dtype == tf.bfloat16 else np.asarray(memoryview(x))


def _numpy_dtype(dtype: str) -> Any:
    return tf.dtypes.as_dtype(dtype).as_numpy_dtype


def _sums(xs: list[Array]) -> Any:
    """The dtype that sums over these are taken in."""
    wide = any(accumulation(_xp.dtype(x)) == "float64" for x in xs)
    return tf.float64 if wide else tf.float32


def _elsewhere(x: Array) -> str | None:
    """Why the core cannot reach a tensor, None if it can."""
    device = getattr(x, "device", "")  # not of Keras's variables
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
