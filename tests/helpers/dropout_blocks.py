"""A block of the queries and keys of a longer call with dropout: the record of a kernel and NumPy.

The score is a product, and two query heads share a key head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from anyscore.call.operands import Settings
from anyscore.modifiers.dropout import dropout_mask, last_dropped, philox
from anyscore.ops import load
from helpers.samples import normal

LEAD, GROUPS, KEYS, WIDTH, D_V = (2, 4), 2, 70, 3, 2
QUERIES = 1, 66
"""The numbers of queries: a decoding step, and more than a tile."""
SEED, RATE = (7 << 32) + 11, 0.4
ORIGINS = [(37, 52), (3, 0), (0, 128), (2**31 + 5, 2**31), (2**31, 2**31 + 4)]
"""The first query and the first key of blocks."""
LONGEST = 1000
"""The most queries and keys of a longer call whose mask fits in memory."""

SETTINGS = Settings("product", 0.5, GROUPS, RATE, math.prod(LEAD), LEAD)


class Block(NamedTuple):
    """Arrays of a block: the operands of a record, and the gradient of its output."""

    a: np.ndarray
    b: np.ndarray
    value: np.ndarray
    d_output: np.ndarray


def block(queries: int, dtype: str) -> Block:
    """Return a block of some queries and `KEYS` keys."""
    of_keys = LEAD[0], LEAD[1] // GROUPS, KEYS
    shapes = (*LEAD, queries, WIDTH), (*of_keys, WIDTH), (*of_keys, D_V), (*LEAD, queries, D_V)
    return Block(*(normal(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)))


def kept(queries: int, origin: tuple[int, int]) -> np.ndarray:
    """Return entries [i₀:, j₀:] of the mask of the longer call, (*LEAD, queries, KEYS).

    The mask of a call that is too long is drawn one entry at a time.
    """
    xp, (first_query, first_key) = load("numpy"), origin
    if max(origin) < LONGEST:
        long = first_query + queries, first_key + KEYS
        mask = dropout_mask(xp, xp.seed(SEED, like=np.zeros(())), RATE, LEAD, *long)
        return np.asarray(mask[..., first_query:, first_key:])
    n, i, j = np.ogrid[: math.prod(LEAD), :queries, :KEYS]
    i, j = i + first_query, j + first_key
    counter = list(np.broadcast_arrays(j // 4, i, n, 0))
    words = philox(xp, counter, (np.array(SEED % 2**32), np.array(SEED >> 32)))
    drawn = np.choose(np.broadcast_to(j % 4, words[0].shape), words)
    return (drawn > last_dropped(RATE)).reshape(*LEAD, queries, KEYS)


def defined(x: Block, origin: tuple[int, int]) -> dict[str, np.ndarray]:
    """Return the output and the gradients of a, b and value by the formulas, in float64."""
    a, d_output = x.a.astype(np.float64), x.d_output.astype(np.float64)
    b, value = (np.repeat(y.astype(np.float64), GROUPS, 1) for y in (x.b, x.value))
    scores = SETTINGS.scale * a @ b.swapaxes(-1, -2)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    factors = kept(a.shape[-2], origin) / (1 - RATE)
    dp = factors * (d_output @ value.swapaxes(-1, -2))
    ds = SETTINGS.scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    shared = LEAD[0], LEAD[1] // GROUPS, GROUPS, KEYS
    return {
        "output": (p * factors) @ value,
        "d_a": ds @ b,
        "d_b": (ds.swapaxes(-1, -2) @ a).reshape(*shared, WIDTH).sum(2),
        "d_value": ((p * factors).swapaxes(-1, -2) @ d_output).reshape(*shared, D_V).sum(2),
    }


def assert_drops(found: Mapping[str, np.ndarray], x: Block, origin: tuple[int, int]) -> None:
    """Assert that results drop the entries that the longer call drops, and no others.

    One entry more or less changes its row by far more than rounding.
    """
    double = x.a.dtype == np.float64
    for name, expected in defined(x, origin).items():
        tolerance = 1e-12 if double else 1e-5
        np.testing.assert_allclose(
            found[name],
            expected,
            rtol=tolerance,
            atol=tolerance * abs(expected).max(),
            err_msg=name,
        )
