"""Calls with grouped heads for the tests of the C++ core under PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Causal, Interval, Keys, Lengths, attention
from helpers import machine
from helpers.by_pair import by_pair
from helpers.samples import NAMES, normal
from helpers.transformed import WARNINGS, torch_score

MARKS = [
    *WARNINGS,
    machine.needs_core,
]

B, H, KV, T_Q, T_K, D, D_V = 2, 4, 2, 3, 7, 5, 2
SCORES = by_pair("name", NAMES)
MASKS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "lengths": lambda: Lengths(torch.tensor([4, 0])),
    "intervals": lambda: Causal("end") & Interval(torch.tensor([1, 0]), None),
    "boolean": lambda: torch.tensor(normal(B, 1, T_Q, T_K) > -0.5),
    "both": lambda: Causal("end") & Keys(torch.tensor(normal(B, T_K) > -0.5)),
}
MASK = pytest.mark.parametrize("mask", MASKS)
DROPOUT = pytest.mark.parametrize("dropout", [0.0, 0.4])


def tensors(seed: int = 0) -> list[Tensor]:
    shapes = (B, H, T_Q, D), (B, KV, T_K, D), (B, KV, T_K, D_V)
    return [torch.tensor(normal(*shape, seed=seed)) for shape in shapes]


def call(name: str, mask: str, dropout: float = 0.0, impl: str = "fused") -> Callable[..., Any]:
    """Return a function of query, key and value with grouped heads, to output and log-sum-exp."""
    score, made = torch_score(name), MASKS[mask]()

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out = attention(
            q, k, v, score=score, mask=made, dropout=dropout, dropout_seed=7, return_lse=True,
            impl=impl,
        )  # fmt: skip
        return out.output, torch.where(out.lse == -torch.inf, 0.0, out.lse)

    return run


def loss_of(*args: Any, **options: Any) -> Callable[..., Tensor]:
    run = call(*args, **options)

    def loss(*xs: Tensor) -> Tensor:
        output, lse = run(*xs)
        return output.square().sum() + lse.sin().sum()

    return loss
