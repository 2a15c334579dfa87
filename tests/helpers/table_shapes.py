"""The shapes of the table, with grouped heads, broadcast axes and empty axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

T_Q, T_K = 5, 7

Lead = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """Leading dimensions of query, key and value, and the numbers of queries and keys."""

    query: Lead
    key: Lead
    value: Lead
    queries: int = T_Q
    keys: int = T_K

    @property
    def lead(self) -> Lead:
        """Return the output's leading dimensions; only 6 : 2 heads are grouped in the table."""
        grouped = self.query[-1:] == (6,) and len(self.query) > 1
        key, value = (
            (*lead[:-1], 6) if grouped and lead[-1:] == (2,) else lead
            for lead in (self.key, self.value)
        )
        return np.broadcast_shapes(self.query, key, value)


SHAPES = {
    "rank_2": Shape((), (), ()),
    "rank_3": Shape((3,), (3,), (3,)),
    "heads": Shape((2, 3), (2, 3), (2, 3)),
    "one_query": Shape((2, 3), (2, 3), (2, 3), queries=1),
    "one_key": Shape((2, 3), (2, 3), (2, 3), keys=1),
    "no_query": Shape((2, 3), (2, 3), (2, 3), queries=0),
    "no_key": Shape((2, 3), (2, 3), (2, 3), keys=0),
    "no_batch": Shape((0, 3), (0, 3), (0, 3)),
    "square": Shape((2,), (2,), (2,), queries=5, keys=5),
    "more_queries": Shape((2,), (2,), (2,), queries=7, keys=5),
    "grouped_6_2": Shape((3, 6), (3, 2), (3, 2)),
    "grouped_6_1": Shape((3, 6), (3, 1), (3, 1)),
    "grouped_keys_only": Shape((3, 6), (3, 2), (3, 1)),
    "grouped_values_only": Shape((3, 6), (3, 1), (3, 2)),
    "grouped_5d": Shape((1, 3, 6), (1, 3, 2), (1, 1, 2)),
    "shared_query": Shape((), (3,), (3,)),
    "shared_keys": Shape((2, 3), (), (2, 1)),
    "broadcast": Shape((2, 1), (1, 3), (2, 3)),
    "rank_5": Shape((2, 1, 3), (2, 1, 3), (2, 1, 3)),
    "broadcast_5d": Shape((2, 1, 3), (1, 5, 1), (2, 5, 1)),
}
