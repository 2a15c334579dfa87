"""What all layers for Keras share: masks, widths and parameters, as Keras and as we pass them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, ClassVar, cast

import keras
import numpy as np

from anyscore.layers import SCORES, is_named
from anyscore.masks import Causal, Keys, Lengths, Mask
from anyscore.ops import framework, load
from anyscore.score import Init, Score
from anyscore.task import combine

BACKEND: str = keras.backend.backend()
xp = load(BACKEND)
OF_KERAS = "name", "dtype", "trainable", "autocast", "activity_regularizer"
"""Arguments that every layer of Keras takes."""

Shape = tuple[int | None, ...]


@dataclass
class Record:
    """What Keras does not look inside: the arguments of a layer, and what its last call left."""

    given: dict[str, Any]
    last: Any = None


class Layer(keras.layers.Layer):  # type: ignore[misc]
    """A layer that is called with queries, keys and values: one by one, or in Keras's one list."""

    inputs: ClassVar[int] = 3
    """Arguments before `valid_lens`."""

    def __init__(self, given: Mapping[str, Any], **of_keras: Any) -> None:
        """given: the arguments that it was made with."""
        super().__init__(**of_keras)
        if type(given.get("score")) in SCORES.values():  # others are encoded when it is saved
            given = {**given, "score": encode(given["score"])}
        self.supports_masking = True
        self.supports_jit = BACKEND != "tensorflow"  # where the core cannot be compiled by XLA
        self.record = Record(dict(given))

    def __call__(self, queries: Any, *args: Any, valid_lens: Any = None, **options: Any) -> Any:
        if len(args) >= self.inputs:  # Keras takes no lists of numbers by position
            *args, valid_lens = args  # type: ignore[assignment]
        if valid_lens is not None:
            options["valid_lens"] = _whole(valid_lens)
        return super().__call__(queries, *args, **options)

    def get_config(self) -> dict[str, Any]:
        given = self.record.given
        score = {"score": encode(given["score"])} if "score" in given else {}
        return {**super().get_config(), **given, **score}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Layer:
        if "score" in config:
            config = {**config, "score": decode(config["score"])}
        return cls(**config)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """The mask that came with the queries, if any: it goes on with the output."""
        if isinstance(previous_mask, list | tuple):
            return previous_mask[0] if previous_mask else None
        return keras_mask(inputs[0] if isinstance(inputs, list | tuple) else inputs)

    def known_shapes(self) -> list[Shape] | None:
        """Shapes to build the layer for, if it was made with its sizes."""
        raise NotImplementedError

    def parameters_by_name(self) -> dict[str, Any]:
        """The variables under the names that all frameworks have for them."""
        raise NotImplementedError

    def numpy_parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters as NumPy arrays, half precision as float32.

        Raises ValueError: the layer has not met its sizes.
        """
        if not self.built:
            shapes = self.known_shapes()
            if shapes is None:
                raise ValueError("give the layer its sizes, or call it once, to have parameters.")
            self.build(*shapes)
        return {name: _numpy(x.value) for name, x in self.parameters_by_name().items()}

    def load_numpy_parameters(self, arrays: Mapping[str, Any]) -> None:
        """Take what a layer of any framework gave; old names are accepted, see `anyscore.layers`.

        Raises ValueError: names or shapes that are not those of the layer, or it has no sizes yet.
        """
        own, state = self.numpy_parameters(), {x: np.asarray(y) for x, y in arrays.items()}
        self.rename(state)
        if state.keys() != own.keys():
            raise ValueError(f"expected parameters {', '.join(own)}; got {', '.join(state)}.")
        for name, variable in self.parameters_by_name().items():
            if state[name].shape != own[name].shape:
                raise ValueError(
                    f"{name} has shape {state[name].shape}, expected {own[name].shape}."
                )
            variable.assign(state[name])

    def rename(self, state: dict[str, Any]) -> None:
        """Give parameters under old names ours."""
        raise NotImplementedError

    def make(self, name: str, init: Init, **options: Any) -> Any:
        """One parameter."""
        initializer = (
            keras.initializers.RandomUniform(-init.bound, init.bound)
            if init.bound
            else keras.initializers.Constant(init.value)
        )
        return self.add_weight(name=name, shape=init.shape, initializer=initializer, **options)


def keras_mask(x: Any) -> Any:
    """The padding mask that Keras sent along with a tensor."""
    return getattr(x, "_keras_mask", None)


def three(queries: Any, keys: Any = None, values: Any = None) -> tuple[Any, Any, Any]:
    """Queries, keys and values, or their shapes or masks; one list is in the order of Keras."""
    if isinstance(queries, list | tuple) and (not queries or not _is_size(queries[0])):
        if keys is not None or values is not None or len(queries) not in (2, 3):
            raise ValueError(
                "expected layer(queries, keys, values), or one list [query, value] or [query, "
                f"value, key] in Keras's order; got a list of {len(queries)}"
                f"{' and more' if keys is not None or values is not None else ''}."
            )
        queries, values, *rest = queries
        keys = rest[0] if rest else values
    return queries, keys, keys if values is None else values


def _is_size(x: Any) -> bool:
    return x is None or isinstance(x, int)


def masks(
    queries: Any, mask: Any, of_queries: Any, of_keys: Any, of_values: Any, causal: bool
) -> Mask | None:
    """All masks of a call as one.

    mask: ours, or Keras's list [query mask, value mask] or [query mask, value mask, key mask]. The
    others are what Keras sent along with the tensors. Padded queries attend nothing.
    """
    if mask is not None and mask is keras_mask(queries):  # sent along with the only tensor
        of_queries, mask = mask, None
        of_keys = of_queries if of_keys is None else of_keys
    if isinstance(of_queries, list | tuple):  # the masks of one list
        of_queries, of_values, *rest = of_queries
        of_keys = rest[0] if rest else None
    if isinstance(mask, list | tuple):
        given, mask = [*mask, None, None, None], None
        of_queries, of_values, of_keys = given[:3]
    found = None if mask is None else combine(mask, None)
    more: list[Mask] = [
        Keys(keras.ops.cast(x, "bool"))
        for i, x in enumerate((of_keys, of_values))
        if x is not None and not (i and x is of_keys)
    ]
    if of_queries is not None:
        of_queries = keras.ops.cast(of_queries, "bool")
        more.append(Lengths(keras.ops.where(of_queries, 2**31 - 1, 0)))
    if causal:
        more.append(Causal("start"))
    for one in more:
        found = one if found is None else found & one
    return found


def output_shape(queries: Shape, keys: Shape, values: Shape) -> Shape:
    """(..., T_q, d_v): leading dimensions broadcast; fewer key heads leave those of the queries."""
    leads = [tuple(shape[:-2]) for shape in (queries, keys, values)]
    rank = max(map(len, leads))
    padded = [(1,) * (rank - len(lead)) + lead for lead in leads]
    lead = [next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True)]
    return (*lead, queries[-2], values[-1])


def shapes(*tensors: Any) -> list[Shape]:
    return [tuple(x.shape) for x in tensors]


def encode(score: Any) -> Any:
    """A score as a config holds it."""
    if isinstance(score, str | dict):
        return score
    for name, known in SCORES.items():
        if score is known:
            return name
        if type(score) is known:
            own = {field.name: getattr(score, field.name) for field in fields(score)}
            return {"score": name, "fields": {x: _plain(y) for x, y in own.items()}}
    return keras.saving.serialize_keras_object(score)


def decode(score: Any) -> Any:
    """What `encode` was given, its tensors as NumPy arrays, or variables if they were trained."""
    if not isinstance(score, dict):
        return score
    if "fields" not in score:
        return keras.saving.deserialize_keras_object(score)
    values = score["fields"].items()
    return SCORES[score["score"]](**{name: _restored(x) for name, x in values})


def _restored(x: Any) -> Any:
    if not isinstance(x, dict):
        return x
    array = np.array(x["array"], "float32")
    return keras.Variable(array) if x["trained"] else array


def own_arrays(score: Any) -> tuple[Any, dict[str, tuple[np.ndarray[Any, Any], bool]]]:
    """A score object with its tensors as NumPy arrays; those, and whether each is trained."""
    if not isinstance(score, Score):
        return score, {}
    found = {}
    for field in fields(score):
        x = getattr(score, field.name)
        if isinstance(x, keras.Variable):
            found[field.name] = _numpy(x.value), bool(x.trainable)
        elif not isinstance(x, Real) and framework(x) is not None:
            found[field.name] = _numpy(x), False
    return replace(score, **{name: x for name, (x, _) in found.items()}), found


def named_only(score: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes, for a score whose parameters a layer makes; others have their own."""
    return dict(sizes) if is_named(score) else {}


def _plain(x: Any) -> Any:
    if x is None or isinstance(x, Real):
        return None if x is None else float(x)
    trained = isinstance(x, keras.Variable) and bool(x.trainable)
    return {"array": _numpy(x).astype("float32").tolist(), "trained": trained}


def _numpy(x: Any) -> np.ndarray[Any, Any]:
    array = np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(x)))
    return array.astype("float32") if array.dtype.name in ("bfloat16", "float16") else array


def _whole(lengths: Any) -> Any:
    """Lengths as integers: Keras would round floats to the precision that the layer computes in."""
    if framework(lengths) in (None, "numpy") and not isinstance(lengths, keras.KerasTensor):
        lengths = np.asarray(lengths)
        if lengths.dtype.kind != "f":
            return lengths
    elif "float" not in keras.backend.standardize_dtype(lengths.dtype):
        return lengths
    ops = keras.ops
    lengths = ops.cast(lengths, "float32")
    lengths = ops.where(ops.isnan(lengths), 0.0, ops.clip(lengths, 0.0, 2.0**30))
    return ops.cast(ops.ceil(lengths), "int32")


register = cast(Callable[[str], Any], keras.saving.register_keras_serializable)("anyscore")
