"""What a growing cache asks of a framework: memory that rows are written to, at places in tensors.

Where tensors can be written to, that happens in place, and what is returned is what was given.
"""

from __future__ import annotations

from typing import Protocol

from anyscore.ops import Array


class Buffers(Protocol):
    """Buffers (..., T, d) of one framework.

    in_place: whether they are written to where they are.
    """

    in_place: bool

    def zeros(self, shape: tuple[int, ...], like: Array, dtype: str | None = None) -> Array:
        """Return zeros on the device of `like`, of its dtype unless another is said."""

    def blank(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return zeros that are never written to, and take no memory where they need none."""

    def number(self, x: Array) -> int | None:
        """Return the integer that x () holds; None where that is not known, or would be waited for.

        So it is while a program is compiled, and on accelerators.
        """

    def numbers(self, x: Array) -> list[int] | None:
        """Return the integers that x (n,) holds, likewise."""

    def why_not(self, *rows: Array) -> str | None:
        """Return why rows cannot be kept, None if they can."""

    def put(self, x: Array, rows: Array, start: Array | int, wraps: bool) -> Array:
        """Return x (..., T, d) with rows (..., n, d) from row `start` () on.

        wraps: whether they go on at its beginning where it ends; else start + n ≤ T.
        """

    def add(self, x: Array, n: int) -> Array:
        """Return the integers x, n more."""

    def pick(self, x: Array, index: Array, rows: int | None) -> Array:
        """Return x with the entries x[index] of its first axis, in as many as it has.

        rows: how many of x (..., T, d) are of interest, None: all.
        """

    def pack(self, pair: str, b: Array, packed: Array, start: Array | int, count: int) -> Array:
        """Return packed with what `kernels.cpu.append_keys` writes to it."""

    def room_to_pack(self, b: Array) -> Array | None:
        """Return room for that, None where the core cannot read b: then nothing is packed."""
