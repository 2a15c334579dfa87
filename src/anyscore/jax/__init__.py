"""Layers for JAX: objects without state; their parameters are a dictionary of arrays.

from anyscore.jax import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
params = layer.init(jax.random.key(0), queries, keys, values, valid_lens)
output = layer.apply(params, queries, keys, values, valid_lens)

`anyscore.jax.nnx` has the same layers as modules of Flax NNX, `anyscore.jax.linen` as modules of
Flax linen.
"""

from anyscore.jax.attention import Attention
from anyscore.jax.course import (
    AdditiveAttention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.jax.layer import Params
from anyscore.jax.multihead import MultiHeadAttention, SelfAttention
from anyscore.ops.pytrees import register_pytrees

register_pytrees()

__all__ = [
    "AdditiveAttention", "Attention", "DotProductAttention", "MLPAttention", "MultiHeadAttention",
    "Params", "SelfAttention", "masked_softmax",
]  # fmt: skip
