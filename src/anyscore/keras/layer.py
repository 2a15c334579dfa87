"""The base of all layers for Keras: calls, configs and parameters, by names of both libraries."""

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
    """Private data of a layer, hidden from Keras's tracking of attributes.

    arguments: the arguments of the constructor. built: the shapes of `build`. last: the task of
    the last call. calls: how many calls of the layer run, as opposed to its `call` alone.
    """

    arguments: dict[str, Any]
    options: Options
    built: dict[str, Any] | None = None
    last: Any = None
    calls: int = 0


class Layer(keras.layers.Layer):  # type: ignore[misc]
    """A layer called with queries, keys and values: one by one, or in one list as in Keras."""

    by_position: ClassVar[tuple[str, ...]] = "queries", "keys", "values", "valid_lens"
    """Names of positional arguments; `valid_lens` last."""
    names_of_keras: ClassVar[dict[str, str]] = OURS
    takes_packed: ClassVar[bool] = False
    """True if the layer takes nested tensors (PyTorch) or ragged ones (TensorFlow)."""

    def __init__(self, arguments: Mapping[str, Any], options: Options, of_keras: Any) -> None:
        super().__init__(**of_keras)
        if type(arguments.get("score")) in SCORES.values():  # other scores are encoded on saving
            arguments = {**arguments, "score": encode(arguments["score"])}
        self.supports_masking = True
        self.supports_jit = BACKEND != "tensorflow"  # XLA cannot compile the core there
        self.record = Record(dict(arguments), options)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the layer, see `call`; Keras's names of arguments are accepted too."""
        arguments = by_our_names(self.by_position, args, named, self.names_of_keras)
        *names, lengths = self.by_position
        tensors = [arguments.pop(name, None) for name in names]
        check_packed(type(self).__name__, tensors, self.takes_packed)
        while tensors and tensors[-1] is None:
            tensors.pop()
        if arguments.get(lengths) is not None:  # Keras refuses positional lists of numbers
            arguments[lengths] = whole(arguments[lengths])
        for name in ("mask", "bias", "bias_after"):
            if isinstance(arguments.get(name), Mask | Bias):
                arguments[name] = Opaque(arguments[name])
        self.record.calls += 1
        try:
            return super().__call__(*tensors, **arguments)
        finally:
            self.record.calls -= 1

    def build(
        self,
        queries_shape: Any = None,
        keys_shape: Any = None,
        values_shape: Any = None,
        **of_keras: Any,
    ) -> None:
        """Create the parameters. Shapes have anyscore's names or Keras's, input_shape= included.

        Raises:
            TypeError, ValueError: shapes that do not fit the sizes of the layer.
        """
        by_position = queries_shape, keys_shape, values_shape
        q, k, v = self._shapes(by_position[: len(self.by_position) - 1], of_keras)
        self.check(q, k, v)
        self.make_all(q, k, v)
        names = [f"{name}_shape" for name in self.by_position[:-1]]
        self.record.built = dict(zip(names, (q, k, v), strict=False))

    def get_build_config(self) -> dict[str, Any] | None:
        """Return the shapes of `build` for Keras to save."""
        built = self.record.built
        return None if built is None else {"shapes_dict": built}

    def compute_output_shape(self, *args: Any, **named: Any) -> Shape:
        """Return the shape of the output. Shapes have anyscore's names or Keras's."""
        return self.shape_of_output(*self._shapes(args, named))

    def compute_output_spec(self, *args: Any, **named: Any) -> Any:
        """Return symbolic tensors of the outputs for the arguments of a call."""
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
        """Return the arguments of the constructor for Keras to save."""
        arguments, options = self.record.arguments, self.record.options.config()
        score = {"score": encode(arguments["score"])} if "score" in arguments else {}
        return {**super().get_config(), **arguments, **score, **options}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Layer:
        """Create a layer from a config of `get_config`."""
        if "score" in config:
            config = {**config, "score": decode(config["score"])}
        return cls(**config)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the queries as the mask of the output; None without one."""
        if isinstance(previous_mask, list | tuple):
            return previous_mask[0] if previous_mask else None
        return keras_mask(inputs[0] if isinstance(inputs, list | tuple) else inputs)

    def complete(self, queries: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
        """Return (queries, keys, values), or their shapes, with defaults for missing ones.

        Raises:
            ValueError: an argument without a default is missing.
        """
        raise NotImplementedError

    def check(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Check shapes against the sizes of the layer.

        Raises:
            ValueError: shapes that do not fit.
        """
        raise NotImplementedError

    def make_all(self, queries: Shape, keys: Shape, values: Shape) -> None:
        """Create all parameters for these shapes."""
        raise NotImplementedError

    def shape_of_output(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Return the shape of the output."""
        raise NotImplementedError

    def shape_of_weights(self, queries: Shape, keys: Shape, values: Shape) -> Shape:
        """Return the shape of the weights."""
        raise NotImplementedError

    def known_shapes(self) -> list[Shape] | None:
        """Return shapes to build the layer with; None if its sizes are unknown."""
        raise NotImplementedError

    def parameters_by_name(self) -> dict[str, Any]:
        """Map names of parameters, common to all frameworks, to the variables."""
        raise NotImplementedError

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the parameters as NumPy arrays, half precision as float32.

        Returns:
            A mapping from names, common to all frameworks, to arrays.

        Raises:
            ValueError: The layer does not know its sizes yet.
        """
        if not self.built:
            shapes = self.known_shapes()
            if shapes is None:
                raise ValueError("give the layer its sizes, or call it once, to have parameters.")
            self.build(*shapes)
        return {name: to_numpy(x.value) for name, x in self.parameters_by_name().items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Load arrays of `numpy_parameters` of a layer of any framework.

        Args:
            arrays: a mapping from names to arrays. Names of *Dive into Deep Learning* and other
                libraries are accepted; see the page migrate of the documentation.

        Raises:
            ValueError: Names or shapes are those of another layer; or the layer's sizes are
                unknown yet.
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
        """Rename keys of other libraries to anyscore's, in place."""
        raise NotImplementedError

    def make(self, name: str, init: Init, bias: bool = False, **options: Any) -> Any:
        """Create one parameter. options: of `add_weight`."""
        initializer = self.record.options.initializer(init, bias)
        return self.add_weight(name=name, shape=init.shape, initializer=initializer, **options)

    def _shapes(self, ours: Sequence[Any], of_keras: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return the shapes of (queries, keys, values), from positional or named arguments."""
        named = {name.removesuffix("_shape"): shape for name, shape in of_keras.items()}
        names = self.by_position[:-1]
        arguments = by_our_names(names, ours, named, self.names_of_keras)
        unknown = arguments.keys() - set(names)
        if unknown:
            raise TypeError(f"no argument has the shape {', '.join(unknown)}_shape.")
        return self.complete(*three(*(arguments.get(name) for name in names)))


register = cast(Callable[[str], Any], keras.saving.register_keras_serializable)("anyscore")
