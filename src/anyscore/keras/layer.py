"""The base of all layers for Keras: call, config and parameters, in Keras's terms and in ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import keras
import numpy as np

from anyscore.keras.arguments import (
    OURS,
    Shape,
    by_our_names,
    check_packed,
    shapes,
    three,
    whole,
)
from anyscore.keras.config import decode, encode, to_numpy
from anyscore.keras.masks import Opaque, keras_mask
from anyscore.keras.options import Options
from anyscore.masks.objects import Mask
from anyscore.modifiers.biases import Bias
from anyscore.ops import load
from anyscore.score import SCORES
from anyscore.score.base import Init

BACKEND: str = keras.backend.backend()
xp = load(BACKEND)


@dataclass
class Record:
    """The record of a layer, which Keras does not look into.

    arguments: those that the layer was made with. built: the shapes that it was built for. last:
    the task of the last call.
    """

    arguments: dict[str, Any]
    options: Options
    built: dict[str, Any] | None = None
    last: Any = None


class Layer(keras.layers.Layer):  # type: ignore[misc]
    """A layer that is called with queries, keys and values: one by one, or in Keras's one list."""

    by_position: ClassVar[tuple[str, ...]] = "queries", "keys", "values", "valid_lens"
    """Arguments that may come by position; `valid_lens` last."""
    names_of_keras: ClassVar[dict[str, str]] = OURS
    takes_packed: ClassVar[bool] = False
    """Say whether the layer takes nested tensors (PyTorch) or ragged ones (TensorFlow)."""

    def __init__(self, arguments: Mapping[str, Any], options: Options, of_keras: Any) -> None:
        super().__init__(**of_keras)
        if type(arguments.get("score")) in SCORES.values():  # others are encoded when it is saved
            arguments = {**arguments, "score": encode(arguments["score"])}
        self.supports_masking = True
        self.supports_jit = BACKEND != "tensorflow"  # where the core cannot be compiled by XLA
        self.record = Record(dict(arguments), options)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the layer, see `call`; arguments may come by Keras's names too."""
        arguments = by_our_names(self.by_position, args, named, self.names_of_keras)
        *names, lengths = self.by_position
        tensors = [arguments.pop(name, None) for name in names]
        check_packed(type(self).__name__, tensors, self.takes_packed)
        while tensors and tensors[-1] is None:
            tensors.pop()
        if arguments.get(lengths) is not None:  # Keras takes no lists of numbers by position
            arguments[lengths] = whole(arguments[lengths])
        for name in ("mask", "bias", "bias_after"):
            if isinstance(arguments.get(name), Mask | Bias):
                arguments[name] = Opaque(arguments[name])
        return super().__call__(*tensors, **arguments)

    def build(
        self,
        queries_shape: Any = None,
        keys_shape: Any = None,
        values_shape: Any = None,
        **of_keras: Any,
    ) -> None:
        """Make the parameters, for shapes by our names or by those of Keras, input_shape= too.

        Raises TypeError, ValueError: shapes that are not those that the layer was made for.
        """
        by_position = queries_shape, keys_shape, values_shape
        q, k, v = self._shapes(by_position[: len(self.by_position) - 1], of_keras)
        self.check(q, k, v)
        self.make_all(q, k, v)
        names = [f"{name}_shape" for name in self.by_position[:-1]]
        self.record.built = dict(zip(names, (q, k, v), strict=False))

    def get_build_config(self) -> dict[str, Any] | None:
        """Give the shapes that the layer was built for, as Keras saves them."""
        built = self.record.built
        return None if built is None else {"shapes_dict": built}

    def compute_output_shape(self, *args: Any, **named: Any) -> Shape:
        """Find the shape of the output, of shapes by our names or by those of Keras."""
        return self.shape_of_output(*self._shapes(args, named))

    def compute_output_spec(self, *args: Any, **named: Any) -> Any:
        """Make symbolic tensors of the outputs, of the arguments of a call."""
        arguments = by_our_names(self.by_position, args, named, self.names_of_keras)
        tensors = three(*(arguments.get(name) for name in self.by_position[:-1]))
        q, k, v = self.complete(*(None if x is None else shapes(x)[0] for x in tensors))
        self.check(q, k, v)
        dtype = self.compute_dtype
        output = keras.KerasTensor(self.shape_of_output(q, k, v), dtype=dtype)
        if not arguments.get("return_attention_scores"):
            return output
        return output, keras.KerasTensor(self.shape_of_weights(q, k, v), dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        """Give the arguments of the constructor, as Keras saves them."""
        arguments, options = self.record.arguments, self.record.options.config()
        score = {"score": encode(arguments["score"])} if "score" in arguments else {}
        return {**super().get_config(), **arguments, **score, **options}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Layer:
        """Make a layer of what `get_config` gave."""
        if "score" in config:
            config = {**config, "score": decode(config["score"])}
        return cls(**config)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Pass on the mask that came with the queries, if any, with the output."""
        if isinstance(previous_mask, list | tuple):
            return previous_mask[0] if previous_mask else None
        return keras_mask(inputs[0] if isinstance(inputs, list | tuple) else inputs)

    def complete(self, queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        """Complete queries, keys and values, or their shapes, by what stands for those left out.

        Raises ValueError: some cannot be left out.
        """
        raise NotImplementedError

    def check(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Check that shapes are those that the layer was made for.

        Raises ValueError: they are not.
        """
        raise NotImplementedError

    def make_all(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Make all parameters, for these shapes."""
        raise NotImplementedError

    def shape_of_output(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Find the shape of the output."""
        raise NotImplementedError

    def shape_of_weights(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Find the shape of the weights."""
        raise NotImplementedError

    def known_shapes(self) -> list[Shape] | None:
        """List shapes to build the layer for, if it was made with its sizes."""
        raise NotImplementedError

    def parameters_by_name(self) -> dict[str, Any]:
        """Map the names that parameters have in all frameworks to the variables."""
        raise NotImplementedError

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Give the parameters as NumPy arrays, half precision as float32.

        Raises ValueError: the layer has not met its sizes.
        """
        if not self.built:
            shapes = self.known_shapes()
            if shapes is None:
                raise ValueError("give the layer its sizes, or call it once, to have parameters.")
            self.build(*shapes)
        return {name: to_numpy(x.value) for name, x in self.parameters_by_name().items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Take what `numpy_parameters` of a layer of any framework gave.

        Names of other libraries are accepted, see `anyscore.layers.state_dicts`.

        Raises ValueError: names or shapes that are not those of the layer, or it has no sizes yet.
        """
        current, state = self.numpy_parameters(), {x: np.asarray(y) for x, y in arrays.items()}
        self._rename_legacy_keys(state)
        if state.keys() != current.keys():
            raise ValueError(f"expected parameters {', '.join(current)}; got {', '.join(state)}.")
        for name, variable in self.parameters_by_name().items():
            if state[name].shape != current[name].shape:
                raise ValueError(
                    f"{name} has shape {state[name].shape}, expected {current[name].shape}."
                )
            variable.assign(state[name])

    def _rename_legacy_keys(self, state: dict[str, Any]) -> None:
        """Rename keys of other libraries to ours, in place."""
        raise NotImplementedError

    def make(self, name: str, init: Init, bias: bool = False, **options: Any) -> Any:
        """Make one parameter; options: of `add_weight`."""
        initializer = self.record.options.initializer(init, bias)
        return self.add_weight(name=name, shape=init.shape, initializer=initializer, **options)

    def _shapes(self, ours: Sequence[Any], of_keras: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Sort out the shapes of queries, keys and values, given in any way."""
        named = {name.removesuffix("_shape"): shape for name, shape in of_keras.items()}
        names = self.by_position[:-1]
        arguments = by_our_names(names, ours, named, self.names_of_keras)
        unknown = arguments.keys() - set(names)
        if unknown:
            raise TypeError(f"no argument has the shape {', '.join(unknown)}_shape.")
        return self.complete(*three(*(arguments.get(name) for name in names)))


register = cast(Callable[[str], Any], keras.saving.register_keras_serializable)("anyscore")
