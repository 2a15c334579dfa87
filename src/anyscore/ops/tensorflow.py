"""TensorFlow, executed eagerly or traced; unknown lengths in a trace are `Size`."""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

import numpy as np
import tensorflow as tf

from anyscore.ops import Array, Ops, masked
from anyscore.ops.tensorflow_segments import (  # noqa: F401 (of Ops)
    argsort,
    segment_max,
    segment_sum,
    take_rows,
)
from anyscore.ops.tensorflow_size import Size
from anyscore.ops.words import WORD, add_word, signed  # noqa: F401 (of Ops)

_self = cast(Ops, sys.modules[__name__])
_raw = tf.raw_ops

logical_and = tf.logical_and
logical_not = tf.logical_not
isfinite = tf.math.is_finite
exp = tf.exp
log = tf.math.log
expm1 = tf.math.expm1
log1p = tf.math.log1p
sin = tf.sin
cos = tf.cos
erf = tf.math.erf
tanh = tf.tanh
sqrt = tf.sqrt
abs = tf.abs
minimum = tf.minimum
maximum = tf.maximum
stack = tf.stack
concat = tf.concat
stop_gradient = tf.stop_gradient
outside_inference = nullcontext


def where(condition: Array, x: Any, y: Any) -> Array:
    # A number takes the dtype of the other tensor; graphs would convert it to float32.
    if hasattr(y, "dtype") and not hasattr(x, "dtype"):
        x = tf.constant(x, y.dtype)
    elif isinstance(x, Size):
        x = tf.convert_to_tensor(x, y.dtype)
    return tf.where(condition, x, y)


def is_tracing() -> bool:
    return not tf.executing_eagerly()


def index_dtype() -> str:
    return "int64"


def array(x: Any, like: Array) -> Array:
    if isinstance(x, tf.Tensor | tf.Variable):
        return tf.convert_to_tensor(x)
    return tf.convert_to_tensor(np.asarray(x))  # a list of integers as int64


def tensor(x: Array, like: Array) -> Array:
    return x


def copy(x: Array) -> Array:
    return tf.identity(x)


def shape(x: Array) -> tuple[int, ...]:
    try:
        static = tuple(x.shape)
    except ValueError:
        raise ValueError(
            "a tensor is of unknown rank here: state its shape, as by tf.ensure_shape(x, [None, "
            "None, 64])."
        ) from None
    if None in static:
        if not isinstance(x, tf.Tensor | tf.Variable):
            raise TypeError(f"a tensor is a {type(x).__name__}, expected a dense one and lengths.")
        return tuple(cast(int, Size.of(x, i)) if n is None else n for i, n in enumerate(static))
    return static


def dtype(x: Array) -> str:
    return x.dtype if isinstance(x.dtype, str) else str(x.dtype.name)  # a string in Keras


def device(x: Array) -> str | None:
    return None  # TensorFlow moves tensors to the device of an operation


def placement(x: Array) -> Any:
    return device(x), layout_problem(x)


def layout_problem(x: Array) -> str | None:
    if isinstance(x, tf.RaggedTensor):
        return "ragged: pass x.to_tensor() and valid_lens=x.row_lengths()"
    if isinstance(x, tf.SparseTensor):
        return "sparse: pass tf.sparse.to_dense(x)"
    if isinstance(x, tf.IndexedSlices):
        return "an IndexedSlices: pass tf.convert_to_tensor(x)"
    return None


def astype(x: Array, dtype: str) -> Array:
    return tf.cast(x, _DTYPES.get(dtype, dtype))


def arange(n: int, like: Array) -> Array:
    return tf.range(tf.cast(n, tf.int64)) if isinstance(n, Size) else tf.range(n, dtype=tf.int64)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return _raw.Reshape(tensor=x, shape=integers(tuple(shape)))


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    return _raw.BroadcastTo(input=x, shape=integers(tuple(shape)))


def transpose(x: Array) -> Array:
    return swapaxes(x, -1, -2)


def swapaxes(x: Array, one: int, other: int) -> Array:
    axes = list(range(len(x.shape)))
    axes[one], axes[other] = axes[other], axes[one]
    return _raw.Transpose(x=x, perm=integers(tuple(axes)))


def ceil(x: Array) -> Array:
    return tf.math.ceil(x) if x.dtype.is_floating else x


def clip(x: Array, low: int, high: int) -> Array:
    return tf.maximum(tf.minimum(x, high), low)


def sum(x: Array, axis: int, keepdims: bool = False) -> Array:
    return tf.reduce_sum(x, axis=axis, keepdims=keepdims)


def add_pair(x: Array) -> Array:
    return x[..., 0, :] + x[..., 1, :]


def max(x: Array, axis: int, keepdims: bool = False) -> Array:
    return tf.reduce_max(x, axis=axis, keepdims=keepdims)


def any(x: Array, axis: int, keepdims: bool = False) -> Array:
    return tf.reduce_any(x, axis=axis, keepdims=keepdims)


def matmul(x: Array, y: Array) -> Array:
    if len(x.shape) == len(y.shape) == 2:
        return _raw.MatMul(a=x, b=y)
    *lead, n = shape(x)
    shared = all(size == 1 for size in tuple(y.shape)[:-2])
    if not shared or (len(y.shape) == 2 and math.prod(lead[:-1]) == 1):
        if _misread(x, y):
            both = tf.broadcast_dynamic_shape(tf.shape(x)[:-2], tf.shape(y)[:-2])
            size = y.shape[-2:]
            y = tf.broadcast_to(y, tf.concat([both, tf.shape(y)[-2:]], 0))
            y = tf.ensure_shape(y, [None, None, *size])
        return _raw.BatchMatMulV2(x=x, y=y)
    # One product; TensorFlow would compute one per batch entry, and sum as many gradients of y.
    width = shape(y)[-1]
    product = _raw.MatMul(a=reshape(x, (math.prod(lead), n)), b=reshape(y, (n, width)))
    first = (1,) * (len(y.shape) - len(x.shape))
    return reshape(product, (*first, *lead, width))


def _misread(x: Array, y: Array) -> bool:
    """Return whether the unknown B of y (B, 1, m, n) may be 1, one matrix for all of x.

    With oneDNN, TensorFlow 2.21 reads beyond such a y and corrupts the heap (its issue 117700).
    """
    four = len(x.shape) == 4 >= len(y.shape)
    return four and x.shape[1] in (1, None) and set(y.shape[:-2]) <= {1, None}


def cumsum(x: Array) -> Array:
    return tf.cumsum(tf.cast(x, tf.int64) if x.dtype == tf.bool else x, axis=-1)


def count(x: Array, n: int) -> Array:
    *lead, m = shape(x)
    rows = math.prod(lead)
    cells = reshape(x, (rows, m)) + n * arange(rows, x)[:, None]
    ones = tf.ones_like(cells)
    return reshape(tf.math.unsorted_segment_sum(ones, cells, rows * n), (*lead, n))


def take(x: Array, index: Array) -> Array:
    *lead, n = shape(x)
    *other, m = shape(index)
    rank = builtins.max(len(lead), len(other))
    pairs = zip(_padded(lead, rank), _padded(other, rank), strict=True)
    both = [i if j == 1 else j for i, j in pairs]
    x, index = broadcast_to(x, (*both, n)), broadcast_to(index, (*both, m))
    return tf.gather(x, index, axis=-1, batch_dims=rank)


def index_select(x: Array, places: list[int], axis: int) -> Array:
    return tf.gather(x, places, axis=axis)


def seed(x: Any, like: Array) -> Array:
    return tf.cast(tf.constant(signed(x), tf.int64) if isinstance(x, int) else x, tf.int64)


def words(x: Array) -> tuple[Array, Array]:
    return x & WORD, _upper(x)


def multiply_words(x: Array, factor: int) -> tuple[Array, Array]:
    # int64 products wrap around; their low 64 bits are those of the unsigned product.
    product = x * factor
    return _upper(product), product & WORD


def _upper(x: Array) -> Array:
    return tf.bitwise.right_shift(x, tf.constant(32, tf.int64)) & WORD


def masked_scores(a: Array, b: Array, mask: Array) -> Array:
    return custom_gradient(_scores, a, b, mask)


def masked_sum(p: Array, v: Array, mask: Array) -> Array:
    return custom_gradient(_sum, p, v, mask)


def custom_gradient(function: Callable[..., Any], *xs: Array) -> Any:
    """Return the value of `function` at xs; it returns (value, function of its derivative)."""
    eager = tf.executing_eagerly()

    def of_this_graph(*xs: Array) -> Any:
        # Derivatives of higher order are traced in separate graphs; only operations bring tensors
        # there.
        return function(*(xs if eager else map(tf.identity, xs)))

    return tf.custom_gradient(of_this_graph)(*map(tf.convert_to_tensor, xs))


def _product(value: Callable[..., Array], slopes: Callable[..., tuple[Array, Array]]) -> Any:
    """Return a product of `masked` with its derivatives."""

    def product(x: Array, y: Array, mask: Array) -> tuple[Array, Callable[..., Any]]:
        def backward(upstream: Array) -> tuple[Array, Array, None]:
            dx, dy = slopes(_self, x, y, mask, upstream)
            return masked.sum_to(_self, dx, shape(x)), masked.sum_to(_self, dy, shape(y)), None

        return value(_self, x, y, mask), backward

    return product


_scores = _product(masked.scores, masked.scores_slopes)
_sum = _product(masked.sum, masked.sum_slopes)


def _padded(lead: list[int], rank: int) -> list[int]:
    return [1] * (rank - len(lead)) + lead


_DTYPES = {"float32": tf.float32, "float64": tf.float64, "int64": tf.int64}


def integers(shape: tuple[int, ...]) -> Any:
    """Return sizes or axes as arguments of operations."""
    if builtins.any(isinstance(n, Size) for n in shape):
        return tf.stack([n.tensor() if isinstance(n, Size) else n for n in shape])
    return _constant(shape) if tf.executing_eagerly() else tf.constant(shape, tf.int32)


@lru_cache(maxsize=1000)
def _constant(shape: tuple[int, ...]) -> Any:
    return tf.constant(shape, tf.int32)  # lists cost more than most operations
