"""The base of all layers for JAX: `init` draws parameters, `apply` computes with parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

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
_OF_FLAX = {"rngs": "pass dropout_seed=key to apply", "training": "pass it to apply"}
"""Arguments of calls of Flax modules, and what takes their place."""


def as_jax(x: Any) -> Any:
    """Convert a NumPy array of numbers to JAX, also in a bias; return anything else unchanged."""
    if isinstance(x, Bias):
        return x.map(as_jax)
    return jnp.asarray(x) if isinstance(x, np.ndarray) and x.dtype.kind not in "OSUMm" else x


class Layer:
    """Base of the layers for JAX: objects without state.

    A subclass defines the parameters by `initializers` and the output by `run`. Parameters and
    inputs may be NumPy arrays; outputs are JAX arrays.
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = jnp.dtype(dtype)

    def __call__(self, *inputs: Any, **options: Any) -> NoReturn:
        """Say that the parameters are missing.

        Raises:
            TypeError: always.
        """
        name = type(self).__name__
        raise TypeError(
            f"{name} has no parameters of its own: write layer.apply(params, …), or make the layer "
            f"as a module of Flax, anyscore.jax.linen.{name}."
        )

    def init(self, key: Array, *inputs: Any, **masking: Any) -> Params:
        """Draw parameters for calls like `apply(params, *inputs)`.

        Args:
            key: a key of `jax.random`.
            inputs, masking: the inputs and masks of a call; see the layer. Not needed if the layer
                has all sizes.

        Returns:
            A dictionary from names to arrays.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or a size is missing.
        """
        self._check_arguments(masking)
        return self._draw(key, self.initializers(*inputs, **masking))

    def init_with_output(
        self, key: Array, *inputs: Any, **masking: Any
    ) -> tuple[tuple[Array, Any], Params]:
        """Draw parameters and apply the layer.

        Args:
            key: a key of `jax.random`.
            inputs, masking: the inputs and masks of the call; see the layer.

        Returns:
            ((output, weights), parameters).

        Raises:
            TypeError, ValueError: As `anyscore.attention`.
        """
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
        """Compute the output with these parameters.

        Args:
            params: the parameters from `init`.
            inputs, masking: the inputs and masks of the call; see the layer.
            training: True applies dropout. By default False.
            dropout_seed: a key of `jax.random`, or an integer; required for dropout.
            return_weights: True also returns the weights (..., T_q, T_k), before dropout.

        Returns:
            The output, or (output, weights) with `return_weights`. Without it, `output, weights =
            layer.apply(…)` splits a batch of two; modules of `anyscore.jax.linen` return both.

        Raises:
            TypeError, ValueError: As `anyscore.attention`; or widths are not those of the layer.
        """
        self._check_arguments(masking)
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
        """Map names of parameters to arrays, or to shapes and initial values."""
        raise NotImplementedError

    def run(self, params: Mapping[str, Array], *inputs: Any, **options: Any) -> AttentionOutput:
        """Compute the results of `apply` as an `AttentionOutput`."""
        raise NotImplementedError

    def numpy_parameters(self, params: Mapping[str, Array]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the parameters as NumPy arrays, half precision as float32.

        Args:
            params: the parameters from `init`.

        Returns:
            A mapping from names, common to all frameworks, to arrays.
        """
        half = self.dtype.itemsize == 2
        return {name: np.asarray(x.astype("float32") if half else x) for name, x in params.items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> Params:
        """Return parameters from arrays of `numpy_parameters` of a layer of any framework.

        Args:
            arrays: a mapping from names to arrays. Names of *Dive into Deep Learning* and other
                libraries are accepted; see the page migrate of the documentation.

        Returns:
            The parameters, in the dtype of the layer.

        Raises:
            ValueError: The names are those of another layer.
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
        """Rename keys of other libraries to anyscore's, in place."""

    def _check_arguments(self, options: Mapping[str, Any]) -> None:
        """Check that a call has none of the arguments of Flax modules.

        Raises:
            TypeError: it has one.
        """
        for name, remedy in _OF_FLAX.items():
            if name in options:
                raise TypeError(
                    f"{name}= does not belong here: {remedy}, or make the layer as a module of "
                    f"Flax, anyscore.jax.linen.{type(self).__name__}."
                )

    def _draw(self, key: Array, initializers: Initializers) -> Params:
        return {
            name: self.draw(jax.random.fold_in(key, i), init)
            for i, (name, init) in enumerate(initializers.items())
        }

    def draw(self, key: Array, init: Array | Init) -> Array:
        """Return a parameter: an array as it is, or initial values drawn from the key."""
        if isinstance(init, Array):
            return init
        if init.bound:
            return jax.random.uniform(key, init.shape, self.dtype, -init.bound, init.bound)
        return jnp.full(init.shape, init.value, self.dtype)
