"""The tested layers, their inputs, and a parent block."""

from __future__ import annotations

from typing import Any

import numpy as np
from mxnet.gluon import nn

from anyscore.mxnet import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
    MultiHeadAttention,
)
from frameworks.mxnet.arrays import to

B, T_Q, T_K, D, D_V = 2, 3, 7, 4, 5
LENGTHS = np.float32([2, 6])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def inputs(kind: str) -> list[Any]:
    """Return queries, keys, values and lengths."""
    shapes = (B, T_Q, D), (B, T_K, D), (B, T_K, D_V)
    return [*(to(normal(*shape), kind=kind) for shape in shapes), to(LENGTHS, kind=kind)]


class Parent(nn.HybridBlock):
    """Parent that calls a layer among other operations."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(D, flatten=False)
            self.layer = layer

    def hybrid_forward(self, F: Any, queries: Any, *others: Any) -> Any:
        return self.layer(self.first(queries), *others) * 2


LAYERS = {
    "additive": lambda: AdditiveAttention(6),
    "gaussian": lambda: Attention("gaussian"),
    "trilinear": lambda: Attention("trilinear"),
    "dot": DotProductAttention,
    "heads": lambda: MultiHeadAttention(D, 2, d_v=D_V),
    "heads_additive": lambda: MultiHeadAttention(D, 2, kv_heads=1, d_v=D_V, score="additive"),
}
