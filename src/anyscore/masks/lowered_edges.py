"""Edges lowered for one call: what gathers along them, and sums and normalizes over them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from anyscore.masks.lowered import LoweredMask
from anyscore.ops import Array, Ops, framework
from anyscore.ops.checks import shown


class LoweredEdges(LoweredMask):
    """Edges lowered for one call, sorted by query, and by key for gradients.

    rowptr, col: as of `Edges`. terms: (..., E, h), in this order, or None. rows (E,): the query of
    each edge. by_key: colptr (T_k + 1,), order (E,), row (E,): the edges of key j are
    order[colptr[j]] … order[colptr[j + 1] − 1], and row has the query of each of these.
    """

    combines = False

    def __init__(
        self,
        xp: Ops,
        queries: int,
        keys: int,
        rank: int,
        rowptr: Array,
        col: Array,
        permutation: Array | None = None,
    ) -> None:
        super().__init__(xp, keys)
        self.queries, self.rank = queries, rank
        self.rowptr, self.col, self.permutation = rowptr, col, permutation
        self.terms: Array | None = None
        self._kept: dict[str, Any] = {}

    def with_terms(self, terms: Array) -> LoweredEdges:
        """Return these edges with terms (..., E, h) in this order."""
        other = copy(self)
        other.terms = terms
        return other

    @property
    def count(self) -> int:
        """Return E."""
        return self._xp.shape(self.col)[0]

    @property
    def some(self) -> bool:
        return True

    @property
    def per_query(self) -> bool:
        return True

    @property
    def boolean(self) -> Array | None:
        raise TypeError("Edges have no boolean matrix: this is not done over the edges of a graph.")

    @property
    def rows(self) -> Array:
        """The query of each edge."""
        return self._keep("rows", self._find_rows)

    @property
    def by_key(self) -> tuple[Array, Array, Array]:
        """The edges sorted by key."""
        found: tuple[Array, Array, Array] = self._keep("by_key", self._sort)
        return found

    @property
    def inverse(self) -> Array | None:
        """The place of each of the caller's edges in this order."""
        if self.permutation is None:
            return None
        return self._keep("inverse", lambda: self._xp.argsort(self.permutation))

    def _keep(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            with self._xp.lasting():
                self._kept[name] = make()
        return self._kept[name]

    def _find_rows(self) -> Array:
        xp = self._xp
        if not self.queries or not self.count:
            return self.col[:0]
        begun = xp.count(self.rowptr[1:-1], self.count + 1)  # how many queries begin at each edge
        return xp.cumsum(begun)[: self.count]

    def _sort(self) -> tuple[Array, Array, Array]:
        order = self._xp.argsort(self.col)
        return pointers(self._xp, self.col, self._keys), order, self._xp.take(self.rows, order)

    @property
    def used(self) -> tuple[Array, Array]:
        xp, lead = self._xp, (1,) * self.rank
        queries = self.rowptr[1:] > self.rowptr[:-1]
        keys = xp.count(self.col, self._keys) > 0
        return xp.reshape(queries, (*lead, self.queries)), xp.reshape(keys, (*lead, self._keys))

    def ours(self, x: Array) -> Array:
        """Numbers (..., E) of the caller's order in that of these edges."""
        return x if self.permutation is None else self._xp.take(x, self.permutation)

    def theirs(self, x: Array) -> Array:
        """Numbers (..., E) of these edges in the caller's order."""
        return x if self.inverse is None else self._xp.take(x, self.inverse)

    def call(self, score: Callable[[Array, Array], Array], query: Array, key: Array) -> Array:
        """Return the scores (..., E) of a callable, each of one query and one key."""
        xp = self._xp
        found = score(
            xp.take_rows(query, self.rows)[..., None, :], xp.take_rows(key, self.col)[..., None, :]
        )
        expected = xp.shape(found)[-2:] == (1, 1) if framework(found) is not None else False
        if not expected or xp.shape(found)[-3:-2] != (self.count,):
            got = f"shape {xp.shape(found)}" if framework(found) is not None else shown(found)
            raise ValueError(
                f"score gave {got} for one query and one key of each edge, expected "
                f"(..., {self.count}, 1, 1)."
            )
        return found[..., 0, 0]

    # As `normalizers.Rows`

    def sum(self, x: Array) -> Array:
        return self._xp.segment_sum(x[..., None], self.rows, self.queries)[..., 0]

    def max(self, x: Array) -> Array:
        return self._xp.segment_max(x, self.rows, self.queries)

    def spread(self, x: Array) -> Array:
        return self._xp.take(x, self.rows)

    def count_attended(self, s: Array, mask: Array | None) -> Array:
        return self._xp.astype(self.rowptr[1:] - self.rowptr[:-1], self._xp.dtype(s))


def pointers(xp: Ops, x: Array, n: int) -> Array:
    """Where the entries of each number in [0, n) begin, were x sorted: (n + 1,)."""
    return xp.concat([xp.arange(1, like=x), xp.cumsum(xp.count(x, n))], 0)
