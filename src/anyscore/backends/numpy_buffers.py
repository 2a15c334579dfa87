"""NumPy: buffers of growing caches, written in place."""

from __future__ import annotations

import numpy as np

from anyscore.backends import host
from anyscore.backends.record import why_not_dtype
from anyscore.kernels import cpu
from anyscore.ops import Array, load

_xp = load("numpy")


class NumPyBuffers:
    """See `buffers.Buffers`."""

    in_place = True

    def zeros(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        return np.zeros(shape, dtype or like.dtype)

    def blank(self, shape: tuple[int, ...], like: Array) -> Array:
        return np.broadcast_to(np.zeros((), like.dtype), shape)

    def number(self, x: Array) -> int | None:
        return int(x)

    def numbers(self, x: Array) -> list[int] | None:
        return [int(n) for n in x]

    def why_not(self, *rows: Array) -> str | None:
        return None

    def put(self, x: Array, rows: Array, start: Array | int, wraps: bool) -> Array:
        n, room = rows.shape[-2], x.shape[-2]
        first = int(start) % room if room else 0
        if first + n <= room:
            x[..., first : first + n, :] = rows
        else:
            x[..., (first + np.arange(n)) % room, :] = rows
        return x

    def add(self, x: Array, n: int) -> Array:
        x += n
        return x

    def pick(self, x: Array, index: Array, rows: int | None) -> Array:
        x[..., :rows, :] = x[..., :rows, :][index]
        return x

    def pack(self, pair: str, b: Array, packed: Array, start: Array | int, count: int) -> Array:
        cpu.append_keys(pair, host.raw(b), packed, int(start), count, host.threads())
        return packed

    def room_to_pack(self, b: Array) -> Array | None:
        if why_not_dtype(_xp.dtype(b)):
            return None
        *lead, keys, width = b.shape
        return np.zeros((*lead, keys + 1, width), host.acc_dtype(b))
