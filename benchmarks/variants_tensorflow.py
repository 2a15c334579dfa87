"""The calls that users of TensorFlow, and of Keras on it, would write today, and anyscore."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anyscore import Additive, attention
from anyscore.lab.bench.rivals import Call, Unavailable, Variant
from benchmarks.work import Work


def anyscore_(work: Work) -> list[Variant]:
    """The function where projections are in the call, else the layer of `anyscore.keras`."""
    if work.projected:
        return [Variant("anyscore.keras.Attention", partial(_own_layer, work), compiles=True)]
    lengths = _lengths(work)

    def attend(q: Any, k: Any, v: Any, *parameters: Any) -> Any:
        return attention(q, k, v, score=Additive(*parameters), valid_lens=lengths)

    return _called("anyscore.attention", attend, work)


def formula(work: Work) -> list[Variant]:
    """The broadcast formula, in a tf.function also compiled by XLA."""
    tf, lengths = _load(), _lengths(work)

    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        *projections, w = rest
        if projections:
            q, k = (tf.matmul(x, W, transpose_b=True) for x, W in zip((q, k), projections))  # noqa: B905
        s = tf.reduce_sum(tf.tanh(q[:, :, None] + k[:, None]) * w, -1)
        s = tf.where(tf.range(tf.shape(k)[1]) < lengths[:, None, None], s, -1e6)
        return tf.nn.softmax(s, -1) @ v

    variants = _called("the formula", attend, work)
    return variants + (_called("the formula", attend, work, xla=True) if _in_graph(work) else [])


def keras_layer(work: Work) -> list[Variant]:
    """keras.layers.AdditiveAttention, with and without XLA; its `scale` is w."""
    if not work.projected:
        raise Unavailable("its layer projects nothing")
    return [
        Variant(
            f"keras.layers.AdditiveAttention{', XLA' if xla else ''}",
            partial(_keras_layer, work, xla),
            compiles=True,
        )
        for xla in (False, True)
    ]


def _load() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return importlib.import_module("tensorflow")


def _keras(package: str) -> Any:
    """Import it on TensorFlow, which must be said before Keras is imported."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    _load()
    if importlib.import_module("keras").backend.backend() != "tensorflow":
        raise Unavailable("Keras already has another backend: set KERAS_BACKEND=tensorflow")
    return importlib.import_module(package)


def _in_graph(work: Work) -> bool:
    return work.call == "compiled"


def _lengths(work: Work) -> Any:
    return None if work.valid_lens is None else _load().constant(work.valid_lens.numpy())


def _called(
    how: str, attend: Callable[..., Any], work: Work, *, xla: bool = False
) -> list[Variant]:
    """`attend(*inputs)` eagerly or in a tf.function; with the gradients when training."""
    where = f" in tf.function{', XLA' if xla else ''}" if _in_graph(work) else ""
    inputs = [_load().Variable(x.numpy()) for x in work.inputs.values()]
    build = partial(_calls, attend, inputs, inputs, work, xla)
    return [Variant(f"{how}{where}", build, compiles=bool(where))]


def _calls(
    attend: Callable[..., Any],
    inputs: Sequence[Any],
    sources: Sequence[Any],
    work: Work,
    xla: bool,
) -> Call:
    """A call of `attend(*inputs)`; the gradients are those of `sources`."""
    tf = _load()
    upstream = tf.constant(work.upstream.numpy())

    def both(upstream: Any) -> Any:
        with tf.GradientTape() as tape:
            output = attend(*inputs)
        found = tape.gradient(output, sources, output_gradients=upstream)
        return [output, *(tf.convert_to_tensor(x) for x in found)]

    def forward(upstream: Any) -> Any:
        return [attend(*inputs)]

    run = both if work.training else forward
    if _in_graph(work):
        run = tf.function(run, jit_compile=True if xla else None)
    return lambda: run(upstream)


def _keras_layer(work: Work, xla: bool) -> Call:
    keras, tf = _keras("keras"), _load()
    layer = keras.layers.AdditiveAttention()
    mask = tf.sequence_mask(_lengths(work), work.shape.keys)
    query, key, value = (tf.Variable(x.numpy()) for x in (work.query, work.key, work.value))
    layer([query, value, key])
    layer.set_weights([work.weight.numpy()])

    def attend(q: Any, k: Any, v: Any) -> Any:
        return layer([q, v, k], mask=[None, mask], training=work.training)

    weights = [x.value for x in layer.trainable_weights]
    return _calls(attend, (query, key, value), (query, key, value, *weights), work, xla)


def _own_layer(work: Work) -> Call:
    attention_layer, tf = _keras("anyscore.keras").Attention, _load()
    layer = attention_layer("additive", hidden=work.shape.width, projected=True)
    query, key, value = (tf.Variable(x.numpy()) for x in (work.query, work.key, work.value))
    layer(query, key, value)
    layer.load_numpy_parameters({"w_v.weight": np.asarray(work.weight)[None]})
    lengths = _lengths(work)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return layer(q, k, v, lengths, training=work.training)

    weights = [x.value for x in layer.trainable_weights]
    return _calls(attend, (query, key, value), (query, key, value, *weights), work, False)
