"""What a layer for JAX is: it makes parameters, and computes with those it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from anyscore.functional import AttentionOutput
from anyscore.score import Init

Params: TypeAlias = dict[str, Array]
"""Parameters by name; a pytree."""
Starts: TypeAlias = dict[str, Array | Init]
"""Parameters by name: arrays, or the shape of one and how it starts."""


def as_jax(x: Any) -> Any:
    """A NumPy array as one of JAX's; anything else as it is."""
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


class Layer:
    """A layer without state.

    Subclasses say what their parameters are and compute the output. NumPy arrays will do for
    parameters and inputs; the answer is in JAX's.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = jnp.dtype(dtype)

    def init(self, key: Array, *inputs: Any, **masking: Any) -> Params:
        """Parameters for calls like `apply(params, *inputs)`, drawn with a key of `jax.random`.

        Without inputs where the layer was made with its sizes.
        """
        return self._draw(key, self.starts(*inputs, **masking))

    def init_with_output(
        self, key: Array, *inputs: Any, **masking: Any
    ) -> tuple[tuple[Array, Any], Params]:
        """((output, weights), parameters): what `init` gives, and the first `apply` with it."""
        params = self.init(key, *inputs, **masking)
        found = self.run(params, *inputs, **masking, return_weights=True)
        return (found.output, found.weights), params

    def apply(
        self,
        params: Mapping[str, Array],
        *inputs: Any,
        training: bool = False,
        dropout_seed: Any = None,
        return_weights: bool = False,
        **masking: Any,
    ) -> Any:
        """The output, or (output, weights) with `return_weights`.

        Args:
            params: what `init` gave.
            inputs, masking: see the layer.
            training: whether to drop weights.
            dropout_seed: a key of `jax.random`, or an integer; needed to drop weights.
        """
        found = self.run(
            params,
            *inputs,
            **masking,
            training=training,
            dropout_seed=dropout_seed,
            return_weights=return_weights,
        )
        return (found.output, found.weights) if return_weights else found.output

    def starts(self, *inputs: Any, **masking: Any) -> Starts:
        """The parameters by name, and how they start."""
        raise NotImplementedError

    def run(self, params: Mapping[str, Array], *inputs: Any, **options: Any) -> AttentionOutput:
        """`apply`, with all that was asked for."""
        raise NotImplementedError

    def numpy_parameters(self, params: Mapping[str, Array]) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters as NumPy arrays, half precision as float32."""
        half = self.dtype.itemsize == 2
        return {name: np.asarray(x.astype("float32") if half else x) for name, x in params.items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> Params:
        """Parameters from what a layer of any framework gave; old names are accepted.

        Raises ValueError: if the names are not those of the layer.
        """
        state = dict(arrays)
        self.rename(state)
        expected = self.names()
        if set(state) != set(expected):
            raise ValueError(
                f"expected the parameters {', '.join(expected)}, got {', '.join(arrays)}."
            )
        return {name: jnp.asarray(state[name], self.dtype) for name in expected}

    def names(self) -> list[str]:
        """Of the parameters."""
        raise NotImplementedError

    def rename(self, state: dict[str, Any]) -> None:
        """Old names → ours, in place."""

    def _draw(self, key: Array, starts: Starts) -> Params:
        params = {}
        for i, (name, start) in enumerate(starts.items()):
            if isinstance(start, Array):
                params[name] = start
            elif start.bound:
                own = jax.random.fold_in(key, i)
                bounds = -start.bound, start.bound
                params[name] = jax.random.uniform(own, start.shape, self.dtype, *bounds)
            else:
                params[name] = jnp.full(start.shape, start.value, self.dtype)
        return params
