"""Which kernels have run on which GPUs: impl="auto" takes these, and the switch allows the others.

A row of `RUNS` is a run on a device of that vendor. Its numbers were right, and its time is on the
page gpu of the documentation. The first run of another kernel adds a row, or the kernel goes.
"""

from __future__ import annotations

import os

SWITCH = "ANYSCORE_UNTRIED"
"""The environment variable that allows kernels where nobody ran them; "1" does."""

HALF = "bfloat16", "float16"
BELOW_64 = *HALF, "float32"
EVERY = *BELOW_64, "float64"
RUNS = {
    ("triton", "NVIDIA"): "H200 and H100, 26 November 2026, commit 86572a5",
    ("pallas", "NVIDIA"): "H200, 26 November 2026, commit 86572a5",
}
"""(kernels, vendor) → the run. "triton" and "pallas" are the kernels of every pair, in the ways of
that run. Later commits changed them, and the page gpu lists the changes.
"""
WAITING = {
    ("triton", "leaky_relu"): ("minima, absolute values and comparisons", EVERY),
    ("triton", "absolute"): ("minima and comparisons", EVERY),
    ("triton", "squared"): ("squared distances by products", HALF),
    ("triton", "product"): ("tiles of 128 queries", HALF),
    ("triton", "tanh"): ("products of rows", HALF),
    ("pallas", "tanh"): ("exponentials of each token", BELOW_64),
}
"""(kernels, pair) → a faster way that no GPU has run, and the dtypes of features that have it."""


def is_switched_on() -> bool:
    """Return whether the environment allows kernels that nobody ran."""
    return os.environ.get(SWITCH) == "1"


def may_run(kernels: str, vendor: str) -> bool:
    """Return whether kernels may run on a vendor's GPUs."""
    return (kernels, vendor) in RUNS or is_switched_on()


def remark(kernels: str, pair: str, dtype: str) -> str:
    """Return what a plan says of a pair's faster way; empty if there is none, or it runs."""
    way, dtypes = WAITING.get((kernels, pair), ("", ()))
    if dtype not in dtypes or is_switched_on():
        return ""
    return f"; {SWITCH}=1 would allow {way}, which no GPU has run"
