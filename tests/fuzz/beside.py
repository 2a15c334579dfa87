"""What stands beside the scores of a call, as plain data: drawn, and made into arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

Shape = tuple[int, ...]
Tensors = dict[str, Any]
"""By the name of the argument and "=", as parameters of scores may have the same name."""


@dataclass(frozen=True)
class Beside:
    """sink: a number, the shape of a tensor, or None."""

    sink: float | Shape | None = None

    def draw_numbers(self, rng: np.random.Generator) -> Tensors:
        """The tensors, in numbers."""
        if isinstance(self.sink, tuple):
            return {"sink=": 3 * rng.standard_normal(self.sink)}
        return {}

    def arguments(self, tensors: Tensors) -> dict[str, Any]:
        """What `attention` is given, the tensors being those of a framework."""
        return {"sink": tensors.get("sink=", self.sink)}


# --------------------------------------------------------------------------------- strategies

NUMBERS = (0, 0.0, -2.5, 4, 30.0, -100.0)


@st.composite
def besides(draw: st.DrawFn, lead: Shape) -> Beside:
    """Nothing, mostly; lead: the leading dimensions of the call."""
    sink: float | Shape | None = None
    if draw(st.integers(0, 9)) < 2:
        sink = draw(st.sampled_from(NUMBERS) | shapes(lead))
    return Beside(sink)


@st.composite
def shapes(draw: st.DrawFn, lead: Shape) -> Shape:
    """What broadcasts to leading dimensions: some of size 1, the first of them missing."""
    own = tuple(n if draw(st.integers(0, 4)) else 1 for n in lead)
    return own[draw(st.integers(0, len(lead))) :]
