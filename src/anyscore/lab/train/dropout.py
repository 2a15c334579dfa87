"""Dropout whose masks are drawn quickly on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_VALUES = 2**16


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` by sixteen random bits a number, four numbers from a draw of 64 bits.

    PyTorch draws each number by itself, which takes longer than a small layer's product. The rate
    is rounded to 1/65,536. On other devices PyTorch's dropout is used.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x with entries zeroed at the rate p, the others divided by 1 − p."""
        if not self.training or not self.p or x.device.type != "cpu":
            return super().forward(x)
        threshold = min(round(self.p * _VALUES), _VALUES - 1)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        mask = bits >= threshold - _VALUES // 2
        return x * mask.to(x.dtype).mul_(_VALUES / (_VALUES - threshold))
