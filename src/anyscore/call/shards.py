"""A sequence in shards: the chunks of its tokens that each rank of a group has.

A rank is one of several processes, or one of several devices in JAX. A chunk is a contiguous piece
of the sequence. The chunks of a rank stand in its tensors one after the other, in the order of
their positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from anyscore.call.operands import Operands, Settings
from anyscore.masks.context import QueryPositions
from anyscore.ops import Array, Ops

Scheme: TypeAlias = Literal["ring", "stay", "gather"]
"""The way that keys and queries meet.

With "ring" keys pass from rank to rank. With the others they stay with their rank: for "stay" each
rank has all queries of the call, for "gather" it gathers the queries of all ranks.
"""
Integer: TypeAlias = Any
"""An integer; in JAX a traced one if it depends on the rank."""


class Chunk(NamedTuple):
    """A chunk of a rank. at: its first token in the rank's tensors. start: its first position."""

    at: int
    length: int
    start: Integer


class Shards(NamedTuple):
    """The chunks of every rank: first positions and lengths, (ranks, chunks) each."""

    starts: tuple[tuple[int, ...], ...]
    lengths: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        """The number of tokens of the whole sequence."""
        return sum(map(sum, self.lengths))

    def count(self, rank: Integer) -> int:
        """Return the number of tokens of a rank; a traced rank has as many as any other."""
        return sum(self.lengths[rank if isinstance(rank, int) else 0])

    def chunks(self, xp: Ops, rank: Integer) -> list[Chunk]:
        """Return the chunks of a rank. A traced rank needs ranks with chunks of equal lengths."""
        known = isinstance(rank, int)
        lengths = self.lengths[rank if known else 0]
        found, at = [], 0
        for i, length in enumerate(lengths):
            column = [starts[i] for starts in self.starts]
            start = column[rank] if known else xp.array(column, rank)[rank]
            found.append(Chunk(at, length, start))
            at += length
        return found

    def numbers(self, rank: int) -> list[int]:
        """Return the positions of a rank's tokens."""
        pairs = zip(self.starts[rank], self.lengths[rank], strict=True)
        return [start + i for start, length in pairs for i in range(length)]

    def positions(self, xp: Ops, rank: Integer, like: Array) -> Array:
        """Return the positions (T,) of a rank's tokens in the whole sequence."""
        each = [xp.arange(c.length, like) + c.start for c in self.chunks(xp, rank)]
        return each[0] if len(each) == 1 else xp.concat(each, 0)


class Exchange(Protocol):
    """The exchange of tensors between the ranks of a group. All ranks call it in one order.

    rank: the number of this rank. ranks: the number of ranks. compares: whether `agree` compares
    facts, which the caller need not work out otherwise.
    """

    rank: Integer
    ranks: int

    @property
    def compares(self) -> bool:
        """Tell whether `agree` compares facts."""

    def pass_on(
        self, arrays: list[Array], tokens: list[int], count: int
    ) -> Callable[[], list[Array]]:
        """Begin to send arrays to the next rank. Return a function that gives the previous rank's.

        tokens: the axis of tokens of each array. count: the tokens that come.
        """

    def agree(self, facts: dict[str, str], error: Exception | None) -> None:
        """Check that all ranks call this with the same facts, and that no rank has an error.

        Raises:
            ValueError: a fact differs, or another rank has an error.
        """

    def first(self, x: Array) -> Array:
        """Return the array of rank 0."""

    def sum(self, arrays: list[Array]) -> list[Array]:
        """Return the sums of each array over the ranks."""

    def max(self, x: Array) -> Array:
        """Return the maxima of x over the ranks."""

    def gather(self, x: Array, axis: int, counts: list[int]) -> Array:
        """Return the arrays of all ranks, one after the other along an axis."""

    def shared(self, tree: Any) -> Any:
        """Return tensors, a score or a bias that are the same on all ranks; None stays None.

        Their gradients are the sums of the gradients on all ranks.
        """

    def once(self, x: Array) -> Array:
        """Return x; its gradient counts once, if `shared` sums it over all ranks later."""

    def gather_differentiably(self, x: Array, axis: int, counts: list[int]) -> Array:
        """Return the same; the gradient of x is the sum of the gradients on all ranks."""


class Sharded(NamedTuple):
    """The shards of a call. queries: None if every rank has all queries."""

    queries: Shards | None
    keys: Shards
    exchange: Exchange

    def query_chunks(self, xp: Ops, queries: int) -> list[Chunk]:
        """Return the chunks of this rank's queries; one chunk if it has all `queries`."""
        if self.queries is None:
            return [Chunk(0, queries, 0)]
        return self.queries.chunks(xp, self.exchange.rank)

    def query_positions(self, xp: Ops, like: Array) -> QueryPositions | None:
        """Return the positions of this rank's queries; None if it has all of them."""
        if self.queries is None:
            return None
        at = self.queries.positions(xp, self.exchange.rank, like)
        return QueryPositions(at, self.queries.tokens)

    def own_keys(self, xp: Ops, attended: Array) -> Array:
        """Return which of this rank's keys (..., T_k) a query of any rank attends.

        attended: of the whole sequence (..., tokens), the keys that this rank's queries attend.
        """
        attended = xp.broadcast_to(attended, (*xp.shape(attended)[:-1], self.keys.tokens))
        some = self.exchange.max(xp.astype(attended, "uint8"))
        chunks = self.keys.chunks(xp, self.exchange.rank)
        each = [of_tokens(xp, some, c.start, c.length) for c in chunks]
        return (each[0] if len(each) == 1 else xp.concat(each, -1)) > 0


class Part(NamedTuple):
    """This rank's part of a call.

    x: a, b, key_bias and value of this rank; start, stop and mask count keys of the whole sequence.
    s: the settings of each block. chunks: of the queries in x. biases: for each of the chunks the
    bias of all keys, or None; see `shard_biases`.
    """

    x: Operands
    s: Settings
    chunks: list[Chunk]
    biases: tuple[Array | None, ...]


def of_tokens(xp: Ops, x: Array, start: Integer, count: int, axis: int = -1) -> Array:
    """Return `count` entries of x along an axis, from `start` on."""
    if isinstance(start, int):
        last = xp.swapaxes(x, axis, -1)[..., start : start + count]
        return xp.swapaxes(last, axis, -1)
    index = xp.arange(count, x) + start
    if len(xp.shape(x)) == 1:
        return xp.take(x, index)
    return xp.swapaxes(xp.take_rows(xp.swapaxes(x, axis, -2), index), axis, -2)
