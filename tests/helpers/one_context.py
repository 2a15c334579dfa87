"""JAX with one context of MLIR for all that it compiles.

It makes one for each function and each operation, thousands in a run: a quarter of the time that
small ones take.
"""

from __future__ import annotations

from functools import cache

from jax._src.interpreters import mlir


def install() -> None:
    mlir.make_ir_context = cache(mlir.make_ir_context)
