"""Entries of an axis that a user chooses, as NumPy indexes."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from anyscore.ops.checks import shown


def plain(chosen: Any) -> Any:
    """Make a list of an array."""
    return chosen.tolist() if hasattr(chosen, "tolist") else chosen


def listed(name: str, chosen: Any) -> list[int] | slice:
    """Return what is chosen as a list of integers, or as the slice that it is.

    Raises TypeError: it is neither one integer, nor several, nor a slice of integers.
    """
    chosen = plain(chosen)
    if isinstance(chosen, slice):
        numbers = [i for i in (chosen.start, chosen.stop, chosen.step) if i is not None]
    else:
        numbers = list(chosen) if isinstance(chosen, list | tuple | range) else [chosen]
    if any(isinstance(i, bool) or not isinstance(i, Integral) for i in numbers):
        raise TypeError(
            f"{name} must be an integer, a slice or a sequence of integers, got {shown(chosen)}."
        )
    return chosen if isinstance(chosen, slice) else [int(i) for i in numbers]
