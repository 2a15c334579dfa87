"""Layers exported to ONNX and run by ONNX Runtime, for other sizes, lengths and masks too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from anyscore import Causal, Interval, Keys, Lengths, Window
from anyscore.layers import SCORES
from anyscore.torch import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
    MLPAttention,
    MultiHeadAttention,
    SelfAttention,
)

B, T_Q, T_K = Dim("B"), Dim("T_q"), Dim("T_k")
D = 4


def exported(model: nn.Module, args: tuple[Any, ...], dynamic: Any) -> Callable[..., list[Tensor]]:
    """The model as ONNX Runtime runs it."""
    program = torch.onnx.export(
        model.eval(), args, dynamo=True, dynamic_shapes=dynamic, verbose=False
    )
    assert program is not None
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [x.name for x in session.get_inputs()]

    def run(*xs: Tensor) -> list[Tensor]:
        feed = dict(zip(names, (x.numpy() for x in xs), strict=True))
        return [torch.from_numpy(x) for x in session.run(None, feed)]

    return run


MASKS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "none": lambda n, keep: None,
    "lengths": lambda n, keep: Lengths(n),
    "causal": lambda n, keep: Causal("end") & Lengths(n),
    "window": lambda n, keep: Window(2, 1, "start") & Interval(n - 3, n),
    "keys": lambda n, keep: Keys(keep[:, 0]),
    "boolean": lambda n, keep: keep & Causal(offset=n - 2),
}


class Scores(nn.Module):
    """An output for each score."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        made = {name: Attention(name, hidden=5, d_q=D, d_k=D) for name in SCORES}
        self.layers, self.mask = nn.ModuleDict(made), MASKS[mask]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor, keep: Tensor) -> list[Tensor]:
        return [layer(q, k, v, mask=self.mask(n, keep)) for layer in self.layers.values()]


def inputs(n: list[int], queries: int, keys: int) -> list[Tensor]:
    shapes = ((len(n), queries, D), (len(n), keys, D), (len(n), keys, 3))
    keep = torch.rand(len(n), queries, keys) > 0.4
    keep[0, 0] = False  # a query, or as `Keys` a sequence, that may attend to nothing
    return [*(torch.randn(shape) for shape in shapes), torch.tensor(n), keep]


@pytest.mark.parametrize("mask", MASKS)
def test_every_score(mask: str) -> None:
    """With empty rows, and NaN where nothing attends; for other sizes than those of the export."""
    model = Scores(mask)
    dynamic = {0: B, 1: T_Q}, {0: B, 1: T_K}, {0: B, 1: T_K}, {0: B}, {0: B, 1: T_Q, 2: T_K}
    run = exported(model, tuple(inputs([0, 4], 3, 7)), dynamic)
    for xs in inputs([4, 0], 3, 7), inputs([9, 0, 5], 5, 11):
        if mask == "lengths":
            for x, n in zip(range(len(xs[3])), xs[3].tolist(), strict=True):
                xs[1][x, n:], xs[2][x, n:] = torch.nan, torch.inf
        expected = model(*xs)
        for name, x, y in zip(SCORES, run(*xs), expected, strict=True):
            torch.testing.assert_close(x, y.detach(), msg=lambda text, name=name: f"{name}: {text}")
        if mask in ("lengths", "causal", "window"):
            assert all((y[1] == 0).all() for y in run(*xs))
