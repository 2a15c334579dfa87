"""Which weights dropout keeps: the same on every device and in every framework.

Weight (batch·head n, row i, column j) is kept if word j mod 4 of Philox4x32-10, at counter
(⌊j/4⌋, i, n mod 2³², ⌊n/2³²⌋) under the 64-bit key `seed`, is at least p·2³². n counts the leading
dimensions of the output in row-major order. Nothing is stored: the backward asks again.

Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 3.3.
"""

from __future__ import annotations

import math
from typing import Any

from anyscore.ops import Array, Ops

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def as_seed(xp: Ops, seed: Any, like: Array) -> Array:
    """A seed as an integer tensor () on the device of `like`; a number is taken modulo 2⁶⁴."""
    if isinstance(seed, int):
        seed = (seed + 2**63) % 2**64 - 2**63
    return xp.astype(xp.array(seed, like=like), "int64")


def philox(xp: Ops, counter: list[Array], key: tuple[Array, Array]) -> list[Array]:
    """Four random 32-bit words for each counter of four words, all in the type of `arange`."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = xp.multiply_words(c0, _MULTIPLIERS[0])
        high1, low1 = xp.multiply_words(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return [c0, c1, c2, c3]


def keep(xp: Ops, seed: Array, p: float, lead: tuple[int, ...], queries: int, keys: int) -> Array:
    """Boolean (*lead, queries, keys), True with probability 1 − p. seed: an integer tensor ()."""
    n = xp.reshape(xp.arange(math.prod(lead), like=seed), (-1, 1, 1))
    i = xp.reshape(xp.arange(queries, like=seed), (1, -1, 1))
    quads = -(-keys // 4)
    j = xp.reshape(xp.arange(quads, like=seed), (1, 1, -1))
    zero = n * 0 + i * 0 + j * 0
    counter = [zero + j, zero + i, zero + (n & _WORD), zero + ((n >> 32) & _WORD)]
    words = philox(xp, counter, (seed & _WORD, (seed >> 32) & _WORD))
    drawn = xp.reshape(xp.stack(words, axis=-1), (math.prod(lead), queries, 4 * quads))
    threshold = min(math.ceil(p * 2.0**32), 2**32)
    return xp.reshape(drawn[..., :keys] >= threshold, (*lead, queries, keys))
