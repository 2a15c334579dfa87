"""NaN in a query of several heads reaches only the heads in which the query has keys."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anyscore import ScaledDot, attention
from helpers.samples import normal

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_a_query_that_heads_share_and_one_head_masks(fill: float, impl: str) -> None:
    """NaN in a query changes no scale of a head that masks all its keys."""
    query, key, value = normal(1, 1, 3, 8), normal(1, 2, 4, 8), normal(1, 1, 4, 2)
    query[..., 1, :] = fill
    keep = np.ones((2, 3, 4), bool)
    keep[1, 1] = False
    inputs = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    scale = torch.ones(2, dtype=torch.float64, requires_grad=True)
    output = attention(*inputs, score=ScaledDot(scale), mask=torch.tensor(keep), impl=impl)
    output[:, 1].sum().backward()
    assert torch.isfinite(scale.grad[1])
    assert scale.grad[1] != 0
