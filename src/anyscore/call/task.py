"""A call as plain data: decided once, executed by any implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from anyscore.call.prepared import PreparedKeys
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import AnyLowered, LoweredEdges
from anyscore.modifiers.biases import LoweredBias
from anyscore.modifiers.normalizers import Normalizer, is_shift_invariant
from anyscore.ops import Array, framework
from anyscore.ops.checks import Sizes
from anyscore.score.base import Score
from anyscore.score.factors import Factors

Axes: TypeAlias = tuple[str, ...]
"""Names of the last axes of an array, those after (batch, heads): T_q, T_k, h."""

_QUERIES, _KEYS, _SCORES = ("T_q", "h"), ("T_k", "h"), ("T_q", "T_k")


class Call(NamedTuple):
    """The arguments of `attention` that say what is computed. value: None if no output is."""

    query: Array
    key: Array | PreparedKeys
    value: Array | None
    score: Score | Callable[[Array, Array], Array]
    mask: Any = None
    valid_lens: Any = None
    softcap: float = 0.0
    sink: Any = None
    bias: Any = None
    bias_after: Any = None
    normalizer: Any = "softmax"


class Options(NamedTuple):
    """The arguments of `attention` that say how, and what is returned.

    return_scores: whether the scores are wanted, of which weights are made.
    """

    dropout: float = 0.0
    dropout_seed: Any = None
    return_scores: bool = False
    return_lse: bool = False
    impl: str = "auto"


class Task(NamedTuple):  # a dataclass takes 1 µs more of every call
    """A call as plain data.

    score: factors, or the scores (..., T_q, T_k) that a callable gave. value: (..., T_k, d_v), None
    where no output is wanted. mask: None if everything is attended.
    unread_is_finite: whether all that nobody attends is finite, since its rows were zeroed. A key
    must then be kept from a query only if the mask is `mask_per_query`: if one query may attend a
    key and another may not.
    dtype: of the output. softcap: see `reference.definition.scores`. packed: see `PreparedKeys`.
    sink: see `modifiers.sinks`; no implementation knows of it. biases: none, one, or one before
    and one after an outer function. normalizer: as `as_normalizer` gives it.
    """

    score: Factors | Array
    value: Array | None
    mask: AnyLowered | None
    unread_is_finite: bool
    mask_per_query: bool
    sizes: Sizes
    dtype: str
    softcap: float = 0.0
    packed: Array | None = None
    sink: Any = None
    biases: tuple[LoweredBias, ...] = ()
    normalizer: Normalizer = "softmax"

    @property
    def edges(self) -> LoweredEdges | None:
        """Return the edges of a graph that are attended, None where scores are a matrix."""
        return self.mask if isinstance(self.mask, LoweredEdges) else None

    @property
    def boolean(self) -> Array | None:
        """Return which scores are attended, boolean; None if all are, as those of edges."""
        return self.mask.boolean if isinstance(self.mask, LoweredMask) else None

    def align_with_scores(self, x: Array) -> Array:
        """Return numbers (..., T_q) so that they broadcast against the scores."""
        edges = self.edges
        return x[..., None] if edges is None else edges.align_with_scores(x)

    def to_caller_order(self, x: Array) -> Array:
        """Return weights or scores in the order of the caller, who may list edges in any."""
        edges = self.edges
        return x if edges is None else edges.to_caller_order(x)

    @property
    def has_outer(self) -> bool:
        """Return whether the scores have a cap or another outer function, over a query bias too."""
        return bool(self.softcap) or getattr(self.score, "outer", None) is not None

    @property
    def query_bias_cancels(self) -> bool:
        """Return whether a query bias leaves the weights as they are, sinks apart."""
        return not self.has_outer and is_shift_invariant(self.normalizer)

    def map(
        self, function: Callable[[Array, Axes], Array], mask: AnyLowered | None, sizes: Sizes
    ) -> Task:
        """Return the task of the weights alone: each x becomes function(x, axes).

        mask, sizes: of the new task, which has neither values nor packed keys.
        """

        def of(x: Array | None, axes: Axes) -> Any:
            return None if x is None else function(x, axes)

        f, sink, biases = self.score, self.sink, self.biases
        if isinstance(f, Factors):  # whose key_weight has met the terms of edges
            a, b = function(f.a, _QUERIES), function(f.b, _KEYS)
            weight, query_bias = of(f.weight, ("h",)), of(f.query_bias, ("T_q",))
            key_bias = of(f.key_bias, ("T_k",))
            f = Factors(a, b, f.pair, weight, f.scale, query_bias, key_bias, f.outer)
        else:
            f = function(f, _SCORES)
        if sink is not None and framework(sink):
            sink = function(sink, ())
        if biases:
            biases = tuple(x._replace(array=function(x.array, _SCORES)) for x in biases)
        # Spelled out: `_replace` takes 1 µs more of every call.
        return Task(
            f, None, mask, self.unread_is_finite, self.mask_per_query, sizes, self.dtype,
            self.softcap, None, sink, biases, self.normalizer,
        )  # fmt: skip
