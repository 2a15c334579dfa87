"""The options of every layer besides its sizes: how it computes, how its parameters start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import keras

from anyscore.score import Init

OF_KERAS = "name", "dtype", "trainable", "autocast", "activity_regularizer"
"""Arguments that every layer of Keras takes."""


@dataclass(frozen=True)
class Options:
    """Options of a layer, initializers as Keras has them.

    impl: of `anyscore.attention`. seed: of dropout. kernel_initializer, bias_initializer: of
    weights that start at random, and of biases; None = as the score and the layer say.
    """

    impl: str = "auto"
    seed: int | None = None
    kernel_initializer: Any = None
    bias_initializer: Any = None

    def config(self) -> dict[str, Any]:
        """These options as a config holds them."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("kernel_initializer", "bias_initializer"):
            if given[name] is not None:
                given[name] = keras.initializers.serialize(given[name])
        return given

    def initializer(self, init: Init, bias: bool) -> Any:
        """The initializer of one parameter."""
        if bias and self.bias_initializer is not None:
            return _fresh(self.bias_initializer)
        if init.bound and not bias and self.kernel_initializer is not None:
            return _transposed(_fresh(self.kernel_initializer))
        if init.bound:
            return keras.initializers.RandomUniform(-init.bound, init.bound)
        return keras.initializers.Constant(init.value)


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Options, dict[str, Any]]:
    """Arguments of a layer as those of its score, our options, and those of Keras."""
    rest = dict(arguments)
    ours = {x.name: rest.pop(x.name) for x in fields(Options) if x.name in rest}
    for name in ("kernel_initializer", "bias_initializer"):
        if ours.get(name) is not None:
            ours[name] = keras.initializers.get(ours[name])
    of_keras = {name: rest.pop(name) for name in OF_KERAS if name in rest}
    return rest, Options(**ours), of_keras


def _fresh(initializer: Any) -> Any:
    """One like it: an initializer gives weights of one shape the same values each time."""
    return initializer.clone() if isinstance(initializer, keras.Initializer) else initializer


def _transposed(initializer: Any) -> Callable[..., Any]:
    """For weights (..., outputs, inputs): Keras's are (inputs, outputs), and drawn by that."""

    def start(shape: Any, dtype: Any = None) -> Any:
        kernel = initializer((shape[-1], math.prod(shape[:-1])), dtype=dtype)
        return keras.ops.reshape(keras.ops.transpose(kernel), shape)

    return start
