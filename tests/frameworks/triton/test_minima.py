"""Scores by minima are right in the emulator of PTX, and their kernel keeps to its instructions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.triton import attention, minima, pairs
from frameworks.triton.ptx import emulated

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1" or not minima.HAS_GLUON,
    reason="compiled kernels of Gluon, not interpreted ones",
)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """Run compiled kernels on the CPU. Record the chunks of each call; 0 is the exact kernel."""
    found: list[list[int]] = []
    forward = minima.forward

    def run(*args: Any) -> Tensor:
        made = forward(*args)
        found.append(made.tolist())
        return made

    monkeypatch.setattr(minima, "forward", run)
    monkeypatch.setattr(minima, "LEAST_PAIRS", 0)
    with emulated(monkeypatch):
        yield found


def drawn(
    name: str, dtype: torch.dtype, *, queries: int = 70, keys: int = 100, width: int = 24,
    d_v: int = 20, kv: int = 1, weights: torch.dtype | None = BF16, **options: Any,
) -> tuple[Operands, Settings]:  # fmt: skip
    """Return operands of (1, 2) problems, and settings. options: of either."""
    made = torch.Generator().manual_seed(width)
    normal = lambda *shape: torch.randn(shape, generator=made)  # noqa: E731
    x = Operands(
        normal(1, 2, queries, width).to(dtype),
        normal(1, kv, keys, width).to(dtype),
        None if weights is None else (normal(2, width) / width**0.5).to(weights),
        value=normal(1, kv, keys, d_v).to(dtype),
    )
    of_x = {k: v for k, v in options.items() if k in x._fields}
    of_s = {k: v for k, v in options.items() if k not in of_x}
    scale = 0.7 if weights is not None else -0.3
    return x._replace(**of_x), Settings(name, scale, 1, 0.0, 2, (1, 2))._replace(**of_s)


def forward(x: Operands, s: Settings) -> Results:
    return attention.forward(pairs.BY_NAME[s.pair], x, s, F32)


def definition(x: Operands, s: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, output and log-sum-exp in float64; scores are −∞ where masked."""
    a, b, value = (y.double() for y in (x.a, x.b, x.value))
    a, b = a[..., :, None, :], b[..., None, :, :]
    pair = torch.nn.functional.leaky_relu(a + b, 0.2) if s.pair == "leaky_relu" else (a - b).abs()
    if x.weight is not None:
        pair = pair * x.weight.double()[:, None, None]
    score = s.scale * pair.sum(-1)
    for bias in (x.key_bias[..., None, :] if x.key_bias is not None else None, x.bias):
        if bias is not None:
            score = score + bias.double()
    if s.outer == "tanh":
        score = s.outer_scale * (score / s.outer_scale).tanh()
    j, keep = torch.arange(x.b.shape[-2]), torch.ones(score.shape, dtype=torch.bool)
    if x.start is not None:
        keep &= j >= x.start[..., None]
    if x.stop is not None:
        keep &= j < x.stop[..., None]
    if x.mask is not None:
        keep &= x.mask
    score = score.masked_fill(~keep, -torch.inf)
    weights = score.softmax(-1).nan_to_num(nan=0.0)
    return score, weights @ value, score.logsumexp(-1)
