"""Helpers for the tests of growing caches: tokens, and the outputs of all steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anyscore import make_cache
from helpers.samples import PAIRS, normal

B, H, KV, T, D, D_V = 2, 4, 2, 11, 5, 3
WITH_A_BIAS = pytest.mark.parametrize("name", [*PAIRS, "Trilinear"])
"""One score of each pair, and one with a key bias."""
FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])


def arrays(kv: int = KV, tokens: int = T) -> list[np.ndarray]:
    sizes = (H, D), (kv, D), (kv, D_V)
    return [normal(B, n, tokens, width, seed=i) for i, (n, width) in enumerate(sizes)]


def to(framework: str) -> Any:
    return torch.tensor if framework == "torch" else np.array


def run(
    q: Any, k: Any, v: Any, score: Any, chunks: list[int], cache: dict[str, Any], **options: Any
) -> Any:
    """Return the outputs of all steps, joined along the queries."""
    grown = make_cache(k[..., :0, :], v[..., :0, :], score, **cache)
    start, found = 0, []
    for n in chunks:
        step = slice(start, start + n)
        grown = grown.append(k[..., step, :], v[..., step, :], score=score)
        given = {name: x(start, n) if callable(x) else x for name, x in options.items()}
        found.append(np.asarray(grown.attend(q[..., step, :], score=score, **given)))
        start += n
    return np.concatenate(found, axis=-2)


def same(found: Any, expected: Any, rtol: float = 1e-11) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=rtol, atol=1e-12)
