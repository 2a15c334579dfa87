"""The dropout mask: the same on every device and in every framework.

A weight has the index n of its batch and head, in row-major order, its row i and its column j. It
is kept if a word of Philox4x32-10 is at least p·2³². This is word j mod 4, at counter (⌊j/4⌋, i,
n mod 2³², ⌊n/2³²⌋), under the 64-bit key `seed`. No mask is stored: the backward computes it again.

A call may be a block of the queries and keys of a longer one, whose other blocks are on other
machines. Its origin is its first query i₀ and first key j₀ there, and its counter (⌊(j₀ + j)/4⌋, i₀
+ i, …). So blocks drop the entries that the longer call drops. j₀ is a multiple of 4, and i₀ and j₀
are in [0, 2³²).

Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, section 3.3.
"""

from __future__ import annotations

import math

from anyscore.ops import Array, Ops

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85


def philox(xp: Ops, counter: list[Array], key: tuple[Array, Array]) -> list[Array]:
    """Return four random 32-bit words for each counter of four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = xp.multiply_words(c0, _MULTIPLIERS[0])
        high1, low1 = xp.multiply_words(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = xp.add_word(k0, _WEYL[0]), xp.add_word(k1, _WEYL[1])
    return [c0, c1, c2, c3]


def last_dropped(p: float) -> int:
    """Return the largest word whose weight is dropped."""
    return min(math.ceil(p * 2.0**32), 2**32) - 1


def dropout_mask(
    xp: Ops,
    seed: Array,
    p: float,
    lead: tuple[int, ...],
    queries: int,
    keys: int,
    origin: Array | None = None,
) -> Array:
    """Return booleans (*lead, queries, keys), True with probability 1 − p.

    seed: of `xp.seed`. origin: (2,), the first query and key of a block; None for (0, 0).
    """
    quads = -(-keys // 4)
    sizes = math.prod(lead), queries, quads

    def word(x: Array, axis: int) -> Array:
        shape = tuple(sizes[axis] if i == axis else 1 for i in range(3))
        return xp.broadcast_to(xp.reshape(x, shape), sizes)

    n, i, j = (xp.arange(size, like=seed) for size in sizes)
    if origin is not None:
        i, j = i + origin[0], j + origin[1] // 4
    n, i, j = (xp.words(x) for x in (n, i, j))
    counter = [word(j[0], 2), word(i[0], 1), word(n[0], 0), word(n[1], 0)]
    drawn = xp.stack(philox(xp, counter, xp.words(seed)), axis=-1)
    drawn = xp.reshape(drawn, (math.prod(lead), queries, 4 * quads))
    return xp.reshape(drawn[..., :keys] > last_dropped(p), (*lead, queries, keys))
