"""NumPy: silent about the NaN and overflow that the input brings along."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from anyscore.ops import Array
from anyscore.routes import Route


def routes() -> tuple[Route, ...]:
    return ()


def precision(query: Array) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    return lambda: np.errstate(all="ignore"), None


def draw_seed(query: Array) -> Array:
    return np.array(np.random.randint(0, 2**63 - 1, dtype=np.int64))
