"""Copy a Keras model, with its multi-head layers replaced by anyscore's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from anyscore.keras.config import to_numpy
from anyscore.keras.multihead import MultiHeadAttention
from anyscore.layers.parameters import AnyScore
from anyscore.layers.select import choose_layers

_TENSORS = "query", "value", "key"
_CALL: tuple[str, ...] = (
    *_TENSORS,
    *(f"{name}_mask" for name in (*_TENSORS, "attention")),
    *("return_attention_scores", "training", "use_causal_mask"),
)
"""The positional arguments of Keras's layer."""

_NOT_OURS: tuple[str, ...] = "sliding_window", "use_gate", "attention_axes", "activity_regularizer"
_NOT_OURS += tuple(f"{x}_{y}" for x in ("kernel", "bias") for y in ("regularizer", "constraint"))
_SAID = "bias", "dropout", "kv_heads", "d_q", "d_k", "d_v", "output_shape", "name", "dtype", "seed"


def replace(
    model: Any,
    score: AnyScore = "scaled_dot",
    layers: Sequence[int | str] | int | str | None = None,
    **options: Any,
) -> Any:
    """Copy a Keras model, with each multi-head layer replaced by anyscore's, with any score.

    `keras.models.clone_model` makes the copy. All weights keep their values. The score takes
    projected queries and keys, with new parameters in each head. Calls of the model stay the same.
    Compile the copy again.

    Args:
        model: a functional model, or a built Sequential model, which becomes functional. Layers of
            inner functional and Sequential models are replaced too. Layers inside other layers or
            subclassed models are not replaced.
        score, options: as for `anyscore.keras.MultiHeadAttention`.
        layers: numbers or names of layers `keras.layers.MultiHeadAttention`, in the order of the
            model. A layer of an inner model has the name "model/layer". By default None, all.

    Returns:
        The copy.

    Raises:
        TypeError, ValueError, IndexError: The model is no model, is subclassed, or has no such
            layers. The score or an option is unknown. A layer has an option that anyscore's layer
            lacks.

    >>> import keras
    >>> from anyscore.keras import replace
    >>> x = keras.Input((5, 8))
    >>> y = keras.layers.MultiHeadAttention(2, 3, name="mixing")(x, x, use_causal_mask=True)
    >>> model = replace(keras.Model(x, y), "additive")
    >>> sorted(model.get_layer("mixing").parameters_by_name())[-1]
    'attention.w_v.weight'
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"model is a {type(model).__name__}, expected a model of Keras.")
    if not isinstance(model, keras.Function | keras.Sequential):
        raise TypeError(
            f"model is a {type(model).__name__}, a subclassed model, expected a functional or "
            "Sequential one: put anyscore.keras.MultiHeadAttention in yourself."
        )
    if isinstance(model, keras.Sequential):  # clone_model refuses call_function there
        if not model.built:
            raise ValueError(f"{model.name} is not built: give it a keras.Input, or call it once.")
        model = keras.Model(model.inputs, model.outputs, name=model.name)
    found = _layers(model)
    if not found:
        ours = any(isinstance(x, MultiHeadAttention) for x in model._flatten_layers())
        again = " Some are replaced already: give the model as it was before." if ours else ""
        raise ValueError(
            f"{model.name} has no keras.layers.MultiHeadAttention that could be replaced: those "
            "inside of other layers and of subclassed models are not seen, which make them "
            f"themselves.{again}"
        )
    for name in _SAID:
        if name in options:
            raise TypeError(f"{name}= is what the layers say: leave it out.")
    chosen = {id(found[name]): name for name in choose_layers(found, layers)}
    made = {key: _make(name, found[name], score, options) for key, name in chosen.items()}
    pairs: list[tuple[Any, Any]] = []

    def clone(layer: Any) -> Any:
        copied = made.get(id(layer)) or type(layer).from_config(layer.get_config())
        pairs.append((layer, copied))
        return copied

    def call(layer: Any, *args: Any, **named: Any) -> Any:
        if not any(layer is x for x in made.values()):
            return layer(*args, **named)
        named |= dict(zip(_CALL, args, strict=False))
        tensors = [named.pop(x, None) for x in _TENSORS]
        tensors = tensors if tensors[2] is not None else tensors[:2]
        return layer(tensors, **{x: y for x, y in named.items() if y is not None})

    copy = keras.models.clone_model(model, clone_function=clone, call_function=call, recursive=True)
    for theirs, ours in pairs:
        if id(theirs) in made:
            ours.load_numpy_parameters({**ours.numpy_parameters(), **_arrays(theirs)})
        elif isinstance(theirs, keras.layers.Layer):  # others are operations
            ours.set_weights(theirs.get_weights())
        else:
            continue
        ours.trainable = theirs.trainable
    return copy


def _layers(model: Any, prefix: str = "") -> dict[str, Any]:
    """Map names to the multi-head layers of a model and of its inner models."""
    found: dict[str, Any] = {}
    for layer in model.layers:
        if isinstance(layer, keras.Function | keras.Sequential):
            found |= _layers(layer, f"{prefix}{layer.name}/")
        elif type(layer) is keras.layers.MultiHeadAttention:
            found[prefix + layer.name] = layer
    return found


def _make(name: str, layer: Any, score: AnyScore, options: dict[str, Any]) -> MultiHeadAttention:
    """Create the replacement of one layer."""
    config = layer.get_config()
    for option in _NOT_OURS:
        if config.get(option) and (option, config[option]) != ("attention_axes", (1,)):
            raise ValueError(f"{name} has {option}={config[option]!r}, unknown to anyscore.")
    if layer.value_dim != layer.key_dim:
        raise ValueError(
            f"{name} has key_dim={layer.key_dim} and value_dim={layer.value_dim}, expected one."
        )
    widths = [x.kernel.shape[0] for x in (layer._query_dense, layer._key_dense, layer._value_dense)]
    return MultiHeadAttention(
        layer.num_heads * layer.key_dim,
        layer.num_heads,
        score=score,
        d_q=widths[0],
        d_k=widths[1],
        d_v=widths[2],
        dropout=layer.dropout,
        bias=layer.use_bias,
        output_shape=config["output_shape"] or widths[0],
        name=layer.name,
        dtype=layer.dtype_policy,
        seed=layer.seed,
        **options,
    )


def _arrays(theirs: Any) -> dict[str, Any]:
    """Convert weights of a Keras layer (inputs, heads, width) to anyscore's (outputs, inputs)."""
    arrays: dict[str, Any] = {}
    dense = theirs._query_dense, theirs._key_dense, theirs._value_dense
    for name, layer in zip(("W_q", "W_k", "W_v"), dense, strict=True):
        kernel = to_numpy(layer.kernel)
        arrays[f"{name}.weight"] = kernel.reshape(len(kernel), -1).T
    kernel = to_numpy(theirs._output_dense.kernel)
    arrays["W_o.weight"] = kernel.reshape(int(np.prod(kernel.shape[:2])), -1).T
    if theirs.use_bias:
        of_all = zip(("W_q", "W_k", "W_v", "W_o"), (*dense, theirs._output_dense), strict=True)
        for name, layer in of_all:
            arrays[f"{name}.bias"] = to_numpy(layer.bias).reshape(-1)
    return arrays
