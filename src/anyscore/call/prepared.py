"""Keys prepared once for many calls; `cache.prepare_keys` returns them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from anyscore.ops import Array, Ops
from anyscore.ops.pytrees import tree
from anyscore.score.base import Score
from anyscore.score.factors import Factors


@tree
@dataclass(frozen=True, eq=False)
class PreparedKeys:
    """Keys with all that a score needs of them; the result of `prepare_keys`.

    Prepared keys are a pytree of their tensors in PyTorch and JAX.

    Attributes:
        key: the keys, (..., T_k, d_k).
        score: the class of the score.
        b: the keys in the score's `Factors`, (..., T_k, h).
        key_bias: the key bias in the score's `Factors`, (..., T_k); None without one.
        packed: the keys packed for the core; None without packing.

    >>> import numpy as np
    >>> from anyscore import Additive, prepare_keys
    >>> prepared = prepare_keys(np.ones((10, 6)), Additive(None, np.ones((8, 6)), np.ones(8)))
    >>> prepared.key.shape, prepared.b.shape                # projected to width 8
    ((10, 6), (10, 8))
    """

    static: ClassVar[tuple[str, ...]] = ("score",)
    derived: ClassVar[tuple[str, ...]] = ("empty_key",)
    key: Array
    score: type[Score]
    b: Array
    key_bias: Array | None
    packed: Array | None
    empty_key: Array | None = None

    def bind(self, xp: Ops, score: Any, query: Array) -> Factors:
        """Return the factors of the query and these keys; only the query is lowered."""
        if type(score) is not self.score:
            got = type(score).__name__ if isinstance(score, Score) else repr(score)
            raise ValueError(
                f"the keys were prepared for the score {self.score.__name__}, got {got}: prepare "
                "them with prepare_keys(key, score)."
            )
        empty_key = self.key[..., :0, :] if self.empty_key is None else self.empty_key
        f = score.lower(xp, query, empty_key)
        if xp.shape(f.a)[-1] != xp.shape(self.b)[-1]:
            raise ValueError(
                f"the keys were prepared for a score of width {xp.shape(self.b)[-1]}, got "
                f"{xp.shape(f.a)[-1]}: prepare them with the parameters that the queries meet."
            )
        beside = f.query_bias, self.key_bias, f.outer, f.key_weight
        return Factors(f.a, self.b, f.pair, f.weight, f.scale, *beside)

    def map(self, function: Callable[[Array], Array]) -> PreparedKeys:
        """Return these keys with a function applied to each differentiable tensor."""
        bias = None if self.key_bias is None else function(self.key_bias)
        empty_key = None if self.empty_key is None else function(self.empty_key)
        key, b = function(self.key), function(self.b)
        return replace(self, key=key, b=b, key_bias=bias, empty_key=empty_key)
