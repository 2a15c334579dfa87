"""Let JAX compile everything in one context of MLIR.

JAX makes a context for each function and each operation, thousands in a run. These contexts take a
quarter of the time of small functions.
"""

from __future__ import annotations

from functools import cache

from jax._src.interpreters import mlir


def install() -> None:
    mlir.make_ir_context = cache(mlir.make_ir_context)
