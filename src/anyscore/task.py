"""A call as plain data: decided once, executed by any implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyscore.checks import Sizes
from anyscore.factors import Factors
from anyscore.intervals import Call, LoweredMask
from anyscore.masks import Lengths, Mask, as_mask
from anyscore.ops import Array, Ops, framework
from anyscore.score import Score
from anyscore.score_checks import check_scores
from anyscore.unread import zero

if TYPE_CHECKING:
    from anyscore.cache import PreparedKeys


_LEAKING = "bfloat16", "float16"
"""Dtypes whose matrix products may read a row beside: PyTorch's do, on processors with AMX."""


@dataclass(frozen=True, eq=False)
class Task:
    """What to compute.

    score: factors, or the scores (..., T_q, T_k) that a callable gave. value (..., T_k, d_v).
    attendable: the lowered mask, None if there is none. zeroed: whether all that nobody attends is
    zero, so that a key must be kept from a query only where the mask is `mixed`: where some key may
    be attended by one query and not by another. dtype: of the output. packed: see `PreparedKeys`.
    """

    score: Factors | Array
    value: Array
    attendable: LoweredMask | None
    zeroed: bool
    mixed: bool
    sizes: Sizes
    dtype: str
    packed: Array | None = None


def prepare(
    xp: Ops,
    sizes: Sizes,
    query: Array,
    key: Array,
    value: Array,
    score: Score | Callable[[Array, Array], Array],
    mask: Any,
    valid_lens: Any,
    differentiable: bool,
    prepared: PreparedKeys | None = None,
) -> Task:
    """Lower mask and score of a call that was checked.

    differentiable: whether derivatives may be asked for. Then what nobody may attend is zeroed
    before it meets parameters, whose gradients sum over all tokens. A callable is never given it,
    nor is a product of half precision.
    """
    dtype = xp.dtype(query)
    attendable = lower(xp, sizes, query, mask, valid_lens)
    zeroed, mixed = attendable is None, attendable is not None
    careful = differentiable or not isinstance(score, Score) or dtype in _LEAKING
    if attendable is not None and careful:
        finite = isinstance(score, Score)  # a callable may not be differentiable at 0
        queries, keys = attendable.used(xp, sizes.keys)
        query, _ = zero(xp, query, queries, 1, finite)
        value, shared_values = zero(xp, value, keys, sizes.groups)
        if prepared is None:
            key, shared_keys = zero(xp, key, keys, sizes.groups, finite)
            mixed = shared_keys or shared_values or attendable.per_query(xp)
            zeroed = True
    if prepared is not None:
        f, packed = prepared.bind(xp, score, query), prepared.packed
        return Task(f, value, attendable, zeroed, mixed, sizes, dtype, packed)
    if isinstance(score, Score):
        lowered: Factors | Array = score.lower(xp, query, key)
    else:
        lowered = _call(xp, score, query, key, sizes)
    return Task(lowered, value, attendable, zeroed, mixed, sizes, dtype)


@dataclass(frozen=True, eq=False)
class Lowered(Mask):
    """A mask that was lowered already, for a call of the same sizes."""

    attendable: LoweredMask

    def lower(self, call: Call) -> LoweredMask:
        return self.attendable


def combine(mask: Any, valid_lens: Any) -> Mask | None:
    """`mask` and `valid_lens` intersected; None if there is neither."""
    one = None if mask is None else as_mask(mask)
    if valid_lens is None:
        return one
    lengths = Lengths(valid_lens)
    return lengths if one is None else one & lengths


def lower(xp: Ops, sizes: Sizes, query: Array, mask: Any, valid_lens: Any) -> LoweredMask | None:
    """The mask of a call, lowered; None where everything is attended."""
    call = Call(xp, query, sizes.lead, sizes.queries, sizes.keys)
    both = combine(mask, valid_lens)
    attendable = LoweredMask() if both is None else both.lower(call)
    if 0 in (*sizes.lead, sizes.queries, sizes.keys):  # nobody attends anything, whatever the mask
        attendable = Lengths(0).lower(call)
    return attendable if attendable.some else None


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
