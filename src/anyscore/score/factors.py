"""The one form that every score takes.

    s(q, k) = φ(scale · Σ_d weight_d · pair(a_d, b_d) + query_bias + key_bias)

with a = A(q) and b = B(k).

A and B are cheap maps of single tokens; only `pair` costs queries × keys × width. There are few
pairs: see `pairs`. A score lowers itself to `Factors`, the only form that the reference and the
kernels take.
"""

from __future__ import annotations

from typing import NamedTuple

from anyscore.ops import Array
from anyscore.score.outer import Outer
from anyscore.score.pairs import Pair


class Factors(NamedTuple):  # a dataclass takes 1 µs more of every call
    """A score of all queries and keys, before the sum over the width h is taken.

    a: (..., T_q, h). b: (..., T_k, h). weight: (..., h), with leading dimensions of a (heads may
    differ), or None for 1. scale: a number. query_bias: (..., T_q), or None for 0. key_bias: (...,
    T_k), or None for 0. outer: φ, or None for the identity. key_weight: (..., h, 1), if key_bias =
    b · key_weight is part of the pair's sum, else None. Terms of edges are multiplied by key_weight
    too.
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
