"""Keys prepared once for many calls; `cache.prepare_keys` returns them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from anyscore.ops import DTYPES, Array, Ops, framework
from anyscore.ops.checks import Sizes, brief, broadcasts, check_devices, find_framework
from anyscore.ops.pytrees import Restored, tree
from anyscore.score.base import Score
from anyscore.score.checks import check_class_of_score, factors_of
from anyscore.score.factors import Factors


def check_held(xp: Ops, owner: str, like: Array, **fields: Array | None) -> None:
    """Check that fields of prepared keys or of a cache are tensors as `like`; None passes.

    Raises:
        TypeError, ValueError: a field is no tensor, or of another framework or device.
    """
    tensors = {f"{owner}.{name}": x for name, x in fields.items() if x is not None}
    for name, x in tensors.items():
        if framework(x) is None:
            raise TypeError(f"{name} is {brief(x)}, expected a tensor.")
    find_framework(query=like, **tensors)
    check_devices(xp, like, **tensors)


def check_keys(xp: Ops, owner: str, tokens: Any, b: Any, key_bias: Array | None) -> None:
    """Check the keys and the key bias of prepared keys or of a cache of this many tokens.

    Raises:
        TypeError, ValueError: they have another number of tokens, or are no floats.
    """
    fields = {"b": (b, -2, "(..., tokens, width)")}
    if key_bias is not None:
        fields["key_bias"] = key_bias, -1, "(..., tokens)"
    for name, (x, axis, expected) in fields.items():
        if framework(x) is None or xp.dtype(x) not in DTYPES:
            got = brief(x) if framework(x) is None else xp.dtype(x)
            raise TypeError(f"{owner}.{name} is {got}, expected one of {', '.join(DTYPES)}.")
        shape = xp.shape(x)
        if len(shape) < -axis or shape[axis] != tokens:
            raise ValueError(
                f"{owner}.{name} has shape {shape}, expected {expected} with {tokens} tokens."
            )


@tree
@dataclass(frozen=True, eq=False)
class PreparedKeys(Restored):
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

    def check(self, xp: Ops, query: Array, sizes: Sizes) -> None:
        """Check the fields for a call: files may hold any, and no constructor checks tracers.

        Raises:
            TypeError, ValueError: a field is no tensor like the query, or does not fit the call.
        """
        check_class_of_score("PreparedKeys.score", self.score)
        fields = {"b": self.b, "key_bias": self.key_bias, "empty_key": self.empty_key}
        check_held(xp, "PreparedKeys", query, **fields)
        check_keys(xp, "PreparedKeys", sizes.keys, self.b, self.key_bias)
        shapes = {"b": xp.shape(self.b)[:-2]}
        if self.key_bias is not None:
            shapes["key_bias"] = xp.shape(self.key_bias)[:-1]
        for name, lead in shapes.items():
            if not broadcasts(lead, sizes.kv_lead):
                raise ValueError(
                    f"PreparedKeys.{name} has the leading dimensions {lead}, expected what "
                    f"broadcasts to {sizes.kv_lead}, those of the keys."
                )
        if self.packed is not None:
            if framework(self.packed) not in (framework(query), "numpy"):  # of core and framework
                raise TypeError(f"PreparedKeys.packed is {brief(self.packed)}, expected a tensor.")
            *of_keys, tokens, width = xp.shape(self.b)
            got, expected = tuple(self.packed.shape), (*of_keys, tokens + 1, width)
            if len(got) != len(expected) or not broadcasts(got, expected):
                raise ValueError(f"PreparedKeys.packed has shape {got}, expected {expected}.")
        if self.empty_key is not None and xp.shape(self.empty_key)[-2:-1] != (0,):
            got = xp.shape(self.empty_key)
            raise ValueError(f"PreparedKeys.empty_key has shape {got}, expected no token.")

    def bind(self, xp: Ops, score: Any, query: Array) -> Factors:
        """Return the factors of the query and these keys; only the query is lowered."""
        if type(score) is not self.score:
            got = type(score).__name__ if isinstance(score, Score) else repr(score)
            raise ValueError(
                f"the keys were prepared for the score {self.score.__name__}, got {got}: prepare "
                "them with prepare_keys(key, score)."
            )
        empty_key = self.key[..., :0, :] if self.empty_key is None else self.empty_key
        f = factors_of(xp, score, query, empty_key)
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
