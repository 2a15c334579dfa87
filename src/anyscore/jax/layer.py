"""The base of all layers for JAX: it makes parameters, and computes with those it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from anyscore.functional.attention import AttentionOutput
from anyscore.modifiers.biases import Bias
from anyscore.score.base import Init

Params: TypeAlias = dict[str, Array]
"""Parameters by name; a pytree."""
Initializers: TypeAlias = dict[str, Array | Init]
"""Parameters by name: arrays, or their shapes and initial values."""


def as_jax(x: Any) -> Any:
    """Make an array of NumPy one of JAX, also in a bias; give anything else as it is."""
    if isinstance(x, Bias):
        return x.map(as_jax)
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


class Layer:
    """A layer without state.

    Subclasses say what their parameters are and compute the output. Parameters and inputs may be
    arrays of NumPy; outputs are arrays of JAX.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = jnp.dtype(dtype)

    def init(self, key: Array, *inputs: Any, **masking: Any) -> Params:
        """Draw parameters for calls like `apply(params, *inputs)`.

        Args:
            key: of `jax.random`.
            inputs, masking: see the layer; not needed where the layer was made with its sizes.

        Raises:
            TypeError, ValueError: as `anyscore.attention`, or sizes that the layer lacks.
        """
        return self._draw(key, self.initializers(*inputs, **masking))

    def init_with_output(
        self, key: Array, *inputs: Any, **masking: Any
    ) -> tuple[tuple[Array, Any], Params]:
        """Draw parameters as `init` and apply the layer: ((output, weights), parameters)."""
        params = self.init(key, *inputs, **masking)
        result = self.run(params, *inputs, **masking, return_weights=True)
        return (result.output, result.weights), params

    def apply(
        self,
        params: Mapping[str, Array],
        *inputs: Any,
        training: bool = False,
        dropout_seed: Any = None,
        return_weights: bool = False,
        **masking: Any,
    ) -> Any:
        """Compute the output, or (output, weights) with `return_weights`.

        Args:
            params: what `init` gave.
            inputs, masking: see the layer.
            training: whether to drop weights.
            dropout_seed: a key of `jax.random`, or an integer; needed to drop weights.
            return_weights: also give the weights (..., T_q, T_k), before dropout.

        Raises:
            TypeError, ValueError: as `anyscore.attention`, or widths that are not the layer's.
        """
        result = self.run(
            params,
            *inputs,
            **masking,
            training=training,
            dropout_seed=dropout_seed,
            return_weights=return_weights,
        )
        return (result.output, result.weights) if return_weights else result.output

    def initializers(self, *inputs: Any, **masking: Any) -> Initializers:
        """Map the names of the parameters to arrays, or to shapes and initial values."""
        raise NotImplementedError

    def run(self, params: Mapping[str, Array], *inputs: Any, **options: Any) -> AttentionOutput:
        """Compute what `apply` gives, as a record."""
        raise NotImplementedError

    def numpy_parameters(self, params: Mapping[str, Array]) -> dict[str, np.ndarray[Any, Any]]:
        """Give the parameters as NumPy arrays, half precision as float32."""
        half = self.dtype.itemsize == 2
        return {name: np.asarray(x.astype("float32") if half else x) for name, x in params.items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> Params:
        """Make parameters of what `numpy_parameters` of a layer of any framework gave.

        Names of other libraries are accepted, see `anyscore.layers.state_dicts`.

        Raises ValueError: names that are not those of the layer.
        """
        state = dict(arrays)
        self._rename_legacy_keys(state)
        expected = self.names()
        if set(state) != set(expected):
            raise ValueError(
                f"expected the parameters {', '.join(expected)}, got {', '.join(arrays)}."
            )
        return {name: jnp.asarray(state[name], self.dtype) for name in expected}

    def names(self) -> list[str]:
        """List the names of the parameters."""
        raise NotImplementedError

    def _rename_legacy_keys(self, state: dict[str, Any]) -> None:
        """Rename keys of other libraries to ours, in place."""

    def _draw(self, key: Array, initializers: Initializers) -> Params:
        params = {}
        for i, (name, init) in enumerate(initializers.items()):
            if isinstance(init, Array):
                params[name] = init
            elif init.bound:
                subkey = jax.random.fold_in(key, i)
                bounds = -init.bound, init.bound
                params[name] = jax.random.uniform(subkey, init.shape, self.dtype, *bounds)
            else:
                params[name] = jnp.full(init.shape, init.value, self.dtype)
        return params
