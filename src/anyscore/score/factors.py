"""The one form that every score takes: `Factors`.

A score lowers itself to `Factors`, the only form that the reference and the kernels take. There
are few pairs: see `pairs`.
"""

from __future__ import annotations

from typing import NamedTuple

from anyscore.ops import Array
from anyscore.score.outer import Outer
from anyscore.score.pairs import Pair


class Factors(NamedTuple):  # a dataclass takes 1 µs more of every call
    """One form of every score, before the sum over the width h is taken.

        s(q, k) = φ(scale · Σ_d weight_d · pair(a_d, b_d) + query_bias + key_bias)

    a = A(q) and b = B(k) are cheap maps of single tokens. Only `pair` costs queries × keys ×
    width.

    Args:
        a: (..., T_q, h).
        b: (..., T_k, h).
        pair: a `Pair`, the elementwise function of a_d and b_d.
        weight: (..., h), with leading dimensions of a; heads may differ. By default None, for 1.
        scale: a number. By default 1.
        query_bias: (..., T_q). By default None, for 0.
        key_bias: (..., T_k). By default None, for 0.
        outer: φ, an `Outer`. By default None, for the identity.
        key_weight: (..., h, 1), if key_bias = b · key_weight is part of the pair's sum. Terms of
            edges are then multiplied by key_weight too. By default None.

    >>> import numpy as np
    >>> from anyscore import Gaussian
    >>> from anyscore.ops import load
    >>> factors = Gaussian(sigma=2.0).lower(load("numpy"), np.ones((3, 4)), np.ones((5, 4)))
    >>> factors.pair.name, factors.scale                    # −‖q − k‖² / (2σ²)
    ('squared', -0.125)
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
