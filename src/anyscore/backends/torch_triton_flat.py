"""The three kernels of `torch_triton` with the flat arguments of the operators."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyscore.backends import torch_triton
from anyscore.operands import Operands, Results, Settings


def _settings(pair: str, numbers: Any) -> Settings:
    scale, groups, dropout, dropout_period, lead = numbers
    return Settings(pair, scale, groups, dropout, dropout_period, tuple(lead))


def forward(pair: str, *args: Any) -> tuple[Tensor, Tensor]:
    """Run `torch_triton.forward`: ten operands, then the settings."""
    return torch_triton.forward(Operands(*args[:10]), _settings(pair, args[10:]))


def backward(pair: str, *args: Any) -> tuple[Tensor, ...]:
    """Run `torch_triton.backward`: nine operands, results, their gradients, then the settings."""
    x, results, upstream = Operands(*args[:9]), Results(*args[9:11]), Results(*args[11:13])
    return torch_triton.backward(x, _settings(pair, args[13:]), results, upstream)


def weights(pair: str, *args: Any) -> Tensor:
    """Run `torch_triton.weights`: operands without value, log-sum-exp, scale and groups."""
    a, b, weight, key_bias, start, stop, mask, lse, scale, groups = args
    x = Operands(a, b, weight, key_bias, None, start, stop, mask)
    s = _settings(pair, (scale, groups, 0.0, 1, lse.shape[:-1]))
    return torch_triton.weights(x, s, lse)
