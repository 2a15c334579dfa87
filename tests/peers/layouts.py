"""Tensors (batch, heads, tokens, width) with strides that users' models have."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Layout = Callable[[Tensor], Tensor]


def _within(x: Tensor) -> Tensor:
    """Return a view of a larger tensor, with an offset and gaps along every axis."""
    larger = torch.full([2 * n + 1 for n in x.shape], float("nan"), dtype=x.dtype)
    larger[1::2, 1::2, 1::2, 1::2] = x
    return larger[1::2, 1::2, 1::2, 1::2]


def _packed(x: Tensor) -> Tensor:
    """Return a third of one projection's output (batch, tokens, 3, heads, width)."""
    whole = torch.stack([torch.zeros_like(x), x, torch.ones_like(x)]).permute(1, 3, 0, 2, 4)
    return whole.contiguous()[:, :, 1].transpose(1, 2)


LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda x: x.contiguous(),
    "tokens before heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "width before tokens": lambda x: x.mT.contiguous().mT,
    "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "within a larger tensor": _within,
    "of one projection": _packed,
    "one batch for all": lambda x: x[:1].expand(x.shape),
    "one token for all": lambda x: x[:, :, :1].expand(x.shape),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
}
