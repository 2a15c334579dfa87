"""Edges lowered for one call, each with its query and its key; sums over the edges of a query."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NoReturn, TypeAlias

from anyscore.masks.lowered import LoweredMask
from anyscore.ops import Array, Ops


class LoweredEdges:
    """Edges lowered for one call, sorted by query, and by key for gradients.

    rowptr, col: as in `Edges`. terms: (..., E, h), in the order of rows, or None. by_key: colptr
    (T_k + 1,), order (E,), row (E,). The edges of key j are order[colptr[j]] … order[colptr[j + 1]
    − 1]; row has the query of each. unread_is_finite: see `LoweredMask`.

    The last four methods have the interface of `normalizers.LastAxis`, for scores (..., E).
    """

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
        self._xp, self._keys, self.queries, self.rank = xp, keys, queries, rank
        self.rowptr, self.col, self.permutation = rowptr, col, permutation
        self.terms: Array | None = None
        self.unread_is_finite = False
        self._kept: dict[str, Any] = {}

    def with_terms(self, terms: Array) -> LoweredEdges:
        """Return these edges with terms (..., E, h), in the order of rows."""
        other = copy(self)
        other.terms = terms
        return other

    @property
    def count(self) -> int:
        """Return E."""
        return self._xp.shape(self.col)[0]

    @property
    def per_query(self) -> bool:
        """Return whether queries of one head may attend to different keys."""
        return True

    @property
    def boolean(self) -> NoReturn:
        """Raise TypeError: edges of a graph have no dense matrix."""
        raise TypeError("Edges have no boolean matrix: this is not done over the edges of a graph.")

    @property
    def query_of_edge(self) -> Array:
        """Return the query of each edge, (E,)."""
        return self._keep("query_of_edge", self._find_queries)

    @property
    def by_key(self) -> tuple[Array, Array, Array]:
        """Return the edges sorted by key."""
        found: tuple[Array, Array, Array] = self._keep("by_key", self._sort)
        return found

    @property
    def inverse(self) -> Array | None:
        """Return the index of each of the caller's edges in row order; None if both agree."""
        if self.permutation is None:
            return None
        return self._keep("inverse", lambda: self._xp.argsort(self.permutation))

    def _keep(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            with self._xp.outside_inference():
                self._kept[name] = make()
        return self._kept[name]

    def _find_queries(self) -> Array:
        xp = self._xp
        if not self.queries or not self.count:
            return self.col[:0]
        begun = xp.count(self.rowptr[1:-1], self.count + 1)  # queries that begin at each edge
        return xp.cumsum(begun)[: self.count]

    def _sort(self) -> tuple[Array, Array, Array]:
        xp, order = self._xp, self._xp.argsort(self.col)
        return pointers(xp, self.col, self._keys), order, xp.take(self.query_of_edge, order)

    @property
    def attending_attended(self) -> tuple[Array, Array]:
        """Return the queries that attend a key, and the attended keys: see `LoweredMask`."""
        xp, lead = self._xp, (1,) * self.rank
        queries = self.rowptr[1:] > self.rowptr[:-1]
        keys = xp.count(self.col, self._keys) > 0
        return xp.reshape(queries, (*lead, self.queries)), xp.reshape(keys, (*lead, self._keys))

    def to_row_order(self, x: Array) -> Array:
        """Return numbers (..., E), given in the caller's order, in the order of rows."""
        return x if self.permutation is None else self._xp.take(x, self.permutation)

    def to_caller_order(self, x: Array) -> Array:
        """Return numbers (..., E), given in the order of rows, in the caller's order."""
        return x if self.inverse is None else self._xp.take(x, self.inverse)

    def sum(self, x: Array) -> Array:
        return self._xp.segment_sum(x[..., None], self.query_of_edge, self.queries)[..., 0]

    def max(self, x: Array) -> Array:
        return self._xp.segment_max(x, self.query_of_edge, self.queries)

    def align_with_scores(self, x: Array) -> Array:
        return self._xp.take(x, self.query_of_edge)

    def count_attended(self, s: Array, mask: Array | None) -> Array:
        return self._xp.astype(self.rowptr[1:] - self.rowptr[:-1], self._xp.dtype(s))


AnyLowered: TypeAlias = LoweredMask | LoweredEdges
"""Either form of a lowered mask: it masks a matrix of scores, or only edges have scores."""


def pointers(xp: Ops, x: Array, n: int) -> Array:
    """Return the first index of each number in [0, n) in sorted x: (n + 1,)."""
    return xp.concat([xp.arange(1, like=x), xp.cumsum(xp.count(x, n))], 0)
