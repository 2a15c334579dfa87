"""Layers for Keras 3, on TensorFlow, JAX or PyTorch.

from anyscore.keras import Attention

layer = Attention("additive", hidden=32, dropout=0.1)
output = layer(queries, keys, values, valid_lens)        # or layer([query, value, key])
layer.attention_weights                                  # (batch, queries, keys)

On TensorFlow XLA cannot compile the core, so the layers switch XLA off. Exported models compute
the definition in plain operations.
"""

from anyscore.keras.attention import Attention
from anyscore.keras.course import (
    AdditiveAttention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from anyscore.keras.multihead import MultiHeadAttention, SelfAttention
from anyscore.keras.replace import replace

__all__ = [
    "AdditiveAttention", "Attention", "DotProductAttention", "MLPAttention", "MultiHeadAttention",
    "SelfAttention", "masked_softmax", "replace",
]  # fmt: skip
