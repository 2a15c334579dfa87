"""Comparison of the fused kernels for JAX with the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def agree(call: Callable[[str], Any], rtol: float = 1e-11) -> None:
    """Assert that `call` gives the same with impl="fused" and with impl="reference"."""
    ours, exact = jax.tree.leaves(call("fused")), jax.tree.leaves(call("reference"))
    assert len(ours) == len(exact) > 0
    for x, y in zip(ours, exact, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * max(1, float(abs(y).max())))
