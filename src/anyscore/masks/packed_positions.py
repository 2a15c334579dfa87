"""Where the queries of packed sequences stand: which sequence is theirs, and its keys."""

from __future__ import annotations

from dataclasses import dataclass

from anyscore.ops import Array, Ops


@dataclass(frozen=True)
class Places:
    """The sequence of each query of a call, and where that begins and ends: (T_q,) each.

    count: of sequences. sequence: in [0, count). first_query, first_key, last_key: the first query
    of the sequence, its first key and the one after its last. last_key is first_key where a query
    belongs to no sequence. shift: how many more keys than queries the sequence has; None where no
    sequence has.
    """

    count: int
    sequence: Array
    first_query: Array
    first_key: Array
    last_key: Array
    shift: Array | None

    @classmethod
    def of(cls, xp: Ops, queries: int, of_queries: Array, of_keys: Array | None) -> Places:
        """Find the places of `queries` from offsets (count + 1,), of keys if they have others."""
        count = xp.shape(of_queries)[0] - 1
        of_queries = xp.clip(of_queries, 0, queries)
        index = xp.cumsum(xp.count(of_queries[1:], queries + 1))[:queries]
        inside = index < count
        index = xp.minimum(index, max(count - 1, 0))
        first_query, after = xp.take(of_queries[:-1], index), xp.take(of_queries[1:], index)
        first_key, last_key, shift = first_query, after, None
        if of_keys is not None:
            first_key, last_key = xp.take(of_keys[:-1], index), xp.take(of_keys[1:], index)
            shift = (last_key - first_key) - (after - first_query)
        last_key = xp.where(inside, last_key, first_key)
        return cls(count, index, first_query, first_key, last_key, shift)

    def own(self, xp: Ops, x: Array) -> Array:
        """Numbers (count,) of sequences as those of their queries, (T_q,); others as they are."""
        return xp.take(x, self.sequence) if xp.shape(x) == (self.count,) else x
