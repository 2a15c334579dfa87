"""Layers for Keras are right in values, masks of Keras, dropout, precision and errors."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import pytest

import anyscore
from anyscore import Additive, Causal, Gaussian, Lengths, Score, attention
from anyscore import keras as layers
from anyscore.functional.attention import plan
from anyscore.score.factors import Factors
from anyscore.score.pairs import PRODUCT
from helpers.by_pair import by_pair
from helpers.hang import HANG
from helpers.samples import normal
from helpers.table_scores import TABLE

BACKEND = keras.backend.backend()
B, T_Q, T_K, D, D_V = 2, 3, 5, 4, 7
KEEP = np.array([[1, 0, 1, 1, 0], [0, 1, 0, 0, 0]], bool)
QUERIES = np.array([[1, 1, 0], [1, 0, 0]], bool)
dot = layers.DotProductAttention


def arrays() -> list[np.ndarray]:
    shapes = (B, T_Q, D), (B, T_K, D), (B, T_K, D_V)
    return [normal(*shape).astype("float32") for shape in shapes]


def numpy(x: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(x)


def near(x: Any, y: Any, **options: Any) -> None:
    np.testing.assert_allclose(numpy(x), numpy(y), **{"rtol": 2e-5, "atol": 2e-6, **options})


def test_the_seeds_examples() -> None:
    """Equal keys average the values, for lengths 2 and 6."""
    keys, values = np.ones((2, 10, 2)), np.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    lens = np.array([2, 6])
    for layer, width in (
        (layers.AdditiveAttention(8, dropout=0.1), 20),
        (layers.MLPAttention(8), 20),
        (layers.DotProductAttention(dropout=0.5), 2),
    ):
        output = layer(normal(2, 1, width), keys, values, lens)
        near(output, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]])
        weights = numpy(layer.attention_weights)
        near(weights[0, 0], [0.5, 0.5, *[0] * 8])
        near(weights.sum(-1), np.ones((2, 1)))


@by_pair("name", TABLE)
def test_layers_of_all_scores(name: str) -> None:
    layer = layers.Attention(name, **({"hidden": 6} if TABLE[name].hidden else {}))
    output = layer(*arrays(), valid_lens=[2, 4])
    score = TABLE[name].of_layer(layer.numpy_parameters(), D, D)
    near(output, attention(*arrays(), score=score, valid_lens=[2, 4]))


@pytest.mark.parametrize("lens", [[2, 4], (2, 4), np.array([1.0, 4.0]), [[1, 2, 3], [0, 5, 9]], 3])
def test_lengths(lens: Any) -> None:
    layer = layers.DotProductAttention()
    expected = attention(*arrays(), valid_lens=lens if not isinstance(lens, tuple) else list(lens))
    near(layer(*arrays(), lens), expected)
    near(layer(*arrays(), valid_lens=lens), expected)
    layer = layers.SelfAttention(D, 2)
    near(layer(arrays()[0], lens), layer(arrays()[0], valid_lens=lens))


def test_lists_have_the_order_of_keras() -> None:
    query, key, value = arrays()
    layer = layers.DotProductAttention()
    near(layer([query, value, key]), layer(query, key, value))
    near(layer([query, key]), layer(query, key))
    near(layer([query, key]), layer(query, key, key))
    near(layer([query, value, key], valid_lens=[1, 2]), layer(query, key, value, [1, 2]))
    near(layer([query, key]), keras.layers.Attention()([query * D**-0.5, key]), atol=1e-5)


def test_masks_of_keras() -> None:
    query, key, value = arrays()
    layer = layers.DotProductAttention()
    theirs = keras.layers.Attention()
    for mask in ([None, KEEP], [QUERIES, KEEP], [QUERIES, None]):
        for causal in (False, True):
            if causal and mask[1] is not None:
                continue  # for a query without keys, Keras gives a mean
            expected = theirs(
                [query * D**-0.5, value, key], mask=list(mask), use_causal_mask=causal
            )
            found = layer([query, value, key], mask=list(mask), use_causal_mask=causal)
            near(found, expected, atol=1e-5)
    both = layer([query, value, key], mask=[None, KEEP, KEEP[::-1].copy()])
    near(both, attention(query, key, value, mask=(KEEP & KEEP[::-1])[:, None]))


def test_masks_of_ours() -> None:
    query, key, value = arrays()
    layer = layers.DotProductAttention()
    for mask in (Causal("end"), KEEP[:, None], Causal("start") & Lengths([3, 1])):
        expected = attention(query, key, value, mask=mask, valid_lens=[4, 2])
        near(layer(query, key, value, [4, 2], mask=mask), expected)


def test_masks_that_come_with_embeddings() -> None:
    """Masks of embeddings apply, in separate arguments and in a list, and go on with the output."""
    tokens, others = np.array([[1, 2, 0], [3, 0, 0]]), np.array([[4, 1, 2, 0, 0], [1, 0, 0, 0, 0]])
    embed = keras.layers.Embedding(9, D, mask_zero=True)
    layer = layers.DotProductAttention()
    q, k = numpy(embed(tokens)), numpy(embed(others))
    expected = attention(q, k, k, valid_lens=[3, 1])
    expected[0, 2:] = expected[1, 1:] = 0
    for output in (layer(embed(tokens), embed(others)), layer([embed(tokens), embed(others)])):
        near(output, expected)
        assert (numpy(output._keras_mask) == (tokens != 0)).all()
    with_lens = layer(embed(tokens), embed(others), valid_lens=[1, 1])
    near(with_lens[:, 0], k[:, 0])
    assert not numpy(with_lens)[:, 2].any()
    for many in (layers.MultiHeadAttention(D, 2), layers.SelfAttention(D, 3)):
        output = numpy(many(embed(tokens)))
        cut = numpy(many(q[:1, :2]))
        near(output[:1, :2], cut)
    inputs = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(embed(inputs[0]), embed(inputs[1])))
    near(model([tokens, others]), expected)


def test_nan_in_padding() -> None:
    query, key, value = arrays()
    for x in (key, value):
        x[~KEEP] = np.nan
    query[~QUERIES] = np.nan
    for layer in (layers.AdditiveAttention(6), layers.DotProductAttention()):
        output = numpy(layer([query, value, key], mask=[QUERIES, KEEP]))
        assert np.isfinite(output).all()
        assert not output[~QUERIES].any()


def test_attention_scores() -> None:
    layer = layers.AdditiveAttention(6)
    output, weights = layer(*arrays(), valid_lens=[2, 4], return_attention_scores=True)
    near(weights, layer.attention_weights)
    near(output, numpy(weights) @ arrays()[2])
    many = layers.MultiHeadAttention(8, 2, d_q=D, d_k=D, d_v=D_V)
    output, weights = many(*arrays(), return_attention_scores=True)
    assert tuple(weights.shape) == (B, 2, T_Q, T_K)
    near(weights, many.attention_weights)


def test_dropout() -> None:
    layer = layers.DotProductAttention(dropout=0.5)
    expected = attention(*arrays())
    near(layer(*arrays()), expected)
    near(layer(*arrays(), training=False), expected)

    def draw() -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        layer = layers.DotProductAttention(dropout=0.5)
        return [numpy(layer(*arrays(), training=True)) for _ in range(2)]

    first, second = draw()
    assert not np.array_equal(first, second)
    assert not np.allclose(first, expected)
    for x, y in zip(draw(), (first, second), strict=True):
        assert np.array_equal(x, y)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_precision(half: str) -> None:
    """Layers compute in half, with parameters in float32, and round neither scales nor lengths."""
    for make in (lambda: layers.AdditiveAttention(6), lambda: layers.Attention("gaussian")):
        wide = make()
        expected = wide(*arrays(), valid_lens=[2, 4])
        keras.config.set_dtype_policy(f"mixed_{half}")
        layer = make()
        layer.build(*(x.shape for x in arrays()))
        layer.load_numpy_parameters(wide.numpy_parameters())
        output = layer(*arrays(), valid_lens=[2, 4])
        assert keras.backend.standardize_dtype(output.dtype) == half
        assert {x.dtype for x in layer.weights} == {"float32"}
        near(keras.ops.cast(output, "float32"), expected, atol=0.05)
        keras.config.set_dtype_policy("float32")
    layer = layers.DotProductAttention(dtype=f"mixed_{half}")
    many = np.ones((1, 3001, 1), "float32")
    weights = layer(many[:, :1], many, many, np.array([2999.0]), return_attention_scores=True)[1]
    assert (numpy(weights)[0, 0] > 0).sum() == 2999


def test_score_objects_and_callables() -> None:
    query, key, value = arrays()
    W, w = normal(6, D).astype("float32"), normal(6).astype("float32")
    trained = keras.Variable(W)
    layer = layers.Attention(Additive(trained, W, w))
    near(layer(query, key, value), attention(query, key, value, score=Additive(W, W, w)))
    assert [x.name for x in layer.trainable_weights] == ["W_q"]
    assert len(layer.non_trainable_weights) == 2
    near(
        layers.Attention(Gaussian(2.0))(query, key, value),
        attention(*arrays(), score=Gaussian(2.0)),
    )

    layer.score = Gaussian(5.0)  # replaced
    near(layer(query, key, value), attention(*arrays(), score=Gaussian(5.0)))
    layer.score = "gaussian"
    with pytest.raises(TypeError, match="parameters are of the first score"):
        layer(query, key, value)

    def product(q: Any, k: Any) -> Any:
        return keras.ops.matmul(q, keras.ops.swapaxes(k, -1, -2))

    near(layers.Attention(product)(query, key, value), attention(*arrays(), score=anyscore.Dot()))

    class Learned(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, q: Any, k: Any) -> Any:
            return product(q, k) * self.scale

    layer = layers.Attention(Learned())
    near(layer(query, key, value), attention(*arrays(), score=anyscore.Dot()))
    assert len(layer.trainable_weights) == 1


def test_heads() -> None:
    """A multi-head layer agrees with its formula in NumPy."""
    layer = layers.MultiHeadAttention(6, 3, kv_heads=1, score="gaussian", d_q=D, d_k=D, d_v=D_V)
    output = layer(*arrays(), valid_lens=[2, 4])
    p = layer.numpy_parameters()

    def project(x: np.ndarray, name: str, heads: int) -> np.ndarray:
        y = x @ p[f"{name}.weight"].T + p[f"{name}.bias"]
        return y.reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)

    heads = [
        project(x, name, n)
        for x, (name, n) in zip(arrays(), {"W_q": 3, "W_k": 1, "W_v": 1}.items(), strict=True)
    ]
    score = Gaussian(np.exp(p["attention.log_sigma.weight"]))
    merged = attention(*heads, score=score, valid_lens=[2, 4]).swapaxes(1, 2).reshape(B, T_Q, 6)
    near(output, merged @ p["W_o.weight"].T + p["W_o.bias"])


def test_masked_softmax() -> None:
    x = normal(2, 2, 4).astype("float32")
    expected = numpy(layers.masked_softmax(x, [[1, 2], [0, 4]]))
    near(expected[0, 0], [1, 0, 0, 0])
    assert not expected[1, 0].any()
    near(expected.sum(-1), [[1, 1], [0, 1]])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: layers.Attention("aditive"), ValueError, "did you mean 'additive'"),
        (lambda: layers.Attention("additive"), ValueError, "hidden="),
        (lambda: layers.Attention("dot", dropout=1.0), ValueError, r"dropout must be in \[0, 1\)"),
        (lambda: layers.Attention("dot", sigma=1.0), TypeError, "has no scale 'sigma'"),
        (lambda: layers.Attention(3), TypeError, "score must be a name"),
        (lambda: layers.MultiHeadAttention(8, 3), ValueError, "must divide embedding_size=8"),
        (lambda: dot()(arrays()[0]), ValueError, "pass keys"),
        (lambda: dot()(arrays()[2], arrays()[1]), ValueError, "of one width"),
        (lambda: dot()([*arrays(), arrays()[0]]), ValueError, "list of 4"),
        (lambda: dot()(*arrays(), [1, 2, 3]), ValueError, "valid_lens has shape"),
        (lambda: layers.AdditiveAttention(4).numpy_parameters(), ValueError, "call it once"),
    ],
)  # fmt: skip
def test_errors(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_the_core_computes() -> None:
    tensors = [keras.ops.convert_to_tensor(x) for x in arrays()]
    assert plan(*tensors).route == "cpu"


def test_imports() -> None:
    code = "import sys, anyscore; assert 'keras' not in sys.modules\nimport anyscore.keras"
    other = {"tensorflow": "torch", "jax": "torch", "torch": "tensorflow"}[BACKEND]
    code += f"\nassert {other!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)


@dataclass(frozen=True, eq=False)
class Twice(Score):
    """s = 2 qᵀk."""

    formula: ClassVar[str] = "2 q·k"

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, PRODUCT, scale=2.0)


def test_a_score_of_the_user_s_own() -> None:
    """A user's score works in every layer; to save the score, Keras must know its class."""
    x = np.ones((2, 3, 4), "float32")
    single = layers.Attention(Twice())
    assert tuple(single(x, x).shape) == (2, 3, 4)
    for layer in (
        single,
        layers.SelfAttention(4, 2, score=Twice()),
        layers.MultiHeadAttention(4, 2, score=Twice()),
    ):
        assert tuple(layer(x, *[x] * (layer is single)).shape) == (2, 3, 4)
        with pytest.raises(TypeError, match="serialize"):
            layer.get_config()


def test_sizes_given_make_the_parameters() -> None:
    made = [
        layers.AdditiveAttention(8, query_size=5, key_size=3),
        layers.SelfAttention(6, 4),
        layers.MultiHeadAttention(8, 2, d_k=3, score="additive"),
    ]
    for layer in made:
        arrays = layer.numpy_parameters()
        assert arrays
        layer.load_numpy_parameters({name: x + 1 for name, x in arrays.items()})
        found = layer.numpy_parameters()
        assert all(np.array_equal(found[name], x + 1) for name, x in arrays.items())
    with pytest.raises(ValueError, match="sizes"):
        layers.Attention("additive", hidden=8).numpy_parameters()
