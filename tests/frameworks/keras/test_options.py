"""Options of Keras's own attention layers, and impl=, have their effects."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from anyscore import Additive, Lengths, attention
from anyscore.keras import AdditiveAttention, Attention, MultiHeadAttention, SelfAttention
from frameworks.keras.arrays import D_V, T_K, T_Q, B, D, arrays, near, numpy
from helpers.samples import normal


def test_initializers() -> None:
    """Each weight is drawn by itself, with the fans of a Dense layer of the same weight."""
    options = {
        "kernel_initializer": keras.initializers.VarianceScaling(3.0, "fan_in", "uniform"),
        "bias_initializer": "ones",
    }
    layer = MultiHeadAttention(400, 2, d_q=100, score="additive", **options)
    p = layer.numpy_parameters()
    for name, fan_in in {"W_q": 100, "W_k": 400, "W_o": 400, "attention.w_v": 200}.items():
        largest = np.abs(p[f"{name}.weight"]).max()
        bound = 3 * fan_in**-0.5
        assert 0.95 * bound < largest <= bound
    assert (p["W_o.bias"] == 1).all()
    assert not np.array_equal(p["W_k.weight"], p["W_v.weight"])
    single = Attention("additive", hidden=50, bias=True, d_q=100, d_k=D, **options)
    p = single.numpy_parameters()
    assert 0.95 * 0.3 < np.abs(p["W_q.weight"]).max() <= 0.3
    assert (p["bias.weight"] == 1).all()
    sigma, plain = (
        Attention("gaussian", d_q=D, d_k=D, **o).numpy_parameters()
        for o in ({"kernel_initializer": "zeros"}, {})
    )
    assert sigma == plain  # σ does not start at random
    assert sigma["log_sigma.weight"] != 0
    for make in (lambda **o: Attention("bilinear", **o), lambda **o: MultiHeadAttention(D, 2, **o)):
        layer = make(kernel_initializer=lambda shape, dtype=None: keras.ops.full(shape, 0.5, dtype))
        layer(*arrays()[:1] * 2)
        assert (layer.get_weights()[0] == 0.5).all()  # unregistered initializers work, unsaved
    fixed = Attention("bilinear", d_q=D, d_k=D, kernel_initializer="identity").numpy_parameters()
    near(fixed["W.weight"], np.eye(D))


def test_seed() -> None:
    def draw(seed: int | None) -> np.ndarray:
        options = {"kernel_initializer": "ones", "bias_initializer": "zeros", "seed": seed}
        layer = MultiHeadAttention(D, 2, dropout=0.5, **options)
        return numpy(layer(arrays()[0], training=True))

    near(draw(3), draw(3))
    assert not np.allclose(draw(3), draw(4))
    assert not np.allclose(draw(None), draw(None))


@pytest.mark.parametrize(("given", "axes"), [(6, (6,)), ((6,), (6,)), ([3, 2], (3, 2))])
def test_output_shape(given: Any, axes: tuple[int, ...]) -> None:
    layer = MultiHeadAttention(D, 2, d_v=D_V, output_shape=given)
    query, key, value = arrays()
    output, weights = layer(query, key, value, return_attention_scores=True)
    assert tuple(output.shape) == (B, T_Q, *axes)
    assert layer.compute_output_shape(query.shape, key.shape, value.shape) == (B, T_Q, *axes)
    theirs = {"query_shape": query.shape, "value_shape": value.shape, "key_shape": key.shape}
    assert layer.compute_output_shape(**theirs) == (B, T_Q, *axes)
    p = layer.numpy_parameters()
    assert p["W_o.weight"].shape == (6, D)
    plain = MultiHeadAttention(D, 2, d_v=D_V, project_output=False)
    plain.load_numpy_parameters({x: y for x, y in p.items() if "W_o" not in x})
    expected = numpy(plain(query, key, value)) @ p["W_o.weight"].T + p["W_o.bias"]
    near(output, expected.reshape(B, T_Q, *axes))
    symbols = [keras.Input((None, x.shape[-1])) for x in arrays()]
    model = keras.Model(symbols, layer(*symbols))
    assert model.output.shape == (None, None, *axes)
    near(model.predict(arrays(), verbose=0), output)
    assert tuple(weights.shape) == (B, 2, T_Q, T_K)
    symbols = [keras.Input(x.shape[1:]) for x in arrays()]
    assert layer(*symbols, return_attention_scores=True)[1].shape == (None, 2, T_Q, T_K)


def test_output_shapes_that_are_not() -> None:
    wrong = (8.0, TypeError), ((2, None), TypeError), (0, ValueError), ((), ValueError)
    for given, error in wrong:
        with pytest.raises(error, match="output_shape must be"):
            MultiHeadAttention(D, 2, output_shape=given)
    with pytest.raises(ValueError, match="leave out project_output=False"):
        MultiHeadAttention(D, 2, output_shape=3, project_output=False)


@pytest.mark.parametrize(
    "shapes",
    [
        {"input_shape": [(B, T_Q, D), (B, T_K, D_V), (B, T_K, D)]},
        {"query_shape": (B, T_Q, D), "value_shape": (B, T_K, D_V), "key_shape": (B, T_K, D)},
        {"queries_shape": (B, T_Q, D), "keys_shape": (B, T_K, D), "values_shape": (B, T_K, D_V)},
    ],
)
def test_built_as_keras_builds(shapes: dict[str, Any]) -> None:
    for layer in (AdditiveAttention(5), MultiHeadAttention(D, 2, d_v=D_V)):
        layer.build(**shapes)
        count = len(layer.weights)
        assert count == len(layer.numpy_parameters()) > 0
        layer(*arrays())
        assert len(layer.weights) == count
        again = type(layer).from_config(layer.get_config())
        again.build_from_config(layer.get_build_config())
        assert [x.shape for x in again.weights] == [x.shape for x in layer.weights]
    alone = SelfAttention(D, 3)
    alone.build(input_shape=(None, None, D))
    assert len(alone.weights) == 2
    with pytest.raises(TypeError, match="no argument has the shape x_shape"):
        AdditiveAttention(5).build(x_shape=(B, T_Q, D))


def test_impl() -> None:
    query, key, value = arrays()
    weights = [(0.2 * normal(*shape)).astype("float32") for shape in ((5, D), (5, D), (5,))]
    score = Additive(*weights)
    expected = attention(query, key, value, score=score, mask=Lengths([2, 4]))
    for impl in ("auto", "reference", "fused"):
        near(Attention(score, impl=impl)(query, key, value, [2, 4]), expected)
    with pytest.raises(NotImplementedError, match='impl="separable" cannot run: it '):
        Attention(score, impl="separable")(query, key, value)
    for make in (
        Attention,
        lambda **o: SelfAttention(D, 2, **o),
        lambda **o: MultiHeadAttention(D, 2, **o),
    ):
        with pytest.raises(ValueError, match="impl must be one of"):
            make(impl="fast")
    with pytest.raises(NotImplementedError):  # layers that project pass impl on
        MultiHeadAttention(D, 2, impl="separable")(query)
