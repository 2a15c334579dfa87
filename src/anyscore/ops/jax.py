"""JAX."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from anyscore.ops import Array, Ops, masked
from anyscore.ops.jax_primitives import Named, linear

_self = cast(Ops, sys.modules[__name__])

logical_and = jnp.logical_and
logical_not = jnp.logical_not
isfinite = jnp.isfinite
exp = jnp.exp
log = jnp.log
expm1 = jnp.expm1
log1p = jnp.log1p
sin = jnp.sin
cos = jnp.cos
erf = jax.scipy.special.erf
tanh = jnp.tanh
sqrt = jnp.sqrt
ceil = jnp.ceil
minimum = jnp.minimum
maximum = jnp.maximum
clip = jnp.clip
where = jnp.where
broadcast_to = jnp.broadcast_to
reshape = jnp.reshape
stack = jnp.stack
concat = jnp.concatenate
sum = jnp.sum
max = jnp.max
any = jnp.any
stop_gradient = jax.lax.stop_gradient
outside_inference = nullcontext


def abs(x: Array) -> Array:
    return x * jnp.sign(x)  # jnp.abs has the derivative 1 at 0


def is_tracing() -> bool:
    return False  # shapes are always numbers


def index_dtype() -> str:
    return str(jax.dtypes.canonicalize_dtype(np.int64).name)


def array(x: Any, like: Array) -> Array:
    if isinstance(x, jax.Array):
        return x
    x = np.asarray(x)
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8 and index_dtype() == "int32":
        x = np.clip(x, -(2**31), 2**31 - 1).astype(np.int32)  # JAX would drop the upper 32 bits
    return jnp.asarray(x)


def tensor(x: Array, like: Array) -> Array:
    return x


def copy(x: Array) -> Array:
    return x


def shape(x: Array) -> tuple[int, ...]:
    return tuple(x.shape)


def dtype(x: Array) -> str:
    return str(x.dtype)


def device(x: Array) -> str | None:
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or not x.committed:
        return None
    return ", ".join(sorted(map(str, x.devices())))


def placement(x: Array) -> Any:
    return device(x), layout_problem(x)


def layout_problem(x: Array) -> str | None:
    if isinstance(x, jax.Array | np.ndarray):
        return None
    name = type(x).__name__
    return f"a sparse {name} array: pass x.todense()" if hasattr(x, "todense") else f"a {name}"


def astype(x: Array, dtype: str) -> Array:
    return x.astype(dtype)


def arange(n: int, like: Array) -> Array:
    return jnp.arange(n, dtype=index_dtype())


def transpose(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)


def swapaxes(x: Array, one: int, other: int) -> Array:
    return jnp.swapaxes(x, one, other)


def matmul(x: Array, y: Array) -> Array:
    # By default accelerators round both factors to 8 or 11 bits.
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)


def add_pair(x: Array) -> Array:
    return x[..., 0, :] + x[..., 1, :]


def cumsum(x: Array) -> Array:
    return jnp.cumsum(x, axis=-1, dtype=index_dtype() if x.dtype == bool else None)


def count(x: Array, n: int) -> Array:
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    row = jnp.arange(len(rows))[:, None]
    counts = jnp.zeros((len(rows), n), x.dtype).at[row, rows].add(1)
    return counts.reshape(*x.shape[:-1], n)


def take(x: Array, index: Array) -> Array:
    lead = jnp.broadcast_shapes(x.shape[:-1], index.shape[:-1])
    x = jnp.broadcast_to(x, (*lead, x.shape[-1]))
    return jnp.take_along_axis(x, jnp.broadcast_to(index, (*lead, index.shape[-1])), axis=-1)


def take_rows(x: Array, index: Array) -> Array:
    return x[..., index, :]


def argsort(x: Array) -> Array:
    return jnp.argsort(x, stable=True)


def segment_sum(x: Array, index: Array, n: int) -> Array:
    return jnp.zeros((*x.shape[:-2], n, x.shape[-1]), x.dtype).at[..., index, :].add(x)


def segment_max(x: Array, index: Array, n: int) -> Array:
    most = jnp.full((*x.shape[:-1], n), -jnp.inf, x.dtype)
    return most.at[..., index].max(jax.lax.stop_gradient(x))


def index_select(x: Array, places: list[int], axis: int) -> Array:
    return jnp.take(x, np.array(places, np.int32), axis=axis)


# Dropout counts in 32-bit words, which JAX has without its option for 64 bits.


def seed(x: Any, like: Array) -> Array:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.bits(x, (2,), np.uint32)
    if isinstance(x, jax.Array):
        return jnp.stack(words(x))
    x = int(x) % 2**64
    return jnp.array([x & 0xFFFFFFFF, x >> 32], np.uint32)


def words(x: Array) -> tuple[Array, Array]:
    if x.dtype == np.uint32 and x.shape == (2,):  # a seed
        return x[0], x[1]
    if x.dtype.itemsize == 8:
        return (x & 0xFFFFFFFF).astype(np.uint32), (x >> 32).astype(np.uint32)
    return x.astype(np.uint32), (x >> 31 if x.dtype.kind == "i" else x * 0).astype(np.uint32)


def add_word(x: Array, n: int) -> Array:
    return x + np.uint32(n)


def multiply_words(x: Array, factor: int) -> tuple[Array, Array]:
    low, high = x & np.uint32(0xFFFF), x >> 16
    by_low, by_high = np.uint32(factor & 0xFFFF), np.uint32(factor >> 16)
    bottom, cross = low * by_low, high * by_low  # each below 2³²
    middle = low * by_high + (bottom >> 16)  # also: 0xFFFF² + 0xFFFF
    middle_low = (middle & np.uint32(0xFFFF)) + (cross & np.uint32(0xFFFF))
    top = high * by_high + (middle >> 16) + (cross >> 16) + (middle_low >> 16)
    return top, x * np.uint32(factor)


# The derivatives of `masked`, of any order and in both modes.


def _product(value: Callable[..., Array], slopes: Callable[..., tuple[Array, Array]]) -> Any:
    """Return a product of `masked` with its derivatives."""
    product = jax.custom_jvp(partial(value, _self))

    def ahead(operands: Any, along: Named) -> list[Array]:
        x, y, mask = operands
        parts = [product(along["x"], y, mask)] if "x" in along else []
        parts += [product(x, along["y"], mask)] if "y" in along else []
        return [functools.reduce(operator.add, parts)]

    def back(operands: Any, upstream: list[Array]) -> dict[str, Array]:
        x, y, _ = operands
        dx, dy = slopes(_self, *operands, *upstream)
        return {"x": masked.sum_to(_self, dx, x.shape), "y": masked.sum_to(_self, dy, y.shape)}

    def forward(operands: Any, tangents: Any) -> tuple[Array, Array]:
        found = product(*operands)
        tangents_by_name = dict(zip("xy", tangents, strict=False))
        return found, linear(ahead, back, operands, tangents_by_name, [found])[0]

    product.defjvp(forward, symbolic_zeros=True)
    return product


masked_scores = _product(masked.scores, masked.scores_slopes)
masked_sum = _product(masked.sum, masked.sum_slopes)
