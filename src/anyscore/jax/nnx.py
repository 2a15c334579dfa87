"""The layers as modules of Flax NNX, with their parameters and a generator for dropout.

from flax import nnx
from anyscore.jax.nnx import Attention

layer = Attention("additive", hidden=32, d_q=20, d_k=2, dropout=0.1, rngs=nnx.Rngs(0))
output = layer(queries, keys, values, valid_lens)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import nnx
from jax import Array

from anyscore import jax as plain
from anyscore.jax.layer import Layer

__all__ = [
    "AdditiveAttention", "Attention", "DotProductAttention", "MLPAttention", "MultiHeadAttention",
    "SelfAttention",
]  # fmt: skip


class Module(nnx.Module):
    """A layer of `anyscore.jax` with its parameters: `parameters[name]` is an `nnx.Param`.

    args, options: of the layer, with all sizes: d_q= and d_k= for a score with parameters.
    rngs: streams "params" and, for dropout, "dropout".

    `train()` switches dropout on, `eval()` off. Dropout of a new module is on.

    Raises:
        TypeError, ValueError: as the layer; or a missing size.
    """

    kind: type[Layer]

    def __init__(self, *args: Any, rngs: nnx.Rngs, **options: Any) -> None:
        self.layer = self.kind(*args, **options)
        drawn = self.layer.init(rngs.params()).items()
        holder: Any = getattr(nnx, "Dict", dict)
        self.parameters = holder({name: nnx.Param(x) for name, x in drawn})
        self.deterministic = False
        self.rngs = rngs if "dropout" in rngs or "default" in rngs else None

    def __call__(
        self, *inputs: Any, dropout_seed: Any = None, return_weights: bool = False, **masking: Any
    ) -> Any:
        """Compute as `Layer.apply`. dropout_seed: by default from the stream "dropout".

        Raises:
            TypeError, ValueError: as `Layer.apply`.
        """
        training = not self.deterministic
        if training and dropout_seed is None and self.rngs is not None:
            dropout_seed = self.rngs.dropout()
        return self.layer.apply(
            self._values(),
            *inputs,
            training=training,
            dropout_seed=dropout_seed,
            return_weights=return_weights,
            **masking,
        )

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the parameters as NumPy arrays, half precision as float32."""
        return self.layer.numpy_parameters(self._values())

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Load arrays of `numpy_parameters` of a layer of any framework.

        Raises:
            ValueError: names of another layer.
        """
        for name, x in self.layer.load_numpy_parameters(arrays).items():
            self.parameters[name][...] = x

    def _values(self) -> dict[str, Array]:
        return {name: x[...] for name, x in self.parameters.items()}


class Attention(Module):
    """`anyscore.jax.Attention`, with rngs=.

    >>> import jax.numpy as jnp
    >>> layer = Attention("additive", hidden=8, d_q=20, d_k=2, rngs=nnx.Rngs(0))
    >>> keys = jnp.ones((2, 10, 2))
    >>> layer(jnp.ones((2, 1, 20)), keys, valid_lens=jnp.array([2, 6])).shape
    (2, 1, 2)
    """

    kind = plain.Attention

    def scores(self, *inputs: Any, **masking: Any) -> Array:
        """Return the matrix of scores, see `anyscore.jax.Attention.scores`."""
        layer: Any = self.layer
        scores: Array = layer.scores(self._values(), *inputs, **masking)
        return scores


class AdditiveAttention(Module):
    """`anyscore.jax.AdditiveAttention`, with rngs=; query_size= and key_size= are required."""

    kind = plain.AdditiveAttention


class DotProductAttention(Module):
    """`anyscore.jax.DotProductAttention`, with rngs=."""

    kind = plain.DotProductAttention


class MLPAttention(Module):
    """`anyscore.jax.MLPAttention`, with rngs=; query_size= and key_size= are required."""

    kind = plain.MLPAttention


class SelfAttention(Module):
    """`anyscore.jax.SelfAttention`, with rngs=."""

    kind = plain.SelfAttention


class MultiHeadAttention(Module):
    """`anyscore.jax.MultiHeadAttention`, with rngs=."""

    kind = plain.MultiHeadAttention
