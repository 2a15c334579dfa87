"""The options of every layer besides sizes: computation and initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import keras

from anyscore.layers.texts import with_texts
from anyscore.modifiers.normalizers import Normalizer, Sigmoid
from anyscore.score.base import Init

OF_KERAS = "name", "dtype", "trainable", "autocast", "activity_regularizer"
"""Arguments of every layer of Keras."""


@with_texts
@dataclass(frozen=True)
class Options:
    """Options of a layer.

    {keras_options}
    """

    impl: str = "auto"
    softcap: float = 0.0
    sink: bool | float | None = None
    normalizer: Normalizer = "softmax"
    seed: int | None = None
    kernel_initializer: Any = None
    bias_initializer: Any = None

    def config(self) -> dict[str, Any]:
        """Return these options for a config."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("kernel_initializer", "bias_initializer"):
            if options[name] is not None:
                options[name] = keras.initializers.serialize(options[name])
        if isinstance(self.normalizer, Sigmoid):
            options["normalizer"] = {"sigmoid": self.normalizer.bias}
        return options

    def initializer(self, init: Init, bias: bool) -> Any:
        """Return the initializer of one parameter."""
        if bias and self.bias_initializer is not None:
            return _fresh(self.bias_initializer)
        if init.bound and not bias and self.kernel_initializer is not None:
            return _transposed(_fresh(self.kernel_initializer))
        if init.bound:
            return keras.initializers.RandomUniform(-init.bound, init.bound)
        return keras.initializers.Constant(init.value)


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Options, dict[str, Any]]:
    """Split arguments of a layer. Return (scales of its score, options, Keras's arguments)."""
    rest = dict(arguments)
    ours = {x.name: rest.pop(x.name) for x in fields(Options) if x.name in rest}
    for name in ("kernel_initializer", "bias_initializer"):
        if ours.get(name) is not None:
            ours[name] = keras.initializers.get(ours[name])
    if isinstance(ours.get("normalizer"), dict):
        ours["normalizer"] = Sigmoid(ours["normalizer"]["sigmoid"])
    of_keras = {name: rest.pop(name) for name in OF_KERAS if name in rest}
    return rest, Options(**ours), of_keras


def _fresh(initializer: Any) -> Any:
    """Clone an initializer: one object returns the same values for each weight of a shape."""
    return initializer.clone() if isinstance(initializer, keras.Initializer) else initializer


def _transposed(initializer: Any) -> Callable[..., Any]:
    """Adapt an initializer of Keras, for (inputs, outputs), to weights (..., outputs, inputs)."""

    def initialize(shape: Any, dtype: Any = None) -> Any:
        kernel = initializer((shape[-1], math.prod(shape[:-1])), dtype=dtype)
        return keras.ops.reshape(keras.ops.transpose(kernel), shape)

    return initialize
