"""Checks of the options of layers of speech and pointers: numbers and switches."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from anyscore.ops.checks import shown


def check_numbers(least: float = -math.inf, most: float = math.inf, /, **numbers: Any) -> None:
    """Check that options are finite numbers, from the least to the most.

    Raises TypeError, ValueError: they are not.
    """
    wanted = "a finite number" if most == math.inf else f"a number in [{least:g}, {most:g}]"
    if least > -math.inf and most == math.inf:
        wanted += f" ≥ {least:g}"
    for name, x in numbers.items():
        if isinstance(x, bool) or not isinstance(x, Real):
            raise TypeError(f"{name} must be {wanted}, got {shown(x)}.")
        if not (math.isfinite(x) and least <= float(x) <= most):
            raise ValueError(f"{name} must be {wanted}, got {shown(x)}.")


def check_switches(**switches: Any) -> None:
    """Check that options are True or False.

    Raises TypeError: they are not.
    """
    for name, x in switches.items():
        if not isinstance(x, bool):
            raise TypeError(f"{name} must be True or False, got {shown(x)}.")
