"""The edges of a graph as a mask: query i attends the keys at the sources of its edges.

    mask=Edges(rowptr, col)                       # compressed rows, one for each query
    mask=Edges.from_index(edge_index, queries)    # pairs (source, target) in any order

Memory grows with queries, keys and edges, never with queries × keys. Two edges between the same
nodes are two keys. A bias and weights have one entry for each edge, in the order of the caller's
edges. Features of an edge enter its score as a bias, or as terms of its key: `edges.with_terms(c)`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from anyscore.masks.context import MaskContext
from anyscore.masks.lowered_edges import LoweredEdges, pointers
from anyscore.masks.objects import Mask
from anyscore.masks.offsets import (
    as_integers,
    check_integer_vector,
    check_offsets,
    concrete_values,
    integers,
)
from anyscore.ops import DTYPES, Ops, framework, load
from anyscore.ops.checks import brief, broadcasts

_MOST_KNOWN = 8
"""The most numbers of keys and ranks for which the edges are kept as lowered."""


@dataclass(frozen=True, eq=False)
class Edges(Mask):
    """Edges of a graph in compressed rows: a query may attend the sources of its edges.

        query i may attend keys    col[rowptr[i]], …, col[rowptr[i + 1] − 1]

    All batches and heads share the edges. Biases and weights are (..., E), in the caller's order
    of edges. `Edges.from_index` takes pairs in any order.

    Args:
        rowptr: (T_q + 1,), integers that never fall, from 0 to the number of edges E.
        col: (E,), integers, the key of each edge. A key may occur more than once.
        permutation: (E,), the index of each edge in the caller's order; None if the orders agree.
            `from_index` sets it.
        terms: (..., E, h), see `with_terms`. By default None, without terms.

    Raises:
        TypeError: An argument is not of integers, or not of rank 1.
        ValueError: rowptr does not begin with 0, falls, or does not end with E; a key is negative;
            or permutation is no permutation of the edges.

    >>> import numpy as np
    >>> from anyscore import Edges, attention
    >>> x = np.array([[0.0], [1.0], [2.0]])
    >>> attention(x, x, x, mask=Edges([0, 2, 2, 3], [1, 2, 0]))[1:]    # node 1 has no edge
    array([[0.],
           [0.]])
    """

    rowptr: Any
    col: Any
    permutation: Any = None
    terms: Any = None
    known: dict[Any, Any] = field(default_factory=dict, repr=False)
    derived: ClassVar[tuple[str, ...]] = ("known",)

    def __post_init__(self) -> None:
        super().__post_init__()
        rowptr = check_integer_vector(self.rowptr, "rowptr")
        col = check_integer_vector(self.col, "col")
        _check_rows(rowptr, col)
        if self.permutation is not None and "order" not in self.known:
            _check_order(check_integer_vector(self.permutation, "permutation"), col)
        if col is not None:
            self.known["most"] = int(col.max()) if col.size else -1

    def __reduce__(self) -> Any:
        return Edges, (
            self.rowptr,
            self.col,
            self.permutation,
            self.terms,
        )  # known values can be computed anew

    @classmethod
    def from_index(cls, edge_index: Any, queries: int) -> Edges:
        """Make edges from pairs in any order; duplicates stay separate edges.

        Args:
            edge_index: (2, E), integers: row 0 has the key (source) and row 1 the query (target)
                of each edge, as in PyTorch Geometric.
            queries: the number of queries, T_q.

        Returns:
            The edges in compressed rows. Their biases, terms and weights keep the order of
            edge_index.

        Raises:
            TypeError: edge_index is not of integers or not (2, E); or queries is no integer ≥ 0.
            ValueError: A query is not in [0, T_q), or a key is negative.

        >>> Edges.from_index([[1, 0, 2], [0, 2, 0]], queries=3).col
        array([1, 2, 0])
        """
        is_symbol = type(queries).__name__ == "SymInt"  # a size during an export of PyTorch
        is_integer = isinstance(queries, Integral) and not isinstance(queries, bool)
        if not is_symbol and not (is_integer and queries >= 0):
            raise TypeError(f"queries must be an integer ≥ 0, got {brief(queries)}.")
        kind = framework(edge_index)
        pairs = edge_index if kind is not None else as_integers(edge_index)
        if pairs is None:
            raise TypeError(f"edge_index is {brief(edge_index)}, expected integers (2, edges).")
        xp = load(kind or "numpy")
        _check_framework(xp)
        if "int" not in xp.dtype(pairs) or len(xp.shape(pairs)) != 2 or xp.shape(pairs)[0] != 2:
            raise TypeError(
                f"edge_index is {xp.dtype(pairs)} of shape {xp.shape(pairs)}, expected integers "
                "(2, edges): sources and targets."
            )
        with xp.outside_inference():
            pairs = xp.astype(pairs, xp.index_dtype())
            source, target = pairs[0], pairs[1]
            _check_nodes("sources", concrete_values(xp, source), None)
            _check_nodes("targets", concrete_values(xp, target), queries)
            order = xp.argsort(target)
            rowptr, col = pointers(xp, target, queries), xp.take(source, order)
            return cls(rowptr, col, order, known={"order": True})

    def with_terms(self, terms: Any) -> Edges:
        """Return these edges with a term for each, added to the key of the edge.

            score of edge e from key j to query i:    scale · Σ_d weight_d · pair(a_id, b_jd + c_ed)

        a and b are the factors of the score. With `GATv2`, `Additive` and `Concat` they are the
        projected queries and keys, so c is inside LeakyReLU or tanh. With a cosine they are
        normalized queries and keys. With other products and distances they are the queries and
        keys. `Trilinear` adds its term of the keys alone, w_kᵀk, without c.

        Args:
            terms: c (..., E, h), in the caller's order of edges; gradients reach it.

        Raises:
            TypeError, ValueError: The terms have another shape or dtype. The call that uses the
                edges raises the error.

        >>> import numpy as np
        >>> from anyscore import Edges, scores
        >>> x = np.array([[1.0], [2.0]])
        >>> edges = Edges([0, 1, 2], [1, 0])
        >>> scores(x, x, mask=edges.with_terms(np.array([[10.0], [20.0]])))    # 1 · (2 + 10), …
        array([12., 42.])
        """
        other = copy(self)
        object.__setattr__(other, "terms", terms)
        return other

    def lower(self, call: MaskContext) -> LoweredEdges:
        """Lower the edges for a call.

        Raises:
            TypeError, ValueError: the edges do not fit the numbers of queries and keys.
        """
        xp = call.xp
        _check_framework(xp)
        given = {"rowptr": self.rowptr, "col": self.col, "permutation": self.permutation}
        with xp.outside_inference():
            rowptr, col, permutation = (
                None if x is None else integers(xp, call.array(x, name))
                for name, x in given.items()
            )
        if xp.shape(rowptr) != (call.queries + 1,):
            raise ValueError(
                f"the edges are of {xp.shape(rowptr)[0] - 1} queries, got {call.queries}: rowptr "
                f"has shape {xp.shape(rowptr)}, expected ({call.queries + 1},)."
            )
        known = self.known or {}  # an object rebuilt from a tree has none
        if known.get("most", -1) >= call.keys:
            raise ValueError(
                f"an edge comes from key {known['most']} (in col), expected keys from 0 to "
                f"{call.keys - 1}: there are {call.keys} keys."
            )
        made = LoweredEdges(xp, call.queries, call.keys, len(call.lead), rowptr, col, permutation)
        if concrete_values(xp, col) is not None:  # a tracer may not be kept
            place = xp.__name__, str(xp.device(call.like)), call.keys, len(call.lead)
            if len(known) > _MOST_KNOWN and place not in known:  # sizes of earlier calls
                for earlier in [x for x in known if isinstance(x, tuple)]:
                    known.pop(earlier, None)  # another thread may do so too
            made = known.setdefault(place, made)
        return made if self.terms is None else made.with_terms(self._terms(call, made))

    def _terms(self, call: MaskContext, edges: LoweredEdges) -> Any:
        """Return the terms in the order of these edges; check all of their shape but the width."""
        xp = call.xp
        terms = call.array(self.terms, "terms")
        shape, dtype = xp.shape(terms), xp.dtype(terms)
        if dtype not in DTYPES:
            raise TypeError(f"terms is {dtype}, expected one of {', '.join(DTYPES)}.")
        lead = (*call.lead, edges.count)
        if len(shape) < 2 or len(shape) > len(lead) + 1 or not broadcasts(shape[:-1], lead):
            raise ValueError(
                f"terms has shape {shape}, expected (..., {edges.count}, width) that broadcasts to "
                f"leading dimensions {call.lead}: one row for each edge."
            )
        terms = xp.broadcast_to(terms, (*shape[:-2], edges.count, shape[-1]))
        return terms if self.permutation is None else xp.take_rows(terms, edges.permutation)


def _check_framework(xp: Ops) -> None:
    """Raise TypeError: the framework does not gather and sum along edges."""
    if not hasattr(xp, "segment_sum"):
        raise TypeError("Edges are for NumPy, PyTorch, JAX and TensorFlow.")


def _check_nodes(name: str, nodes: np.ndarray[Any, Any] | None, n: int | None) -> None:
    """Raise ValueError: sources or targets of edges are negative, or not below n."""
    if nodes is None or not nodes.size:
        return
    least, most = nodes.min(), nodes.max()
    if least < 0 or (n is not None and most >= n):
        upper = "on" if n is None else f"to {n - 1}"
        raise ValueError(
            f"edge_index has {name} from {least} to {most}, expected integers from 0 {upper}."
        )


def _check_order(order: np.ndarray[Any, Any] | None, col: np.ndarray[Any, Any] | None) -> None:
    """Raise ValueError: `order` is no permutation of the edges."""
    if order is None or col is None:
        return
    n = col.size
    if order.shape != (n,) or not np.array_equal(np.sort(order), np.arange(n)):
        raise ValueError(
            f"permutation is {brief(order)}, expected each of the {n} integers from 0 on once: the "
            "place of each edge in the caller's order."
        )


def _check_rows(rowptr: np.ndarray[Any, Any] | None, col: np.ndarray[Any, Any] | None) -> None:
    """Raise ValueError: `rowptr` does not describe compressed rows of `col`."""
    check_offsets("rowptr", rowptr, "for edges in any order use Edges.from_index.")
    if rowptr is not None and col is not None and rowptr[-1] != col.size:
        raise ValueError(
            f"rowptr ends with {rowptr[-1]}, expected the number of edges, {col.size}."
        )
    if col is not None and col.size and col.min() < 0:
        raise ValueError(f"col holds {col.min()}, expected keys from 0 on.")
