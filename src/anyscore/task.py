"""A call as plain data: decided once, executed by any implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anyscore.checks import Sizes, check_score, check_scores
from anyscore.factors import Factors
from anyscore.intervals import Attendable, Call
from anyscore.masks import Lengths, Mask, as_mask
from anyscore.ops import Array, Ops, framework
from anyscore.score import Score


@dataclass(frozen=True, eq=False)
class Task:
    """What to compute.

    score: factors, or the scores (..., T_q, T_k) that a callable gave. value (..., T_k, d_v).
    attendable: the lowered mask, None if there is none; keep: the same as a boolean; mixed: whether
    some key may be attended by one query and not by another. dtype: of the output.
    """

    score: Factors | Array
    value: Array
    attendable: Attendable | None
    keep: Array | None
    mixed: bool
    sizes: Sizes
    dtype: str


def prepare(
    xp: Ops,
    sizes: Sizes,
    query: Array,
    key: Array,
    value: Array,
    score: Score | Callable[[Array, Array], Array],
    mask: Any,
    valid_lens: Any,
) -> Task:
    """Check the score, lower mask and score. What nobody may attend is zeroed on the way."""
    check_score(xp, score, query, key, sizes)
    dtype = xp.dtype(query)
    attendable, keep = lower(xp, sizes, query, mask, valid_lens)
    query, key, value, mixed = zero_unused(
        xp, keep, query, key, value, sizes.groups, finite=isinstance(score, Score)
    )
    if isinstance(score, Score):
        lowered: Factors | Array = score.lower(xp, query, key)
    else:
        lowered = _call(xp, score, query, key, sizes)
    return Task(lowered, value, attendable, keep, mixed, sizes, dtype)


def combine(mask: Any, valid_lens: Any) -> Mask | None:
    """`mask` and `valid_lens` intersected; None if there is neither."""
    one = None if mask is None else as_mask(mask)
    if valid_lens is None:
        return one
    lengths = Lengths(valid_lens)
    return lengths if one is None else one & lengths


def lower(
    xp: Ops, sizes: Sizes, query: Array, mask: Any, valid_lens: Any
) -> tuple[Attendable | None, Array | None]:
    """The mask of a call, lowered, and as a boolean; None where everything is attended."""
    both = combine(mask, valid_lens)
    if both is None and sizes.keys == 0:  # every query attends nothing
        both = Lengths(0)
    if both is None:
        return None, None
    attendable = both.lower(Call(xp, query, sizes.lead, sizes.queries, sizes.keys))
    return attendable, attendable.boolean(xp, sizes.keys)


def zero_unused(
    xp: Ops,
    keep: Array | None,
    query: Array,
    key: Array,
    value: Array,
    groups: int,
    finite: bool = True,
) -> tuple[Array, Array, Array, bool]:
    """query, key and value with the rows zeroed that attend nothing, or that nobody may attend.

    finite: finite entries too. A callable keeps those: it may not be differentiable at 0.
    Also whether some key may still be attended by one query and not by another (`mixed`).
    """
    if keep is None:
        return query, key, value, False
    attends, attended = xp.any(keep, axis=-1), xp.any(keep, axis=-2)
    query, _ = _zero_unused(xp, query, attends, 1, finite)
    key, reduced_key = _zero_unused(xp, key, attended, groups, finite)
    value, reduced_value = _zero_unused(xp, value, attended, groups, True)
    return query, key, value, xp.shape(keep)[-2] != 1 or reduced_key or reduced_value


def _zero_unused(xp: Ops, x: Array, used: Array, groups: int, finite: bool) -> tuple[Array, bool]:
    """x (..., T, d) with the rows zeroed that are not `used` (..., {1, T}), any head or batch.

    Also whether one row of x serves several rows of `used`.
    """
    lead, reduced = xp.shape(x)[:-2], False
    if groups > 1 and xp.shape(used)[-2] > 1 and lead[-1] > 1:
        *outer, heads, tokens = xp.shape(used)
        used = xp.reshape(used, (*outer, heads // groups, groups, tokens))
        used, reduced = xp.any(used, axis=-2), True
    while len(xp.shape(used)) - 1 > len(lead):
        reduced = reduced or xp.shape(used)[0] > 1
        used = xp.any(used, axis=0)
    for axis in range(len(lead)):
        if lead[axis] == 1 and xp.shape(used)[axis] > 1:
            used, reduced = xp.any(used, axis=axis, keepdims=True), True
    used = used[..., None] if finite else xp.where(used[..., None], True, xp.isfinite(x))
    return xp.where(used, x, 0.0), reduced


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
