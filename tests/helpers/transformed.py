"""Calls for the tests of transforms and of compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Causal, Lengths, attention
from helpers.by_pair import by_pair
from helpers.samples import NAMES, make_score, normal

# Warnings of PyTorch 2.13 itself while it decomposes, traces or exports.
WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning"),
]

SCORES = by_pair("name", NAMES)
MASKS = {
    "none": lambda: None,
    "lengths": lambda: Lengths(torch.tensor([4, 0])),
    "boolean": lambda: torch.tensor(normal(2, 3, 7) > -0.5),
    "causal": lambda: Causal("end") & Lengths(torch.tensor([4, 6])),
}
MASK = pytest.mark.parametrize("mask", MASKS)


def tensors(*lead: int, seed: int = 0) -> list[Tensor]:
    shapes = ((*lead, 3, 5), (*lead, 7, 5), (*lead, 7, 2))
    return [torch.tensor(normal(*shape, seed=seed)) for shape in shapes]


def torch_score(name: str, seed: int = 0) -> Any:
    return make_score(name, seed).map(torch.tensor)


def loss_of(name: str, mask: str) -> Callable[..., Tensor]:
    score, made = torch_score(name), MASKS[mask]()
    return lambda q, k, v: attention(q, k, v, score=score, mask=made).square().sum()


def autograd(f: Callable[..., Tensor], *xs: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in xs]
    return torch.autograd.grad(f(*leaves), leaves)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-10, atol=1e-12)
