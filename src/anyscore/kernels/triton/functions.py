"""Functions of numbers that Triton lacks, for pairs that are written as formulas."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """Return ln(1 + x); near 0 by ln u · x/(u − 1) of u = 1 + x, whose errors cancel."""
    u = 1.0 + x
    near = tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(tl.abs(x) < 1.0, near, tl.log(u))


@triton.jit
def expm1(x):
    """Return eˣ − 1; near 0 by (u − 1) x/ln u of u = eˣ, whose errors cancel."""
    u = tl.exp(x)
    log = tl.where(tl.abs(x) < 1.0, tl.log(u), 1.0)
    near = tl.where(log == 0.0, x, (u - 1.0) * (x / tl.where(log == 0.0, 1.0, log)))
    return tl.where(tl.abs(x) < 1.0, near, u - 1.0)
