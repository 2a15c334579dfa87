"""A call as plain data: decided once, executed by any implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from anyscore.call.prepared import PreparedKeys
from anyscore.masks.context import MaskContext
from anyscore.masks.lowered import LoweredMask, zero_unread
from anyscore.masks.lowered_edges import LoweredEdges
from anyscore.masks.objects import Lengths, Mask, as_mask
from anyscore.modifiers.biases import LoweredBias, lower_biases
from anyscore.modifiers.edge_biases import biases_of_edges, biases_of_terms
from anyscore.modifiers.normalizers import Normalizer, as_normalizer, is_shift_invariant
from anyscore.ops import Array, Ops, framework
from anyscore.ops.checks import Sizes
from anyscore.score.base import Score
from anyscore.score.checks import check_scores
from anyscore.score.factors import Factors

Axes: TypeAlias = tuple[str, ...]
"""Names of the last axes of an array, those after (batch, heads): T_q, T_k, h."""

_QUERIES, _KEYS, _SCORES = ("T_q", "h"), ("T_k", "h"), ("T_q", "T_k")

_LEAKING = "bfloat16", "float16"
"""Dtypes whose matrix products may read a row beside: PyTorch's do, on processors with AMX."""


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

    with_scores: whether the scores are wanted, of which weights are made.
    """

    dropout: float = 0.0
    dropout_seed: Any = None
    with_scores: bool = False
    return_lse: bool = False
    impl: str = "auto"


class Task(NamedTuple):  # a dataclass takes 1 µs more of every call
    """A call as plain data.

    score: factors, or the scores (..., T_q, T_k) that a callable gave. value: (..., T_k, d_v), None
    where no output is wanted.
    mask: None if everything is attended. unread_is_finite: whether all that nobody attends is
    finite, so that a key must be kept from a query only where the mask is `mask_per_query`: where
    some key may be attended by one query and not by another. dtype: of the output. softcap: see
    `reference.scores`. packed: see `PreparedKeys`. sink: see `modifiers.sinks`; no
    implementation knows of it. biases: none, one, or one before and one after an outer function.
    normalizer: as `as_normalizer` gives it.
    """

    score: Factors | Array
    value: Array | None
    mask: LoweredMask | None
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
    def has_outer(self) -> bool:
        """Return whether the scores have a cap or another outer function, over a query bias too."""
        return bool(self.softcap) or getattr(self.score, "outer", None) is not None

    @property
    def query_bias_cancels(self) -> bool:
        """Return whether a query bias leaves the weights as they are, sinks apart."""
        return not self.has_outer and is_shift_invariant(self.normalizer)

    def map(
        self, function: Callable[[Array, Axes], Array], mask: LoweredMask | None, sizes: Sizes
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


def prepare(
    xp: Ops,
    call: Call,
    sizes: Sizes,
    prepared: PreparedKeys | None,
    differentiable: Callable[[], bool],
) -> Task:
    """Lower mask and score of a call that was checked; `prepared` stands for its key, if given.

    differentiable: () → whether derivatives may be asked for; it is asked only where that matters.
    Then what nobody may attend is zeroed before it meets parameters, whose gradients sum over all
    tokens. A callable is never given it, nor is a product of half precision.
    """
    query, key, value, score, *_ = call
    dtype = xp.dtype(query)
    biases: tuple[LoweredBias, ...] = ()
    mask = lower_mask(xp, sizes, query, call.mask, call.valid_lens)
    edges = mask if isinstance(mask, LoweredEdges) else None
    if call.bias is not None or call.bias_after is not None:
        if edges is not None:
            biases = biases_of_edges(xp, edges, call.bias, call.bias_after, query, sizes)
        else:
            has = mask is None or mask.has_diagonals
            biases = lower_biases(xp, call.bias, call.bias_after, query, sizes, has)
    of_score = isinstance(score, Score)  # a callable may not be differentiable at 0
    finite, per_query, packed = mask is None, mask is not None, None
    if mask is not None and mask.unread_is_finite and prepared is None:
        finite, per_query = True, mask.per_query
    elif edges is not None and prepared is None and _gathers(xp, query, key, score):
        pass  # what no edge reaches meets nothing
    elif mask is not None and (not of_score or dtype in _LEAKING or differentiable()):
        queries, keys = mask.used
        query, shared = zero_unread(xp, query, queries, 1, of_score)
        if value is not None:
            value, of_values = zero_unread(xp, value, keys, sizes.groups)
            shared = shared or of_values
        if prepared is None:
            key, of_keys = zero_unread(xp, key, keys, sizes.groups, of_score)
            finite, per_query = True, shared or of_keys or mask.per_query
    if prepared is not None:
        lowered: Factors | Array = prepared.bind(xp, score, query)
        packed = prepared.packed
    elif isinstance(score, Score):
        lowered = score.lower(xp, query, key)
    elif edges is not None:
        lowered = edges.call(score, query, key)
    else:
        lowered = _call(xp, score, query, key, sizes)
    if edges is not None:
        _check_terms(xp, edges, lowered)
        biases = biases_of_terms(xp, edges, lowered, biases)
    softcap, normalizer = float(call.softcap), as_normalizer(call.normalizer)
    return Task(
        lowered, value, mask, finite, per_query, sizes, dtype, softcap, packed, call.sink, biases,
        normalizer,
    )  # fmt: skip


def _check_terms(xp: Ops, edges: LoweredEdges, factors: Factors | Array) -> None:
    """Check terms of edges, if there are any, against the factors of a score.

    Raises ValueError, TypeError: they are of another width, or the score is a callable.
    """
    if edges.terms is None:
        return
    if not isinstance(factors, Factors):
        raise TypeError("terms of edges are for score objects, and score is a callable.")
    shape, width = xp.shape(edges.terms), xp.shape(factors.b)[-1]
    if shape[-1] != width:
        raise ValueError(
            f"terms has shape {shape}, expected (..., {edges.count}, {width}): the score "
            f"compares {width} features."
        )


def _gathers(xp: Ops, query: Array, key: Array, score: Any) -> bool:
    """Return whether a score over edges computes nothing of tokens but of those of an edge."""
    if not isinstance(score, Score):
        return True
    query, key = query[..., :1, :], key[..., :1, :]
    f = score.lower(xp, query, key)
    return f.a is query and f.b is key and f.query_bias is None and f.key_bias is None


@dataclass(frozen=True, eq=False)
class Lowered(Mask):
    """A mask that was lowered already, for a call of the same sizes."""

    mask: LoweredMask

    def lower(self, call: MaskContext) -> LoweredMask:
        return self.mask


def combine(mask: Any, valid_lens: Any) -> Mask | None:
    """`mask` and `valid_lens` intersected; None if there is neither."""
    one = None if mask is None else as_mask(mask)
    if valid_lens is None:
        return one
    lengths = Lengths(valid_lens)
    return lengths if one is None else one & lengths


def lower_mask(
    xp: Ops, sizes: Sizes, query: Array, mask: Any, valid_lens: Any
) -> LoweredMask | None:
    """The mask of a call, lowered; None where everything is attended."""
    empty = 0 in sizes.all
    if mask is None and valid_lens is None and not empty:
        return None
    context = MaskContext(xp, query, sizes.lead, sizes.queries, sizes.keys)
    both = combine(mask, valid_lens)
    lowered = context.lowered() if both is None else both.lower(context)
    if isinstance(lowered, LoweredEdges):
        return lowered
    if empty:  # nobody attends anything, whatever the mask
        lowered = Lengths(0).lower(context)
    return lowered if lowered.some else None


def _call(
    xp: Ops, score: Callable[[Array, Array], Array], query: Array, key: Array, sizes: Sizes
) -> Array:
    """The scores that a callable gives; grouped heads come to it as an axis of their own."""
    if sizes.groups == 1:
        scores = score(query, key)
    else:
        scores = score(
            split_heads(xp, query, sizes.groups, True), split_heads(xp, key, sizes.groups, False)
        )
        shape = xp.shape(scores) if framework(scores) else ()
        if len(shape) > 4:
            scores = xp.reshape(scores, (*shape[:-4], shape[-4] * shape[-3], *shape[-2:]))
    check_scores(xp, scores, query, sizes)
    return scores


def split_heads(xp: Ops, x: Array, groups: int, of_query: bool, axis: int = -3) -> Array:
    """The heads axis of x as two: (kv heads, groups) of a query's x, (kv heads, 1) of a key's.

    A heads axis of 1, or none, is left to broadcast.
    """
    shape = xp.shape(x)
    if groups == 1 or len(shape) < -axis:
        return x
    axis += len(shape)
    heads = shape[axis]
    split = (1, 1) if heads == 1 else (heads // groups, groups) if of_query else (heads, 1)
    return xp.reshape(x, (*shape[:axis], *split, *shape[axis + 1 :]))
