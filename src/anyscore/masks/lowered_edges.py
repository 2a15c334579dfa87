"""Edges lowered for one call: each with its query and its key; sums over them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NoReturn, TypeAlias

from anyscore.masks.lowered import LoweredMask
from anyscore.ops import Array, Ops


class LoweredEdges:
    """Edges lowered for one call, sorted by query, and by key for gradients.

    rowptr, col: as of `Edges`. terms: (..., E, h), in this order, or None. by_key: colptr
    (T_k + 1,), order (E,), row (E,): the edges of key j are order[colptr[j]] …
    order[colptr[j + 1] − 1], and row has the query of each of these. unread_is_finite: see
    `LoweredMask`.

    Its last four methods are those of `normalizers.LastAxis`, of scores (..., E).
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
        """Return these edges with terms (..., E, h) in this order."""
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
        """Raise TypeError: edges of a graph are never made a matrix."""
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
        """Return the place of each of the caller's edges in this order; None if it is the same."""
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
        begun = xp.count(self.rowptr[1:-1], self.count + 1)  # how many queries begin at each edge
        return xp.cumsum(begun)[: self.count]

    def _sort(self) -> tuple[Array, Array, Array]:
        xp, order = self._xp, self._xp.argsort(self.col)
        return pointers(xp, self.col, self._keys), order, xp.take(self.query_of_edge, order)

    @property
    def attending_attended(self) -> tuple[Array, Array]:
        """Return which queries attend some key, and which keys are: see `LoweredMask`."""
        xp, lead = self._xp, (1,) * self.rank
        queries = self.rowptr[1:] > self.rowptr[:-1]
        keys = xp.count(self.col, self._keys) > 0
        return xp.reshape(queries, (*lead, self.queries)), xp.reshape(keys, (*lead, self._keys))

    def to_row_order(self, x: Array) -> Array:
        """Return numbers (..., E), which the caller has in any order, in that of these edges."""
        return x if self.permutation is None else self._xp.take(x, self.permutation)

    def to_caller_order(self, x: Array) -> Array:
        """Return numbers (..., E) of these edges in the caller's order."""
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
"""Either form that a mask is lowered to: a matrix of scores is masked, or edges alone have any."""


def pointers(xp: Ops, x: Array, n: int) -> Array:
    """Return where the entries of each number in [0, n) begin, were x sorted: (n + 1,)."""
    return xp.concat([xp.arange(1, like=x), xp.cumsum(xp.count(x, n))], 0)
