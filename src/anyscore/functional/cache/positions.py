"""Positions of cached tokens; masks and biases by buffer row.

The token of position p is in row p; with a window, in row p mod the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from anyscore.masks.alignment import is_aligned
from anyscore.masks.context import MaskContext
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.objects import BooleanMask, Lengths, Mask, as_mask, parts
from anyscore.modifiers.biases import MAX_POSITION, Bias
from anyscore.ops import Array, Ops


@dataclass(frozen=True)
class CachePositions:
    """Positions of the rows of a cache, and of the queries at the last positions.

    like: a tensor of the framework. length: (), the number of tokens appended so far. rows: the
    capacity. queries: the number of queries. wraps: True if the token of position p is in row
    p mod rows, False if in row p.
    """

    xp: Ops
    like: Array
    length: Array
    rows: int
    queries: int
    wraps: bool

    def positions(self) -> Array:
        """Return the position of the token in each row (rows,); < 0 for an empty row."""
        last, rows = self.length - 1, self.xp.arange(self.rows, like=self.like)
        if not self.wraps:
            return self.xp.where(rows <= last, rows, -1)
        return last - (last - rows) % self.rows

    def distances(self) -> Array:
        """Return the position of each row's token minus that of each query, (queries, rows)."""
        of_queries = self.length - self.queries + self.xp.arange(self.queries, like=self.like)
        return self.positions()[None, :] - of_queries[:, None]

    def mask(self, window: int, causal: bool = True) -> Mask:
        """Return the mask of a window of so many tokens, each query's own included.

        Raises:
            ValueError: the buffer lacks tokens of a query's window, or causal is False.
        """
        if not causal:
            raise ValueError("a window is of causal attention: with causal=False leave it out.")
        most = self.rows - window + 1
        if self.queries > most:
            raise ValueError(
                f"{self.queries} queries with a window of {window} need a capacity of "
                f"{window + self.queries - 1}, got {self.rows}: it serves {most} at a time."
            )
        if self.queries == 1 and window == self.rows:  # all rows: their order does not matter
            return Lengths(self.length)
        ahead = self.distances()
        there = self.xp.logical_and(ahead <= 0, ahead > -window)
        return as_mask(self.xp.logical_and(there, self.positions()[None, :] >= 0))

    def bias(self, bias: Bias, heads: int | None) -> Array:
        """Return the values of a bias of positions by row, (..., queries, rows)."""
        distances = self.xp.reshape(self.distances(), (self.queries * self.rows,))
        found = self.xp.tensor(bias.values_at(self.xp, distances, heads), self.like)
        lead = self.xp.shape(found)[:-1]
        return self.xp.reshape(found, (*lead, self.queries, self.rows))


def bias_by_row(at: CachePositions, bias: Any, lead: tuple[int, ...]) -> Any:
    """Place the queries of a positional bias without align or offset at the last positions.

    lead: the leading dimensions of the queries. Any other bias is returned unchanged.
    """
    if not isinstance(bias, Bias) or is_aligned(bias):
        return bias
    if not at.wraps:
        return replace(bias, offset=at.length - at.queries)  # type: ignore[type-var]
    return at.bias(bias, lead[-1] if len(lead) > 1 else None)


@dataclass(frozen=True, eq=False)
class PositionMask(Mask):
    """A mask of positions, for rows in another order than positions.

    mask: an interval of positions for each query. positions: (rows,), of the token in each row.
    """

    mask: Mask
    positions: Array

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to a boolean array."""
        interval, allowed = self.mask.lower(replace(call, keys=MAX_POSITION)), None
        assert isinstance(interval, LoweredMask)
        if interval.start is not None:
            allowed = self.positions >= interval.start[..., None]
        if interval.stop is not None:
            before = self.positions < interval.stop[..., None]
            allowed = before if allowed is None else call.xp.logical_and(allowed, before)
        return call.lowered(mask=allowed)


def mask_by_row(at: CachePositions, mask: Mask) -> Mask:
    """Return a mask of positions as a mask of buffer rows.

    Raises:
        TypeError: the rows wrap, and the mask does not count positions.
    """

    def placed(part: Mask) -> Mask:
        part = part.at_end(at.xp, at.length - at.queries)
        if not at.wraps:
            return part
        if not part.by_position:
            raise TypeError(
                "in a cache with a window tokens change rows, so that a mask must count positions: "
                f"expected Interval, Lengths, Causal or Window, got {_name(part)}. For padding on "
                "the left pass Interval(padding, None)."
            )
        return PositionMask(part, at.positions())

    return reduce(and_, map(placed, parts(mask)))


def _name(mask: Mask) -> str:
    return "a boolean array" if isinstance(mask, BooleanMask) else type(mask).__name__
