"""`anyscore.torch.masked_softmax` takes types, ranks and masks, and leaves inputs alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Causal, Keys
from anyscore.torch import masked_softmax

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_masked_softmax_of_any_rank_and_type(lead: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(*lead, 7, 7, dtype=torch.float64).to(dtype)
    before = x.clone()
    keep = torch.ones(7, 7, dtype=torch.bool).tril()
    expected = x.double().masked_fill(~keep, -math.inf).softmax(-1).to(dtype)
    for mask in (Causal(), keep, Causal() & keep, Causal() & Keys(torch.ones(7) > 0)):
        weights = masked_softmax(x, mask=mask)
        assert weights.dtype == dtype
        torch.testing.assert_close(weights, expected)
        assert (weights[..., ~keep] == 0).all()
    assert torch.equal(x, before)
    if lead:
        lengths = masked_softmax(x, torch.tensor([0, 3]), mask=Causal())
        assert (lengths[0] == 0).all()
        assert (lengths[1, ..., 3:] == 0).all()
        torch.testing.assert_close(lengths[1, ..., :3, :], expected[1, ..., :3, :])


def test_masked_softmax_in_half_precision_sums_in_float32() -> None:
    x = torch.zeros(1, 1, 100_000, dtype=torch.float16)
    weights = masked_softmax(x, torch.tensor([60_000]))
    assert weights[..., :60_000].double().sub(1 / 60_000).abs().max() < 1e-7
    assert (weights[..., 60_000:] == 0).all()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (Tensor.long, TypeError, "X is int64"),
        (lambda x: x[0, 0], ValueError, r"of shape \(4,\)"),
        (Tensor.numpy, TypeError, "expected a PyTorch tensor"),
    ],
)
def test_mistakes_are_named(change: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        masked_softmax(change(torch.randn(2, 3, 4)))
