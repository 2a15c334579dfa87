"""The one form that every score takes.

    s(q, k) = φ(scale · Σ_d weight_d · pair(a_d, b_d) + query_bias + key_bias)

with a = A(q) and b = B(k), of tokens alone.

A and B are cheap maps of single tokens; only `pair` costs queries × keys × width, and there are few
pairs: see `pairs`. A score lowers itself to `Factors`; the reference and every kernel take nothing
else.
"""

from __future__ import annotations

from typing import NamedTuple

from anyscore.ops import Array
from anyscore.score.outer import Outer
from anyscore.score.pairs import Pair


class Factors(NamedTuple):  # a dataclass takes 1 µs more of every call
    """A score of all queries and keys, before the sum over the width h is taken.

    a (..., T_q, h), b (..., T_k, h); pair; weight (..., h), or None for 1: leading dimensions, if
    any, are those of a (heads may have their own); scale, a number; query_bias (..., T_q) and
    key_bias (..., T_k), or None for 0; outer, φ, or None for the identity. key_weight (..., h, 1),
    where key_bias is b · key_weight, as a part of the pair's sum: terms of edges meet it too.
    """

    a: Array
    b: Array
    pair: Pair
    weight: Array | None = None
    scale: float = 1.0
    query_bias: Array | None = None
    key_bias: Array | None = None
    outer: Outer | None = None
    key_weight: Array | None = None
