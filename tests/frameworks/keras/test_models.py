"""Models of Keras train, save, export and clone; PyTorch gives and takes their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import anyscore.torch
from anyscore import Additive, Causal, Gaussian
from anyscore import keras as layers
from helpers.by_pair import by_pair
from helpers.samples import normal, old_name

BACKEND = keras.backend.backend()
D = 4
MAKERS: dict[str, Any] = {
    "attention": lambda: layers.Attention("additive", hidden=5, dropout=0.1),
    "gaussian": lambda: layers.Attention("gaussian"),
    "sigma": lambda: layers.Attention("gaussian", sigma=0.5),
    "number": lambda: layers.Attention(Gaussian(np.float32(1.5))),
    "object": lambda: layers.Attention(
        Additive(keras.Variable(normal(5, D)), normal(5, D), normal(5))
    ),
    "bilinear": lambda: layers.Attention("bilinear", d_q=D, d_k=D),
    "dot": lambda: layers.DotProductAttention(0.1),
    "additive": lambda: layers.AdditiveAttention(5, 0.1, bias=True),
    "mlp": lambda: layers.MLPAttention(5),
    "heads": lambda: layers.MultiHeadAttention(D, 2, score="gatv2", bias=False),
    "grouped": lambda: layers.MultiHeadAttention(
        D, 2, kv_heads=1, project_output=False, dropout=0.1
    ),
}


def model(layer: Any, lengths: bool = True) -> keras.Model:
    """Return a model of sequences whose lengths are not known."""
    inputs = [keras.Input((None, D)), keras.Input((None, D))]
    lens = [keras.Input((), dtype="int32")] if lengths else []
    output = layer(*inputs, valid_lens=lens[0] if lengths else None)
    return keras.Model([*inputs, *lens], keras.layers.Dense(3)(output))


def data(batch: int = 4, queries: int = 3, keys: int = 6) -> list[np.ndarray]:
    lens = np.arange(batch, dtype="int32") % keys
    arrays = normal(batch, queries, D), normal(batch, keys, D)
    return [*(x.astype("float32") for x in arrays), lens]


def numpy(x: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("name", ["attention", "heads"])
def test_fit(name: str) -> None:
    """A model learns the outputs of another of its kind; lengths change from batch to batch."""
    teacher, pupil = model(MAKERS[name]()), model(MAKERS[name]())
    pupil.compile(keras.optimizers.Adam(0.02), "mse")
    assert pupil.jit_compile is (BACKEND == "jax")
    batches = [data(), data(4, 5, 8)]
    losses = []
    for _ in range(8 if BACKEND == "jax" else 15):
        for x in batches:
            losses.append(pupil.train_on_batch(x, teacher.predict_on_batch(x)))
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.8 * losses[1]
    history = pupil.fit(batches[0], teacher.predict_on_batch(batches[0]), verbose=0, batch_size=2)
    assert np.isfinite(history.history["loss"]).all()


def test_training_is_reproducible() -> None:
    def train() -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        pupil = model(MAKERS["attention"]())
        pupil.compile("sgd", "mse")
        pupil.fit(data(), normal(4, 3, 3), epochs=2, verbose=0)
        return pupil.get_weights()

    for x, y in zip(train(), train(), strict=True):
        assert np.array_equal(x, y)


@by_pair("name", MAKERS)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    before = model(MAKERS[name]())
    expected = numpy(before(data()))
    before.save(tmp_path / "model.keras")
    after = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(after(data())), expected)
    before.save_weights(tmp_path / "model.weights.h5")
    again = model(MAKERS[name]())
    again.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(numpy(again(data())), expected)


@by_pair("name", MAKERS)
def test_config(name: str) -> None:
    layer = MAKERS[name]()
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    layer(*data()[:2])
    again(*data()[:2])
    again.load_numpy_parameters(layer.numpy_parameters())
    for x, y in ((layer, again), (again, layer)):
        found, same = (numpy(z(*data()[:2])) for z in (x, y))
        np.testing.assert_array_equal(found, same)
    keras.models.clone_model(model(layer))


def test_shapes_of_models() -> None:
    a, b, c = (keras.Input((None, n)) for n in (D, D, 7))
    layer = layers.Attention("dot")
    assert layer(a, b, c).shape == (None, None, 7)
    assert layer([a, c, b]).shape == (None, None, 7)
    output, weights = layer(a, b, c, return_attention_scores=True)
    assert (output.shape, weights.shape) == ((None, None, 7), (None, None, None))
    assert layers.MultiHeadAttention(8, 2, d_q=D, d_k=D, d_v=7)(a, b, c).shape == (None, None, 8)
    assert layers.SelfAttention(D, 3, d_v=5)(a).shape == (None, None, 5)
    assert layers.SelfAttention(D, 3, d_v=5, project_output=True)(a).shape == (None, None, D)
    assert layer.compute_output_shape((2, 3, D), (2, 5, D), (2, 5, 7)) == (2, 3, 7)
    assert layer.compute_output_shape((2, 6, 3, D), (2, 1, 5, D)) == (2, 6, 3, D)
    assert layer.compute_output_shape([(2, 3, D), (2, 5, 7), (2, 5, D)]) == (2, 3, 7)


def test_symbols_of_masks() -> None:
    inputs = keras.Input((None, D)), keras.Input((None, D))
    causal = keras.Model(inputs, layers.Attention("dot")(*inputs, use_causal_mask=True))
    x = data()[0]
    expected = anyscore.attention(x, x, x, score=anyscore.Dot(), mask=Causal())
    np.testing.assert_allclose(causal.predict([x, x], verbose=0), expected, rtol=1e-4, atol=1e-5)


def test_weights_of_traced_calls_are_not_recorded() -> None:
    layer = layers.DotProductAttention()
    assert layer.attention_weights is None
    layer(*data()[:2])
    assert layer.attention_weights is not None
    if BACKEND != "torch":
        model(layer).predict(data(), verbose=0)
        assert layer.attention_weights is None


TWINS: dict[str, Any] = {
    "attention": (lambda kit: kit.Attention("additive", hidden=5, d_q=D, d_k=D, bias=True), 2),
    "concat": (lambda kit: kit.Attention("concat", hidden=5, d_q=D, d_k=D), 2),
    "gaussian": (lambda kit: kit.Attention("gaussian", d_q=D, d_k=D), 2),
    "additive": (lambda kit: kit.AdditiveAttention(5, query_size=D, key_size=D), 2),
    "self": (lambda kit: kit.SelfAttention(D, 3, d_v=2, project_output=True), 1),
    "heads": (lambda kit: kit.MultiHeadAttention(D, 2, kv_heads=1, score="additive"), 2),
    "trilinear": (lambda kit: kit.MultiHeadAttention(D, 2, score="trilinear", bias=False), 2),
}


@by_pair("name", TWINS)
def test_parameters_of_pytorch(name: str) -> None:
    """Parameters go both ways under the same names; the layers then compute the same."""
    make, count = TWINS[name]
    ours, theirs = make(anyscore.keras), make(anyscore.torch)
    arrays = data()[:count]
    ours(*arrays)
    assert list(ours.numpy_parameters()) == list(theirs.state_dict())

    def both() -> tuple[np.ndarray, np.ndarray]:
        found = ours(*arrays, valid_lens=[1, 2, 3, 3])
        expected = theirs(*map(torch.tensor, arrays), valid_lens=[1, 2, 3, 3])
        return numpy(found), expected.detach().numpy()

    theirs.load_numpy_parameters(ours.numpy_parameters())
    np.testing.assert_allclose(*both(), rtol=1e-4, atol=1e-5)
    theirs = make(anyscore.torch)
    ours.load_numpy_parameters(theirs.numpy_parameters())
    np.testing.assert_allclose(*both(), rtol=1e-4, atol=1e-5)


def test_old_names_and_wrong_ones() -> None:
    layer = layers.AdditiveAttention(5)
    layer(*data()[:2])
    own = layer.numpy_parameters()
    layer.load_numpy_parameters(
        {**{n: own[n] * 0 for n in own if n != "w_v.weight"}, "v.weight": own["w_v.weight"]}
    )
    assert not layer.numpy_parameters()["W_q.weight"].any()
    with pytest.raises(ValueError, match=r"expected parameters W_q\.weight"):
        layer.load_numpy_parameters({"W_q.weight": own["W_q.weight"]})
    with pytest.raises(ValueError, match=r"W_q\.weight has shape \(4, 5\), expected \(5, 4\)"):
        layer.load_numpy_parameters({**own, "W_q.weight": own["W_q.weight"].T})
    heads = layers.MultiHeadAttention(D, 2)
    heads(*data()[:2])
    own = heads.numpy_parameters()
    fused = {"in_proj_weight": normal(3 * D, D), "in_proj_bias": normal(3 * D)}
    fused |= {"out_proj.weight": own["W_o.weight"], "out_proj.bias": own["W_o.bias"]}
    heads.load_numpy_parameters(fused)
    found = heads.numpy_parameters()["W_k.weight"]
    np.testing.assert_allclose(found, fused["in_proj_weight"][D : 2 * D], rtol=1e-6)


@pytest.mark.parametrize("make", [layers.MultiHeadAttention, layers.SelfAttention])
def test_old_names_of_layers_that_project(make: Any) -> None:
    layer = make(D, 2, score="gatv2")
    own = {name: x + 1 for name, x in layer.numpy_parameters().items()}
    layer.load_numpy_parameters({old_name(name): x for name, x in own.items()})
    for name, x in layer.numpy_parameters().items():
        np.testing.assert_array_equal(x, own[name])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the format is TensorFlow's")
@pytest.mark.parametrize("name", ["additive", "heads"])
def test_exported(name: str, tmp_path: Path) -> None:
    """An exported model has the definition: graphs of other processes cannot call the core."""
    import tensorflow as tf

    trained = model(MAKERS[name]())
    trained.compile("sgd", "mse")
    trained.fit(data(), normal(4, 3, 3), verbose=0)
    trained.export(tmp_path, verbose=False)
    served = tf.saved_model.load(str(tmp_path))
    graph = served.signatures["serving_default"].graph.as_graph_def()
    ops = {node.op for f in graph.library.function for node in f.node_def}
    assert not any("PyFunc" in op for op in ops)
    expected = trained.predict(data(), verbose=0)
    np.testing.assert_allclose(served.serve(data()), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="as asked of TensorFlow")
def test_xla() -> None:
    pupil = model(MAKERS["gaussian"]())
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        pupil.compile("sgd", "mse", jit_compile=True)
    import tensorflow as tf

    compiled = tf.function(pupil, jit_compile=True)(data())
    np.testing.assert_allclose(compiled, pupil.predict(data(), verbose=0), rtol=1e-4, atol=1e-5)
