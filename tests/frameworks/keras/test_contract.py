"""Layers keep Keras's contract: its own layer test, its own names, pickles, old files."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras.src.testing import TestCase

import anyscore.keras
from anyscore import keras as layers
from helpers.by_pair import by_pair
from helpers.samples import normal
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

BACKEND = keras.backend.backend()
D = 4
LIST: Any = [(2, 3, D), (2, 5, D)]
if BACKEND == "tensorflow":  # TensorFlow's generators of data take no lists
    LIST = tuple(LIST)


def own(name: str) -> dict[str, Any]:
    return {"score": name, **({"hidden": 6} if TABLE[name].hidden else {})}


ROWS: dict[str, tuple[Any, dict[str, Any], Any, tuple[int, ...]]] = {
    **{name: (layers.Attention, {**own(name), "dropout": 0.2}, LIST, (2, 3, D)) for name in TABLE},
    **{
        f"heads-{name}": (
            layers.MultiHeadAttention,
            {"embedding_size": D, "n_heads": 2, "score": name, "dropout": 0.2, "seed": 3},
            LIST,
            (2, 3, D),
        )
        for name in TABLE
    },
    **{
        f"self-{name}": (
            layers.SelfAttention,
            {"embedding_size": D, "d_k": 3, "d_v": 2, "score": name},
            (2, 5, D),
            (2, 5, 2),
        )
        for name in TABLE
    },
    "additive-layer": (layers.AdditiveAttention, {"num_hiddens": 6, "bias": True}, LIST, (2, 3, D)),
    "mlp-layer": (layers.MLPAttention, {"units": 6, "dropout": 0.2}, LIST, (2, 3, D)),
    "dot-layer": (layers.DotProductAttention, {"dropout": 0.2}, LIST, (2, 3, D)),
    "by-name": (
        layers.MultiHeadAttention,
        {"embedding_size": D, "n_heads": 2, "d_k": 7, "d_v": 5, "output_shape": (3, 2)},
        {"query_shape": (2, 3, D), "value_shape": (2, 5, 5), "key_shape": (2, 5, 7)},
        (2, 3, 3, 2),
    ),
    "reference": (
        layers.MultiHeadAttention,
        {
            "embedding_size": D,
            "n_heads": 2,
            "score": "additive",
            "impl": "reference",
            "kernel_initializer": "he_normal",
            "bias_initializer": "zeros",
        },
        LIST,
        (2, 3, D),
    ),
}


OTHERS = [name for name in ROWS if name.split("-")[-1] not in TABLE]
TURNS = {"jax": ("{}", "heads-{}", "self-{}"), "tensorflow": ("heads-{}", "self-{}", "{}")}
"""PyTorch runs every row. The backends that compile, which is slow, run a layer for each score."""
RUN = list(ROWS)
if BACKEND in TURNS:
    RUN = [TURNS[BACKEND][n % 3].format(name) for n, name in enumerate(TABLE)] + OTHERS


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")
@pytest.mark.filterwarnings("ignore:The model does not have any trainable weights")
@by_pair("name", RUN)
def test_the_layer_test_of_keras(name: str) -> None:
    """Configs, builds, symbols, eager calls, a step of training and mixed precision pass."""
    layer, arguments, shape, expected = ROWS[name]
    test = TestCase()
    test.setUp()
    test.run_layer_test(
        layer,
        init_kwargs=arguments,
        input_shape=shape,
        expected_output_shape=expected,
        expected_num_seed_generators=int(bool(arguments.get("dropout"))),
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=not isinstance(shape, dict),  # the test's model takes one argument
    )


LAYERS: dict[str, Any] = {
    "single": lambda: layers.Attention("additive", hidden=6, dropout=0.1),
    "self": lambda: layers.SelfAttention(D, 3, d_v=D),
    "heads": lambda: layers.MultiHeadAttention(D, 2, score="additive", dropout=0.1),
}


def called(name: str, batch: int = 2) -> Any:
    layer, x = LAYERS[name](), normal(batch, 30, D).astype("float32")
    layer(x, *([] if name == "self" else [x]))
    assert layer.attention_weights is not None
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_a_subclassed_model_fits(name: str) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.attention = LAYERS[name]()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(self.attention(x, *([] if name == "self" else [x])))

    model, x = Own(), normal(4, 3, D).astype("float32")
    model.compile("sgd", "mse")
    before = [np.array(w) for w in model(x) is not None and model.get_weights()]
    model.fit(x, np.ones((4, 3, 1)), verbose=0)
    moved = [not np.array_equal(w, v) for w, v in zip(before, model.get_weights(), strict=True)]
    assert all(moved[: len(model.attention.trainable_weights)])


@pytest.mark.skipif(BACKEND != "torch", reason="of torch.nn.Module")
@pytest.mark.parametrize("name", LAYERS)
def test_registry_of_torch(name: str) -> None:
    layer = called(name)
    variables = {id(x.value) for x in layer.variables}
    assert {id(x) for x in layer.parameters()} == variables
    kept = {x.data_ptr() for x in layer.state_dict().values()}  # layers in layers are there twice
    assert kept == {x.value.data_ptr() for x in layer.variables}
    layer.zero_grad()
    layer.to("cpu")
    assert len(list(torch.nn.Sequential(layer).parameters())) == len(variables)


OVERRIDDEN = {
    "__call__", "__doc__", "__init__", "__module__", "__qualname__", "__annotations__",
    "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__", "__dict__",
    "__weakref__", "build", "call", "compute_mask", "compute_output_shape", "compute_output_spec",
    "from_config", "get_build_config", "get_config", "supports_jit", "supports_masking",
}  # fmt: skip


def test_no_name_of_ours_is_taken() -> None:
    """Attributes of layers and models keep their meaning in Keras, on any backend, and PyTorch."""
    inputs = keras.Input((3,))
    theirs = [keras.layers.Layer(), keras.Model(inputs, inputs), torch.nn.Module()]
    if BACKEND == "tensorflow":
        import tensorflow as tf

        theirs.append(tf.Module())
    taken = {name for x in theirs for name in [*dir(x), *vars(x)]}
    ours = set()
    for made in LAYERS.values():
        for kind in type(made()).__mro__:
            if not kind.__module__.startswith("anyscore"):
                continue
            ours |= set(vars(kind))
            for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(kind)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    ours |= {node.attr} if getattr(node.value, "id", "") == "self" else set()
    assert {"_spec", "record", "attention", "by_position"} <= ours
    assert {"_parameters", "inputs", "build"} <= taken
    assert not (ours & taken) - OVERRIDDEN


@pytest.mark.parametrize("name", LAYERS)
def test_the_last_batch_stays_behind(name: str, tmp_path: Path) -> None:
    """Pickles, copies and files of a used layer hold its parameters alone."""
    few, many = (len(pickle.dumps(called(name, batch))) for batch in (1, 100))
    assert abs(many - few) < 100
    layer = called(name, 100)
    for again in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert again.attention_weights is None
        assert layer.attention_weights is not None
        for x, y in zip(layer.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(x, y)
    assert "last" not in str(layer.get_config())


OPTIONS = {
    "impl": "reference",
    "seed": 5,
    "kernel_initializer": keras.initializers.HeNormal(seed=1),
    "bias_initializer": "ones",
}


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: layers.Attention("additive", hidden=6, dropout=0.5, bias=True, **o),
        lambda **o: layers.AdditiveAttention(6, 0.5, bias=True, query_size=D, **o),
        lambda **o: layers.MLPAttention(6, 0.5, bias=True, **o),
        lambda **o: layers.DotProductAttention(0.5, scale=0.7, **o),
        lambda **o: layers.SelfAttention(D, 3, dropout=0.5, **o),
        lambda **o: layers.MultiHeadAttention(D, 2, dropout=0.5, output_shape=(2, 3), **o),
    ],
)
def test_options_go_round(make: Any) -> None:
    layer = make(**OPTIONS)
    config = layer.get_config()
    assert {"impl": "reference", "seed": 5}.items() <= config.items()
    assert config["kernel_initializer"]["class_name"] == "HeNormal"
    again = type(layer).from_config(config)
    assert again.get_config() == config
    x = normal(2, 3, D).astype("float32")
    given = [x] if isinstance(layer, layers.SelfAttention) else [x, x]
    for training in (False, True):
        found, same = (
            keras.ops.convert_to_numpy(y(*given, training=training)) for y in (layer, again)
        )
        np.testing.assert_allclose(found, same, rtol=1e-6)
    plain = make()
    plain(*given)
    assert plain.get_config()["impl"] == "auto"


def test_names_of_the_package() -> None:
    """The first call, with masks, raises no warning of Keras."""
    embed = keras.layers.Embedding(9, D, mask_zero=True)
    x = embed(np.array([[1, 2, 0], [3, 0, 0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in (
            layers.MultiHeadAttention(D, 2),
            layers.SelfAttention(D, 3),
            layers.Attention("dot"),
        ):
            layer(*[x] * (1 + isinstance(layer, layers.Attention)))
    assert set(anyscore.keras.__all__) <= set(dir(anyscore.keras))
