"""32-bit words for dropout, in frameworks with 64-bit integers."""

from __future__ import annotations

from anyscore.ops import Array

WORD = 0xFFFFFFFF


def signed(x: int) -> int:
    """Return x modulo 2⁶⁴ as an int64 value."""
    return (x + 2**63) % 2**64 - 2**63


def words(x: Array) -> tuple[Array, Array]:
    return x & WORD, (x >> 32) & WORD


def add_word(x: Array, n: int) -> Array:
    return (x + n) & WORD
