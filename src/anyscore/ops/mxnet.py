"""MXNet, in its NumPy-like arrays; masks, lengths and dropout's words are NumPy's, on the host.

MXNet 1.9 lacks `&` and `>>`. For a number in `where` it takes the derivative of the other branch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, cast

import mxnet as mx
import numpy as np
from mxnet import autograd

from anyscore.ops import Array, Ops, masked
from anyscore.ops import numpy as of_host
from anyscore.ops.mxnet_operator import Arrays, Operator, call, host
from anyscore.ops.numpy import (  # noqa: F401 (of Ops)
    any,
    arange,
    ceil,
    clip,
    count,
    cumsum,
    index_dtype,
    is_tracing,
    logical_and,
    maximum,
    minimum,
    multiply_words,
    outside_inference,
    stack,
)
from anyscore.ops.words import add_word, words  # noqa: F401 (of Ops)

_self = cast(Ops, sys.modules[__name__])

isfinite = mx.np.isfinite
exp = mx.np.exp
log = mx.np.log
expm1 = mx.np.expm1
log1p = mx.np.log1p
sin = mx.np.sin
cos = mx.np.cos
erf = mx.npx.erf
tanh = mx.np.tanh
sqrt = mx.np.sqrt
abs = mx.np.abs
concat = mx.np.concatenate


def array(x: Any, like: Array) -> Array:
    # A copy: an operator may run after the caller has changed the array.
    return host(x) if isinstance(x, mx.nd.NDArray) else np.array(x)


def tensor(x: Array, like: Array) -> Array:
    return _ours(x, like)


def take(x: Array, index: Array) -> Array:
    if isinstance(x, mx.np.ndarray):  # one index for all leading dimensions
        return mx.np.take(x, mx.np.array(index, dtype="int64", ctx=x.ctx), axis=-1)
    return of_host.take(x, index)


def copy(x: Array) -> Array:
    return x.copy()


def shape(x: Array) -> tuple[int, ...]:
    return tuple(x.shape)


def dtype(x: Array) -> str:
    name = of_host.dtype_name(x.dtype)
    if name == "void16":
        raise TypeError("MXNet has bfloat16 for graphs of its own alone: convert to float32.")
    return name


def device(x: Array) -> str | None:
    if not isinstance(x, mx.nd.NDArray):
        return None
    kind = x.ctx.device_type
    return "cpu" if kind.startswith("cpu") else str(x.ctx)  # one memory under several names


def placement(x: Array) -> Any:
    return device(x), layout_problem(x)


def layout_problem(x: Array) -> str | None:
    kind = getattr(x, "stype", "default")
    return None if kind == "default" else f'sparse ({kind}): pass x.tostype("default")'


def astype(x: Array, dtype: str) -> Array:
    return x if np.dtype(x.dtype) == dtype else x.astype(dtype)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return _of(x).reshape(x, shape)


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    return _of(x).broadcast_to(x, shape)


def transpose(x: Array) -> Array:
    return _of(x).swapaxes(x, -1, -2)


def swapaxes(x: Array, one: int, other: int) -> Array:
    return _of(x).swapaxes(x, one, other)


def logical_not(x: Array) -> Array:
    return _of(x).logical_not(x)


def where(condition: Array, x: Any, y: Any) -> Array:
    ours = [z for z in (x, y, condition) if isinstance(z, mx.np.ndarray)]
    if not ours:
        return of_host.where(condition, x, y)
    like = ours[0] if ours[0] is not condition else None
    x, y = (_filled(z, like) if isinstance(z, bool | int | float) else z for z in (x, y))
    condition, x, y = (_ours(z, ours[0]) for z in (condition, x, y))
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    if 0 not in shape and len(shape) <= 5:
        return mx.np.where(condition, x, y)
    zeros = mx.np.zeros(shape, dtype=x.dtype, ctx=x.ctx)
    if 0 in shape:  # MXNet divides by 0
        return x + y + zeros
    return mx.np.where(*((z + zeros).reshape(-1) for z in (condition, x, y))).reshape(shape)


def matmul(x: Array, y: Array) -> Array:
    # mx.np.matmul reads out of bounds when it broadcasts.
    some = x if isinstance(x, mx.np.ndarray) else y
    x, y, narrow = _ours(x, some), _ours(y, some), dtype(some) == "float16"
    if narrow:  # not on the CPU
        x, y = x.astype("float32"), y.astype("float32")
    *lead, rows, n = x.shape
    *other, _, columns = y.shape
    both = tuple(lead) if not other else np.broadcast_shapes(tuple(lead), tuple(other))
    if 0 in (*both, rows, n, columns):
        made = _nothing(x, y, (*both, rows, columns))
    elif not other:
        made = mx.np.dot(x.reshape(-1, n), y)
    else:
        batch = math.prod(both)
        x = mx.np.broadcast_to(x, (*both, rows, n)).reshape(batch, rows, n)
        y = mx.np.broadcast_to(y, (*both, n, columns)).reshape(batch, n, columns)
        made = mx.npx.batch_dot(x, y)
    made = made.reshape(*both, rows, columns)
    return made.astype("float16") if narrow else made


def sum(x: Array, axis: int, keepdims: bool = False) -> Array:
    return _reduced(mx.np.sum, x, axis, keepdims)


def add_pair(x: Array) -> Array:
    return x[..., 0, :] + x[..., 1, :]  # a sum of −∞ and 0 is NaN


def max(x: Array, axis: int, keepdims: bool = False) -> Array:
    return _reduced(mx.np.max, x, axis, keepdims)


def _reduced(function: Callable[..., Array], x: Array, axis: int, keepdims: bool) -> Array:
    if x.size == 0 and x.shape[axis]:  # MXNet fails for empty results
        x = swapaxes(x, axis, -1)[..., :1]
        return swapaxes(x, axis, -1) if keepdims else x[..., 0]
    return function(x, axis=axis, keepdims=keepdims)


def index_select(x: Array, places: list[int], axis: int) -> Array:
    if isinstance(x, mx.np.ndarray):
        return mx.np.take(x, mx.np.array(places, dtype="int64", ctx=x.ctx), axis=axis)
    return of_host.index_select(x, places, axis)


def stop_gradient(x: Array) -> Array:
    return x.detach() if isinstance(x, mx.np.ndarray) else x


def seed(x: Any, like: Array) -> Array:
    return of_host.seed(array(x, like) if isinstance(x, mx.nd.NDArray) else x, like)


def masked_scores(a: Array, b: Array, mask: Array) -> Array:
    if not autograd.is_recording():
        return masked.scores(_self, a, b, mask)
    return _product(masked.scores, masked.scores_slopes, a, b, mask, b.shape[-2])


def masked_sum(p: Array, v: Array, mask: Array) -> Array:
    if not autograd.is_recording():
        return masked.sum(_self, p, v, mask)
    return _product(masked.sum, masked.sum_slopes, p, v, mask, v.shape[-1])


def _of(x: Array) -> Any:
    """Return the namespace of an array."""
    return mx.np if isinstance(x, mx.np.ndarray) else np


def _ours(x: Array, like: Array) -> Array:
    """Return an array of NumPy or MXNet as an MXNet array on the device of `like`."""
    if isinstance(x, mx.np.ndarray):
        return x
    return mx.np.array(x, dtype=x.dtype, ctx=like.ctx)


def _filled(x: float, like: Array | None) -> Array:
    return np.full(1, x, "float32" if like is None else like.dtype)


def _nothing(x: Array, y: Array, shape: tuple[int, ...]) -> Array:
    """Return a product with an empty dimension: zeros, in the graph of x and y."""
    zero = where(np.zeros(1, bool), mx.np.sum(x) + mx.np.sum(y), 0.0)
    return mx.np.broadcast_to(zero, shape)


def _product(
    value: Callable[..., Array],
    slopes: Callable[..., tuple[Array, Array]],
    x: Array,
    y: Array,
    mask: Array,
    columns: int,
) -> Array:
    """Return a product of `masked` with its derivatives."""
    mask, xp = array(mask, x), cast(Ops, of_host)
    lead = np.broadcast_shapes(x.shape[:-2], y.shape[:-2], mask.shape[:-2])
    form = (*lead, x.shape[-2], columns), dtype(x)

    def forward(inputs: Arrays) -> list[Array]:
        with np.errstate(all="ignore"):
            return [value(xp, *inputs, mask)]

    def backward(inputs: Arrays, outputs: Arrays, upstream: Arrays) -> list[Array]:
        with np.errstate(all="ignore"):
            found = slopes(xp, *inputs, mask, *upstream)
        return [masked.sum_to(xp, d, x.shape) for d, x in zip(found, inputs, strict=True)]

    return call(Operator(2, (form,), forward, backward), [x, y])[0]
