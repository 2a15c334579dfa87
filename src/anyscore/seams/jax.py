"""JAX: no state to draw seeds from, and no way to ask whether derivatives will be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from anyscore.factors import Factors
from anyscore.ops import Array
from anyscore.routes import Route


def precision(query: Array) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    return nullcontext, None


def draw_seed(query: Array) -> Array:
    raise ValueError(
        "dropout needs a dropout_seed in JAX, which keeps no generator: pass a key, such as "
        "jax.random.key(0), or an integer."
    )


def differentiable(tensors: Iterable[Array]) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in tensors)


def pack_keys(f: Factors) -> Array | None:
    return None


def routes() -> tuple[Route, ...]:
    return ()
