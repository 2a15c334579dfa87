"""Additive calls with projected queries and keys in a range, for tests of impl="separable"."""

from __future__ import annotations

from functools import partial

import numpy as np

from anyscore import Additive
from helpers.samples import normal

bare = partial(Additive, None, None)


def uniform(reach: float, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(-reach, reach, shape)


def inputs(reach: float = 2.0, **sizes: int) -> tuple[list[np.ndarray], Additive]:
    """Return query, key and value, and a score with a layer's initial weights."""
    h, t_q, t_k = sizes.get("h", 8), sizes.get("t_q", 5), sizes.get("t_k", 7)
    shapes = (2, t_q, h), (2, t_k, h)
    arrays = [uniform(reach, *shape, seed=i) for i, shape in enumerate(shapes)]
    return [*arrays, normal(2, t_k, 3)], bare(uniform((3 / (h * 0.394)) ** 0.5, h))
