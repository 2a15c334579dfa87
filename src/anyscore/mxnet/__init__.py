"""Layers for MXNet's Gluon, for arrays of `mx.np` and `mx.nd`.

    from anyscore.mxnet import Attention

    layer = Attention("additive", hidden=32, dropout=0.1)
    layer.initialize()
    output = layer(queries, keys, values, valid_lens)
    layer.attention_weights                                  # (batch, queries, keys)

MXNet is retired. To remove MXNet from anyscore, delete this folder, `tests/frameworks/mxnet` and
the files named after MXNet: `ops/mxnet.py`, `ops/mxnet_operator.py`, `backends/mxnet.py` and
`constraints-mxnet.txt`.

Then delete the lines of MXNet in `ops/__init__.py`, `backends/__init__.py`, `lab/plans.py`,
`lab/info.py`, `pyproject.toml` and the `Makefile`, and its tabs in `docs/chapter.md`. The tests
report the lines that are left.
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
