"""The key position of query i: `align` and `offset` of masks and of biases of positions.

align="start"    at key position i + offset
align="end"      at key position i + T_k − T_q + offset
"""

from __future__ import annotations

from typing import Any

from anyscore.ops.checks import check_names

HOW = 'align="start", align="end" (the last query sees the last key), or offset='


def check_align(align: Any) -> None:
    """Raise ValueError: x is no alignment of queries."""
    if align is not None:
        check_names("start", "end", align=align)


def is_aligned(x: Any) -> bool:
    """Return whether a mask or a bias sets the key positions of queries."""
    return x.align is not None or x.offset is not None


def check_aligned(x: Any, queries: int, keys: int) -> None:
    """Check that a mask or a bias sets the positions of queries, unless keys are as many.

    Raises:
        ValueError: T_q ≠ T_k, with neither `align` nor `offset`.
    """
    if not is_aligned(x) and queries != keys:  # in this order: sizes may be symbols
        raise ValueError(
            f"{type(x).__name__} with {queries} queries and {keys} keys must say how they line up: "
            f"{HOW} (the key position of the first query)."
        )
