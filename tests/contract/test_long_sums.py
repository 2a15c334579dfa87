"""The reference sums hundreds of features within few roundings.

Roundings of products of few numbers all have one direction: a sum of 512 in sequence is off by 15
roundings, a sum in blocks by 5. The fuzz test found this.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Gaussian, attention

pytestmark = pytest.mark.sample

WIDTH, EPS = 512, np.finfo(np.float32).eps


@pytest.mark.parametrize("heads", [(), (2,)], ids=["one weight", "a weight of each head"])
@pytest.mark.parametrize("as_tensor", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_distances_of_integers(as_tensor: Any, heads: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        q, k = (rng.integers(-2, 3, (3, *heads, 1, WIDTH)).astype(np.float32) for _ in range(2))
        sigma = np.full(heads, 12.69721317, np.float32)
        exact = -((q - k.astype(np.float64)) ** 2).sum(-1)[..., 0] / (2 * np.float64(sigma) ** 2)
        tensors = [as_tensor(x) for x in (q, k, k)]
        score = Gaussian(as_tensor(sigma))
        lse = attention(*tensors, score=score, impl="reference", return_lse=True).lse
        assert np.abs(np.asarray(lse)[..., 0] / exact - 1).max() <= 8 * EPS
