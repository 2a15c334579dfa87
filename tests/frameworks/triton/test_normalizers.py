"""Interpreted Triton kernels have the sigmoid, and give the scores of sparse weights."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Additive, Causal, Dot, Gaussian, Lengths, Sigmoid, Trilinear, attention
from helpers.samples import normal

pytestmark = pytest.mark.sample

KEYS = 67
MASKS: dict[str, Any] = {
    "none": None,
    "causal": Causal("end"),
    "lengths": Lengths(torch.tensor([[[0], [40]]])),
    "one key": Lengths(1),
    "pairs": torch.tensor(normal(1, 1, 70, KEYS)) > 0,
}
CASES = [
    (score, queries, mask, [0.0, 0.3][i % 2])
    for i, (score, queries, mask) in enumerate(
        product(("dot", "additive", "gaussian", "trilinear"), (2, 70), MASKS)
    )
    if score == "dot" or mask != "one key"
]


def results(impl: str, case: Any, normalizer: Any, poison: float = 0.0) -> list[Tensor]:
    """Return output, weights and gradients."""
    name, queries, mask, dropout = case
    shapes = (1, 2, queries, 3), (1, 1, KEYS, 3), (1, 1, KEYS, 2), (3,), (3,), (3,)
    xs = [torch.tensor(normal(*shape), dtype=torch.float64).requires_grad_() for shape in shapes]
    if poison:
        with torch.no_grad():
            xs[1][..., 50, :] = poison
    score = {
        "dot": Dot(), "gaussian": Gaussian(), "additive": Additive(None, None, xs[3]),
        "trilinear": Trilinear(*xs[3:]),
    }[name]  # fmt: skip
    masking = MASKS[mask]
    masking = masking[..., :queries, :] if isinstance(masking, Tensor) else masking
    found = attention(
        *xs[:3], score=score, mask=masking, normalizer=normalizer, impl=impl, dropout=dropout,
        dropout_seed=3, return_weights=True,
    )  # fmt: skip
    total = found.output.square().sum() + found.weights.square().sum()
    slopes = torch.autograd.grad(total, xs, materialize_grads=True)
    return [found.output, found.weights, *slopes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_the_sigmoid(case: Any) -> None:
    normalizer = Sigmoid(-1.0) if case[2] == "causal" else "sigmoid"
    for x, y in zip(
        results("fused", case, normalizer), results("reference", case, normalizer), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
def test_sparse_weights(normalizer: str) -> None:
    case = "gaussian", 70, "pairs", 0.3
    for x, y in zip(
        results("fused", case, normalizer), results("reference", case, normalizer), strict=True
    ):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("queries", [2, 70])
def test_nan_in_masked_keys_is_not_read(queries: int) -> None:
    case = "additive", queries, "lengths", 0.0
    made = [results("fused", case, "sigmoid", poison) for poison in (0.0, torch.nan)]
    for x, y in zip(*made, strict=True):
        assert y.isfinite().all()
        torch.testing.assert_close(x, y)
