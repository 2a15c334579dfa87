"""JAX: buffers of growing caches; each write returns a new array, in place if x is donated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anyscore.backends.jax import autograd
from anyscore.backends.record import why_not_dtype
from anyscore.kernels.xla import attention as xla
from anyscore.ops import Array, acc_dtype, load

_xp = load("jax")


class JAXBuffers:
    """See `call.backend.Buffers`."""

    in_place = False

    def zeros(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        return jnp.zeros(shape, dtype or like.dtype)

    def empty_view(self, shape: tuple[int, ...], like: Array) -> Array:
        return jnp.zeros(shape, like.dtype)

    def concrete_int(self, x: Array) -> int | None:
        return None if isinstance(x, jax.core.Tracer) else int(x)

    def concrete_ints(self, x: Array) -> list[int] | None:
        return None if isinstance(x, jax.core.Tracer) else [int(n) for n in x]

    def why_not(self, *rows: Array) -> str | None:
        return None

    def write_rows(self, x: Array, rows: Array, start: Array | int, wraps: bool) -> Array:
        n, room = rows.shape[-2], x.shape[-2]
        if not wraps:
            return jax.lax.dynamic_update_slice_in_dim(x, rows, start, axis=-2)
        places = (jnp.arange(n) + start) % max(room, 1)
        return x.at[..., places, :].set(rows, unique_indices=True, mode="promise_in_bounds")

    def add(self, x: Array, n: int) -> Array:
        return x + n

    def reorder_batch(self, x: Array, index: Array, rows: int | None) -> Array:
        index = jnp.where(index < 0, x.shape[0], index)  # negative indices would count from the end
        return jnp.take(x, index, axis=0, mode="fill")

    def pack(self, pair: str, b: Array, packed: Array, start: Array | int, count: int) -> Array:
        still: Any = jax.lax.stop_gradient
        return autograd.append_keys(pair, still(b), still(packed), start, count)

    def packed_buffer(self, b: Array) -> Array | None:
        if xla.problem() or device(b).platform != "cpu" or why_not_dtype(str(b.dtype)):
            return None
        *lead, keys, width = b.shape
        return jnp.zeros((*lead, keys + 1, width), acc_dtype(_xp, b))


def device(x: Array) -> Any:
    """Return the device of x; the default device if x is traced."""
    return jax.devices()[0] if isinstance(x, jax.core.Tracer) else next(iter(x.devices()))
