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
from anyscore.layers.texts import with_texts

__all__ = [
    "AdditiveAttention", "Attention", "DotProductAttention", "MLPAttention", "MultiHeadAttention",
    "SelfAttention",
]  # fmt: skip


@with_texts
class Module(nnx.Module):
    """Layer of `anyscore.jax` with its parameters: `parameters[name]` is an `nnx.Param`.

    {nnx}
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
        """Compute as `Layer.apply` of the layer.

        Args:
            inputs, masking: the inputs and masks of the call.
            dropout_seed: a key of `jax.random`, or an integer. By default from the stream
                "dropout".
            return_weights: True also returns the weights (..., T_q, T_k), before dropout.

        Returns:
            The output, or (output, weights) with `return_weights`.

        Raises:
            TypeError, ValueError: As `Layer.apply`.
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
        """Return the parameters as NumPy arrays, half precision as float32.

        Returns:
            A mapping from names, common to all frameworks, to arrays.
        """
        return self.layer.numpy_parameters(self._values())

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Load arrays of `numpy_parameters` of a layer of any framework.

        Args:
            arrays: a mapping from names to arrays.

        Raises:
            ValueError: The names are those of another layer.
        """
        for name, x in self.layer.load_numpy_parameters(arrays).items():
            self.parameters[name][...] = x

    def _values(self) -> dict[str, Array]:
        return {name: x[...] for name, x in self.parameters.items()}


@with_texts
class Attention(Module):
    """`anyscore.jax.Attention` as a module, with its parameters.

    {nnx}

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from anyscore.jax.nnx import Attention
    >>> layer = Attention("additive", hidden=8, d_q=20, d_k=2, rngs=nnx.Rngs(0))
    >>> keys = jnp.ones((2, 10, 2))
    >>> layer(jnp.ones((2, 1, 20)), keys, valid_lens=jnp.array([2, 6])).shape
    (2, 1, 2)
    """

    kind = plain.Attention

    def scores(self, *inputs: Any, **masking: Any) -> Array:
        """Return the matrix of scores, as `anyscore.jax.Attention.scores`.

        Args:
            inputs, masking: as for `anyscore.jax.Attention.scores`, without the parameters.

        Returns:
            Scores (..., T_q, T_k).

        Raises:
            TypeError, ValueError: As `anyscore.jax.Attention.scores`.
        """
        layer: Any = self.layer
        scores: Array = layer.scores(self._values(), *inputs, **masking)
        return scores


@with_texts
class AdditiveAttention(Module):
    """`anyscore.jax.AdditiveAttention` as a module; query_size= and key_size= are required.

    {nnx}

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from anyscore.jax.nnx import AdditiveAttention
    >>> layer = AdditiveAttention(8, query_size=20, key_size=2, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2))).shape
    (2, 1, 2)
    """

    kind = plain.AdditiveAttention


@with_texts
class DotProductAttention(Module):
    """`anyscore.jax.DotProductAttention` as a module.

    {nnx}

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from anyscore.jax.nnx import DotProductAttention
    >>> layer, x = DotProductAttention(dropout=0.5, rngs=nnx.Rngs(0)), jnp.ones((1, 2, 4))
    >>> layer.eval()
    >>> layer(x, x)
    Array([[[1., 1., 1., 1.],
            [1., 1., 1., 1.]]], dtype=float32)
    """

    kind = plain.DotProductAttention


@with_texts
class MLPAttention(Module):
    """`anyscore.jax.MLPAttention` as a module; query_size= and key_size= are required.

    {nnx}

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from anyscore.jax.nnx import MLPAttention
    >>> layer = MLPAttention(8, query_size=20, key_size=2, rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 1, 20)), jnp.ones((2, 10, 2))).shape
    (2, 1, 2)
    """

    kind = plain.MLPAttention


@with_texts
class SelfAttention(Module):
    """`anyscore.jax.SelfAttention` as a module.

    {nnx}

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from anyscore.jax.nnx import SelfAttention
    >>> layer = SelfAttention(8, 3, score="gaussian", rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 5, 8))).shape
    (2, 5, 8)
    """

    kind = plain.SelfAttention


@with_texts
class MultiHeadAttention(Module):
    """`anyscore.jax.MultiHeadAttention` as a module.

    {nnx}

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from anyscore.jax.nnx import MultiHeadAttention
    >>> layer = MultiHeadAttention(16, 4, score="additive", rngs=nnx.Rngs(0))
    >>> layer(jnp.ones((2, 3, 16))).shape
    (2, 3, 16)
    """

    kind = plain.MultiHeadAttention
