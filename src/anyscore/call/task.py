"""A call as plain data, which any implementation can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from anyscore.call.prepared import PreparedKeys
from anyscore.call.shards import Sharded
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import AnyLowered, LoweredEdges
from anyscore.modifiers.biases import LoweredBias
from anyscore.modifiers.normalizers import Normalizer, is_shift_invariant
from anyscore.ops import Array, framework
from anyscore.ops.checks import Sizes
from anyscore.score.base import Score
from anyscore.score.factors import Factors

Axes: TypeAlias = tuple[str, ...]
"""Names of the axes of an array after (batch, heads): T_q, T_k, h."""

_QUERIES, _KEYS, _SCORES = ("T_q", "h"), ("T_k", "h"), ("T_q", "T_k")


class Call(NamedTuple):
    """The arguments of `attention` that define the result. value: None for no output.

    across: the layout of the tokens on several ranks, None on one.
    """

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
    across: Any = None


class Options(NamedTuple):
    """The arguments of `attention` that choose the method and the returned values.

    return_scores: whether the scores, from which weights are computed, are returned.
    """

    dropout: float = 0.0
    dropout_seed: Any = None
    return_scores: bool = False
    return_lse: bool = False
    impl: str = "auto"


class Task(NamedTuple):  # a dataclass takes 1 µs more of every call
    """A call as plain data.

    score: factors, or the scores (..., T_q, T_k) of a callable. value: (..., T_k, d_v), None for no
    output. mask: None if no key is masked.
    unread_is_finite: whether rows of tokens that every mask excludes were zeroed, and so are
    finite. Products then need the mask only for a `mask_per_query`, which lets one query attend a
    key and another not.
    dtype: of the output. softcap: see `reference.definition.scores`. packed: see `PreparedKeys`.
    sink: see `modifiers.sinks`; no implementation reads it. biases: none, one, or one before and
    one after an outer function. normalizer: a result of `as_normalizer`. sharded: the shards of a
    call across ranks, None on one rank. The mask then has the keys of the whole sequence, and
    `shard_biases` replaces `biases`.
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
    sharded: Sharded | None = None
    shard_biases: tuple[tuple[LoweredBias, ...], ...] = ()

    @property
    def first(self) -> Array:
        """Return the first factor, or the scores of a callable: an array on the task's device."""
        return self.score.a if isinstance(self.score, Factors) else self.score

    @property
    def edges(self) -> LoweredEdges | None:
        """Return the attended edges of a graph; None if scores are a matrix."""
        return self.mask if isinstance(self.mask, LoweredEdges) else None

    @property
    def boolean(self) -> Array | None:
        """Return the boolean mask of scores; None if no score is masked, and for edges."""
        return self.mask.boolean if isinstance(self.mask, LoweredMask) else None

    def align_with_scores(self, x: Array) -> Array:
        """Return x (..., T_q) in a shape that broadcasts against the scores."""
        edges = self.edges
        return x[..., None] if edges is None else edges.align_with_scores(x)

    def to_caller_order(self, x: Array) -> Array:
        """Return weights or scores in the caller's order of edges; of a matrix unchanged."""
        edges = self.edges
        return x if edges is None else edges.to_caller_order(x)

    @property
    def has_outer(self) -> bool:
        """Return whether scores have an outer function or a cap, which include the query bias."""
        return bool(self.softcap) or getattr(self.score, "outer", None) is not None

    @property
    def query_bias_cancels(self) -> bool:
        """Return whether weights do not depend on a query bias, sinks aside."""
        return not self.has_outer and is_shift_invariant(self.normalizer)

    def map(
        self, function: Callable[[Array, Axes], Array], mask: AnyLowered | None, sizes: Sizes
    ) -> Task:
        """Return the task of the weights alone, with each array x replaced by function(x, axes).

        mask, sizes: for the new task, which has neither values nor packed keys.
        """

        def of(x: Array | None, axes: Axes) -> Any:
            return None if x is None else function(x, axes)

        f, sink, biases = self.score, self.sink, self.biases
        if isinstance(f, Factors):  # key_weight is in the bias of terms already
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
