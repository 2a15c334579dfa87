"""How the parameters of a score start, so that a comparison compares scores."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Init:
    """How a layer creates one parameter: its shape, and a standard deviation or a constant.

    bound: the values are uniform in [−bound, bound] (variance bound²/3). Otherwise `value`.
    """

    shape: tuple[int, ...]
    bound: float = 0.0
    value: float = 0.0


def glorot(*shape: int) -> Init:
    """A matrix (out, in), uniform of variance 2 / (in + out): Glorot & Bengio 2010, eq. 16."""
    return Init(shape, bound=math.sqrt(6 / (shape[-1] + shape[-2])))


def uniform(*shape: int, variance: float) -> Init:
    return Init(shape, bound=math.sqrt(3 * variance))
