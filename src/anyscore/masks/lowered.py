"""A mask lowered for one call: an interval of keys for each query, a boolean array, or both.

`lowered_edges` has the other form that masks are lowered to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from anyscore.ops import Array, Ops


class LoweredMask:
    """A mask lowered for one call: query i may attend key j if start ≤ j < stop and mask.

    start, stop: index dtype, broadcastable to (*lead, T_q), rank len(lead) + 1; None = 0 and T_k.
    mask: boolean, broadcastable to (*lead, T_q, T_k), of rank len(lead) + 2; None = True.
    unread_is_finite: whether the caller has zeroed the rows of tokens that every mask excludes.
    has_diagonals: whether the distance of query i and key j is j − i plus one number for all.
    """

    def __init__(
        self,
        xp: Ops,
        keys: int,
        start: Array | None = None,
        stop: Array | None = None,
        mask: Array | None = None,
    ) -> None:
        self._xp, self._keys = xp, keys
        self.start, self.stop, self.mask = start, stop, mask
        self.unread_is_finite, self.has_diagonals = False, True
        self._boolean: Array | None = None
        self._attending_attended: tuple[Array, Array] | None = None

    @property
    def masks_any(self) -> bool:
        """Return whether anything is masked at all."""
        return not (self.start is None and self.stop is None and self.mask is None)

    @property
    def boolean(self) -> Array | None:
        """Return one boolean array broadcastable to (*lead, T_q, T_k); None if no key is masked."""
        if self._boolean is None:
            self._boolean = self._as_boolean()
        return self._boolean

    def _as_boolean(self) -> Array | None:
        xp, mask = self._xp, self.mask
        some = self.start if self.start is not None else self.stop
        if some is None:
            return mask
        j = xp.arange(self._keys, like=some)
        if self.start is not None:
            after = j >= self.start[..., None]
            mask = after if mask is None else xp.logical_and(mask, after)
        if self.stop is not None:
            before = j < self.stop[..., None]
            mask = before if mask is None else xp.logical_and(mask, before)
        return mask

    @property
    def per_query(self) -> bool:
        """Return whether queries of one head may attend to different keys."""
        bounds = [x for x in (self.start, self.stop) if x is not None]
        return any(self._xp.shape(x)[-1] != 1 for x in bounds) or self._has_rows

    @property
    def _has_rows(self) -> bool:
        return self.mask is not None and self._xp.shape(self.mask)[-2] != 1

    def count_attended(self) -> Array:
        """Return the number of keys that each query attends, (..., {1, T_q}), in the index dtype.

        There must be a mask. Time and memory are O(T_q + T_k), unless `mask` has a row for each
        query.
        """
        xp, keys = self._xp, self._keys
        if self._has_rows or not self.per_query:
            return xp.sum(xp.astype(self.boolean, xp.index_dtype()), axis=-1)
        start, stop = self._bounds()
        if self.mask is None:
            return stop - start
        before = self._attended_before(keys)
        return before(stop) - before(start)

    @property
    def attending_attended(self) -> tuple[Array, Array]:
        """Return the queries that attend a key, (..., {1, T_q}), and the attended keys, (..., T_k).

        Both are boolean. Time and memory are O(T_q + T_k), unless `mask` has a row for each query.
        """
        if self._attending_attended is None:
            self._attending_attended = self._find_attending_attended()
        return self._attending_attended

    def _find_attending_attended(self) -> tuple[Array, Array]:
        xp, keys = self._xp, self._keys
        if keys == 0 or self._has_rows or not self.per_query:
            mask: Array = self.boolean
            if keys == 0:
                mask = xp.broadcast_to(mask, (*xp.shape(mask)[:-1], 0))
            return xp.any(mask, axis=-1), xp.any(mask, axis=-2)
        start, stop = self._bounds()
        opened, closed = xp.count(start, keys + 1), xp.count(stop, keys + 1)
        covered = (xp.cumsum(opened - closed) > 0)[..., :keys]
        if self.mask is None:
            return stop > start, covered
        before = self._attended_before(keys)
        return before(stop) > before(start), xp.logical_and(covered, self._row(keys))

    def _bounds(self) -> tuple[Array, Array]:
        """Return start ≤ stop of one shape; at least one of the bounds is given."""
        xp, keys = self._xp, self._keys
        one: Any = self.stop if self.start is None else self.start
        stop = one * 0 + keys if self.stop is None else self.stop
        start = xp.minimum(one * 0 if self.start is None else one, stop)
        return start, xp.maximum(start, stop)

    def _row(self, keys: int) -> Array:
        """Return the one row (..., T_k) of the boolean array."""
        of_keys = cast(Any, self.mask)[..., 0, :]
        return self._xp.broadcast_to(of_keys, (*self._xp.shape(of_keys)[:-1], keys))

    def _attended_before(self, keys: int) -> Callable[[Array], Array]:
        """Return a function of positions j: the number of keys before j in the boolean row."""
        xp, until = self._xp, self._xp.cumsum(self._row(keys))
        return lambda j: xp.where(j > 0, xp.take(until, xp.maximum(j - 1, 0)), j * 0)


def zero_unread(
    xp: Ops, x: Array, used: Array, groups: int = 1, finite: bool = True
) -> tuple[Array, bool]:
    """Zero the rows of x (..., T, d) that no head and no batch uses; `used` is (..., {1, T}).

    NaN in such rows then reaches no sum over tokens. groups: heads of `used` per head of x. finite:
    whether to zero finite entries too. Returns (x, reduced): reduced is true if several heads share
    a row of x.
    """
    lead, reduced = xp.shape(x)[:-2], False
    if groups > 1 and len(lead) and xp.shape(used)[-2] > 1 and lead[-1] > 1:
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
