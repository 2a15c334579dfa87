"""A model with a layer for each score, and the masks of its traces and exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anyscore import Causal, Interval, Keys, Lengths, Window
from anyscore.layers.parameters import has_hidden
from anyscore.score import SCORES
from anyscore.torch import Attention

D = 4
MASKS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "none": lambda n, keep: None,
    "lengths": lambda n, keep: Lengths(n),
    "causal": lambda n, keep: Causal("end") & Lengths(n),
    "window": lambda n, keep: Window(2, 1, "start") & Interval(n - 3, n),
    "keys": lambda n, keep: Keys(keep[:, 0]),
    "boolean": lambda n, keep: keep & Causal(offset=n - 2),
}


class Scores(nn.Module):
    """Model with an output for each of some scores."""

    def __init__(self, mask: str, names: Iterable[str] = SCORES) -> None:
        super().__init__()
        widths = {name: 5 if has_hidden(SCORES[name]) else None for name in names}
        made = {name: Attention(name, hidden=n, d_q=D, d_k=D) for name, n in widths.items()}
        self.layers, self.mask = nn.ModuleDict(made), MASKS[mask]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor, keep: Tensor) -> Any:
        return tuple(layer(q, k, v, mask=self.mask(n, keep)) for layer in self.layers.values())


def inputs(n: list[int], queries: int, keys: int) -> list[Tensor]:
    """Return queries, keys, values, lengths and a boolean mask with one query without keys."""
    shapes = ((len(n), queries, D), (len(n), keys, D), (len(n), keys, 3))
    keep = torch.rand(len(n), queries, keys) > 0.4
    keep[0, 0] = False  # as `Keys`, a sequence without keys
    return [*(torch.randn(shape) for shape in shapes), torch.tensor(n), keep]
