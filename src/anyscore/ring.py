"""Where the tokens stand in a cache with a window: the token of position p in row p mod T."""

from __future__ import annotations

from dataclasses import dataclass

from anyscore.biases import Bias
from anyscore.masks import Lengths, Mask, as_mask
from anyscore.ops import Array, Ops


@dataclass(frozen=True)
class Ring:
    """Rows of a ring, and the last queries that meet them.

    like: a tensor of the framework. length: (), how many tokens came until now. rows: how many of
    them the ring holds, the last. queries: how many there are, at the last positions.
    """

    xp: Ops
    like: Array
    length: Array
    rows: int
    queries: int

    def positions(self) -> Array:
        """Return the position of the token in each row, (rows,); < 0 where there is none yet."""
        last = self.length - 1
        return last - (last - self.xp.arange(self.rows, like=self.like)) % self.rows

    def distances(self) -> Array:
        """Return how far the token of each row is ahead of each query, (queries, rows)."""
        of_queries = self.length - self.queries + self.xp.arange(self.queries, like=self.like)
        return self.positions()[None, :] - of_queries[:, None]

    def mask(self, window: int, causal: bool = True) -> Mask:
        """Return the mask of a window of so many tokens, each query's own among them.

        Raises ValueError: the ring has not all that the queries may attend.
        """
        if not causal:
            raise ValueError("a window is of causal attention: with causal=False leave it out.")
        most = self.rows - window + 1
        if self.queries > most:
            raise ValueError(
                f"{self.queries} queries with a window of {window} need a capacity of "
                f"{window + self.queries - 1}, got {self.rows}: it serves {most} at a time."
            )
        if self.queries == 1 and window == self.rows:  # whose order does not matter
            return Lengths(self.length)
        ahead = self.distances()
        there = self.xp.logical_and(ahead <= 0, ahead > -window)
        return as_mask(self.xp.logical_and(there, self.positions()[None, :] >= 0))

    def bias(self, bias: Bias, heads: int | None) -> Array:
        """Return a bias of positions as it is of queries and rows, (..., queries, rows)."""
        distances = self.xp.reshape(self.distances(), (self.queries * self.rows,))
        found = self.xp.tensor(bias.of(self.xp, distances, heads), self.like)
        lead = self.xp.shape(found)[:-1]
        return self.xp.reshape(found, (*lead, self.queries, self.rows))
