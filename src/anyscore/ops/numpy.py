"""NumPy."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

import numpy as np

from anyscore.ops import Array, Ops, masked
from anyscore.ops.words import add_word, signed, words  # noqa: F401 (of Ops)

_self = cast(Ops, sys.modules[__name__])

logical_and = np.logical_and
logical_not = np.logical_not
isfinite = np.isfinite
exp = np.exp
log = np.log
expm1 = np.expm1
log1p = np.log1p
sin = np.sin
cos = np.cos
tanh = np.tanh
sqrt = np.sqrt
abs = np.abs
ceil = np.ceil
minimum = np.minimum
maximum = np.maximum
broadcast_to = np.broadcast_to
reshape = np.reshape
stack = np.stack
concat = np.concatenate
outside_inference = nullcontext


def is_tracing() -> bool:
    return False


def where(condition: Array, x: Any, y: Any) -> Array:
    # A number takes the dtype of the array; NumPy itself would widen bfloat16.
    if isinstance(x, float) and isinstance(y, np.ndarray):
        x = y.dtype.type(x)
    if isinstance(y, float) and isinstance(x, np.ndarray):
        y = x.dtype.type(y)
    return np.where(condition, x, y)


_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(x.dtype)  # one by one: NumPy has no erf


def index_dtype() -> str:
    return "int64"


def array(x: Any, like: Array) -> Array:
    return np.asarray(x)


def tensor(x: Array, like: Array) -> Array:
    return x


def copy(x: Array) -> Array:
    return x.copy()


def device(x: Array) -> Any:
    return None


def placement(x: Array) -> Any:
    return None


def layout_problem(x: Array) -> str | None:
    if isinstance(x, np.ma.MaskedArray):
        return "a masked array, whose mask is True where Keys(keep) is False: pass x.data"
    if isinstance(x, np.matrix):
        return "a matrix, whose * is a product of matrices: pass np.asarray(x)"
    return None


def shape(x: Array) -> tuple[int, ...]:
    return tuple(x.shape)


@lru_cache(maxsize=64)
def dtype_name(dtype: Any) -> str:
    """Return the name of a NumPy dtype, cached: NumPy takes 2 µs to build it."""
    return str(np.dtype(dtype).name)


def dtype(x: Array) -> str:
    return dtype_name(x.dtype)


def astype(x: Array, dtype: str) -> Array:
    return x.astype(dtype, copy=False)


def arange(n: int, like: Array) -> Array:
    return np.arange(n, dtype=np.int64)


def transpose(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def swapaxes(x: Array, one: int, other: int) -> Array:
    return np.swapaxes(x, one, other)


def clip(x: Array, low: int, high: int) -> Array:
    return np.clip(x, low, high)


def matmul(x: Array, y: Array) -> Array:
    # For one column BLAS adds hundreds of terms in sequence; NumPy's sums are pairwise. In half
    # precision these sums would round each product, and NumPy's own loop does not.
    if y.shape[-1] == 1 and x.dtype.itemsize > 2:
        return sum(np.multiply(x, np.swapaxes(y, -1, -2), order="C"), axis=-1, keepdims=True)
    # NumPy adds terms in sequence, slowly, if BLAS cannot take the arrays.
    return np.matmul(*(z if all(z.strides[-2:]) else np.ascontiguousarray(z) for z in (x, y)))


def sum(x: Array, axis: int, keepdims: bool = False) -> Array:
    # Sums are pairwise along an axis that is dense in memory, and in sequence along others.
    if axis == -1 and x.strides[-1:] != (x.itemsize,):
        x = np.ascontiguousarray(x)
    return np.sum(x, axis=axis, keepdims=keepdims)


def add_pair(x: Array) -> Array:
    return x[..., 0, :] + x[..., 1, :]


def max(x: Array, axis: int, keepdims: bool = False) -> Array:
    return np.max(x, axis=axis, keepdims=keepdims)


def any(x: Array, axis: int, keepdims: bool = False) -> Array:
    return np.any(x, axis=axis, keepdims=keepdims)


def cumsum(x: Array) -> Array:
    return np.cumsum(x, axis=-1)


def count(x: Array, n: int) -> Array:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    cells = rows + n * np.arange(len(rows))[:, None]
    return np.bincount(cells.ravel(), minlength=n * len(rows)).reshape(*x.shape[:-1], n)


def take(x: Array, index: Array) -> Array:
    lead = np.broadcast_shapes(x.shape[:-1], index.shape[:-1])
    x = np.broadcast_to(x, (*lead, x.shape[-1]))
    return np.take_along_axis(x, np.broadcast_to(index, (*lead, index.shape[-1])), axis=-1)


def index_select(x: Array, places: list[int], axis: int) -> Array:
    return np.take(x, places, axis=axis)


def take_rows(x: Array, index: Array) -> Array:
    return x[..., index, :]


def argsort(x: Array) -> Array:
    return np.argsort(x, kind="stable")


def segment_sum(x: Array, index: Array, n: int) -> Array:
    sums = np.zeros((n, *x.shape[:-2], x.shape[-1]), x.dtype)
    np.add.at(sums, index, np.moveaxis(x, -2, 0))
    return np.moveaxis(sums, 0, -2)


def segment_max(x: Array, index: Array, n: int) -> Array:
    most = np.full((n, *x.shape[:-1]), -np.inf, x.dtype)
    np.maximum.at(most, index, np.moveaxis(x, -1, 0))
    return np.moveaxis(most, 0, -1)


def stop_gradient(x: Array) -> Array:
    return x


def seed(x: Any, like: Array) -> Array:
    x = signed(x) if isinstance(x, int) else x
    return np.asarray(x).astype(np.int64)


def multiply_words(x: Array, factor: int) -> tuple[Array, Array]:
    product = x.astype(np.uint64) * np.uint64(factor)
    return (product >> np.uint64(32)).astype(np.int64), (product & np.uint64(0xFFFFFFFF)).astype(
        np.int64
    )


def masked_scores(a: Array, b: Array, mask: Array) -> Array:
    return masked.scores(_self, a, b, mask)


def masked_sum(p: Array, v: Array, mask: Array) -> Array:
    return masked.sum(_self, p, v, mask)
