"""Layers for MXNet's Gluon, for arrays of both its kinds.

from anyscore.mxnet import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
layer.initialize()
output = layer(queries, keys, values, valid_lens)
layer.attention_weights                                  # (batch, queries, keys)

MXNet is retired. To remove it from anyscore, delete this folder, `ops/mxnet.py`,
`ops/mxnet_operator.py`, `backends/mxnet.py`, `tests/frameworks/mxnet`, `constraints-mxnet.txt` and
its tabs in `docs/chapter.md`; then its lines in `ops/__init__.py`, `backends/__init__.py`,
`lab/plans.py`, `lab/info.py`, `pyproject.toml`, the `Makefile` and what the tests say is missing.
"""

from anyscore.mxnet.attention import Attention
from anyscore.mxnet.course import (
    AdditiveAttention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.mxnet.multihead import MultiHeadAttention, SelfAttention

__all__ = [
    "AdditiveAttention", "Attention", "DotProductAttention", "MLPAttention", "MultiHeadAttention",
    "SelfAttention", "masked_softmax",
]  # fmt: skip
