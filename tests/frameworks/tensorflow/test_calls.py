"""Eager calls are right: higher derivatives, masked keys, dropout, variables, prepared keys."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import torch

from anyscore import Additive, Causal, Keys, Lengths, Score, attention, prepare_keys
from anyscore.functional.attention import plan
from anyscore.modifiers.dropout import philox
from anyscore.ops import framework, load
from helpers.by_pair import by_pair
from helpers.hang import HANG
from helpers.samples import NAMES, PAIRS, make_score, normal

B, T_Q, T_K, D, D_V = 3, 4, 6, 5, 2
LENGTHS = np.array([0, 2, 6])
IMPLS = pytest.mark.parametrize("impl", ["reference", "fused"])


def arrays(dtype: str = "float64") -> list[np.ndarray]:
    return [normal(*shape).astype(dtype) for shape in ((B, T_Q, D), (B, T_K, D), (B, T_K, D_V))]


def tensors(dtype: str = "float64") -> list[tf.Tensor]:
    return [tf.constant(x) for x in arrays(dtype)]


def tensor_score(name: str) -> Score:
    return make_score(name).map(tf.constant)


@IMPLS
@by_pair("name", NAMES)
def test_second_derivatives(name: str, impl: str) -> None:
    """Second derivatives of a masked call with dropout agree with differences, for all inputs."""
    given, score = tensors(), tensor_score(name)
    given += score.tensors().values()
    fields = list(score.tensors())
    ways = [tf.constant(normal(*x.shape, seed=i)) for i, x in enumerate(given)]

    def total(xs: list[tf.Tensor]) -> tf.Tensor:
        built = type(score)(**{**vars(score), **dict(zip(fields, xs[3:], strict=True))})
        found = attention(
            *xs[:3], score=built, mask=Causal("end") & Lengths(LENGTHS), return_lse=True,
            dropout=0.2, dropout_seed=5, impl=impl,
        )  # fmt: skip
        lse = tf.where(tf.math.is_finite(found.lse), found.lse, tf.zeros_like(found.lse))
        return tf.reduce_sum(tf.sin(found.output)) + tf.reduce_sum(tf.sin(lse))

    def slope(xs: list[tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = total(xs)
        slopes = tape.gradient(y, xs)
        return tf.add_n([tf.reduce_sum(g * w) for g, w in zip(slopes, ways, strict=True)])

    with tf.GradientTape() as tape:
        tape.watch(given)
        first = slope(given)
    slopes = tape.gradient(first, given, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    found = sum(tf.reduce_sum(g * w) for g, w in zip(slopes, ways, strict=True))
    step = 1e-6
    more, less = ([x + s * w for x, w in zip(given, ways, strict=True)] for s in (step, -step))
    differences = (slope(more) - slope(less)) / (2 * step)
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("traced", [False, True])
def test_second_derivatives_of_one_tensor_in_three_places(traced: bool) -> None:
    """In self-attention without projections, each place has derivatives of its own."""

    def curvature(x: tf.Tensor, impl: str) -> tf.Tensor:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(attention(x, x, x, impl=impl) ** 2)
            size = tf.reduce_sum(tape.gradient(y, x) ** 2)
        return outer.gradient(size, x)

    run = tf.function(curvature) if traced else curvature
    x = tf.constant(normal(T_Q, D))
    np.testing.assert_allclose(run(x, "fused"), run(x, "reference"), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["Additive", "ScaledDot"])
def test_forward_mode(name: str) -> None:
    """The reference has forward mode, the core refuses; a function has the core's derivatives."""
    given, score = tensors(), tensor_score(name)
    ways = [tf.constant(normal(*x.shape, seed=i)) for i, x in enumerate(given)]

    def call(*xs: tf.Tensor, impl: str = "auto") -> tf.Tensor:
        return attention(*xs, score=score, valid_lens=LENGTHS, impl=impl)

    with tf.GradientTape() as tape:
        tape.watch(given)
        y = call(*given)
    slopes = tape.gradient(y, given)
    with tf.autodiff.ForwardAccumulator(given, ways) as forward:
        y = call(*given)
    with tf.autodiff.ForwardAccumulator(given, ways) as of_function:
        traced = tf.function(call)(*given)
    np.testing.assert_allclose(of_function.jvp(traced), forward.jvp(y), rtol=1e-9)
    expected = sum(tf.reduce_sum(g * w) for g, w in zip(slopes, ways, strict=True))
    np.testing.assert_allclose(tf.reduce_sum(forward.jvp(y)), expected, rtol=1e-9)
    with (
        tf.autodiff.ForwardAccumulator(given, ways),
        pytest.raises(NotImplementedError, match="forward mode"),
    ):
        call(*given, impl="fused")


@IMPLS
def test_persistent_tapes_and_jacobians(impl: str) -> None:
    query, key, value = tensors()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(query)
        output = attention(query, key, value, valid_lens=LENGTHS, impl=impl)[:, 0, 0]
    whole = tape.jacobian(output, query)
    for i in range(B):
        with tf.GradientTape() as one:
            one.watch(query)
            entry = attention(query, key, value, valid_lens=LENGTHS, impl="reference")[i, 0, 0]
        np.testing.assert_allclose(whole[i], one.gradient(entry, query), atol=1e-12)


@IMPLS
@by_pair("name", NAMES)
def test_nan_in_padding_reaches_nothing(name: str, impl: str) -> None:
    """NaN in padding reaches no result, no row without keys and no gradient of parameters."""
    query, key, value = arrays("float32")
    score = make_score(name).map(lambda x: tf.constant(x.astype("float32")))

    def call(fill: float) -> list[np.ndarray]:
        padded = np.arange(T_K)[:, None] >= LENGTHS[:, None, None]
        k, v = (np.where(padded, np.float32(fill), x) for x in (key, value))
        q = np.where(LENGTHS[:, None, None] == 0, np.float32(fill), query)
        inputs = [*map(tf.constant, (q, k, v)), *score.tensors().values()]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            found = attention(
                *inputs[:3], score=score, valid_lens=LENGTHS, return_weights=True, impl=impl
            )
            y = tf.reduce_sum(found.output**2)
        assert not found.output[0].numpy().any()
        assert not found.weights[0].numpy().any()
        zero = tf.UnconnectedGradients.ZERO
        return [found.output, found.weights, *tape.gradient(y, inputs, unconnected_gradients=zero)]

    for clean, dirty in zip(call(0.0), call(np.nan), strict=True):
        np.testing.assert_allclose(dirty, clean, rtol=1e-5, atol=1e-6)


@IMPLS
@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("name", ["Additive", "ScaledDot"])
def test_nan_reaches_only_what_attends_it(name: str, which: int, impl: str) -> None:
    """NaN in the last key or value reaches values and gradients of the last query alone."""
    score = tensor_score(name)

    def call(fill: float) -> tuple[np.ndarray, np.ndarray]:
        given = arrays()
        given[which][:, -1] = fill
        inputs = [*map(tf.constant, given)]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = attention(*inputs, score=score, mask=Causal("end"), impl=impl)
            y = tf.reduce_sum(output**2)
        return output.numpy(), tape.gradient(y, inputs[0]).numpy()

    for clean, dirty in zip(call(0.5), call(np.nan), strict=True):
        np.testing.assert_allclose(dirty[:, :-1], clean[:, :-1], rtol=1e-10)
        assert np.isnan(dirty[:, -1]).all()


@IMPLS
@pytest.mark.parametrize("seed", [0, 2**32 + 1, 2**63 - 1, -1, -(2**63)])
def test_dropout_is_that_of_numpy(seed: int, impl: str) -> None:
    expected = attention(*arrays(), dropout=0.3, dropout_seed=seed)
    for given in (seed, tf.constant(seed, tf.int64)):
        found = attention(*tensors(), dropout=0.3, dropout_seed=given, impl=impl)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_known_answers_of_philox() -> None:
    """Philox gives the vector that Random123 publishes for philox4x32, 10 rounds."""
    counter = [tf.constant(x, tf.int64) for x in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)]
    key = tf.constant(0xA4093822, tf.int64), tf.constant(0x299F31D0, tf.int64)
    found = [int(x) for x in philox(load("tensorflow"), counter, key)]
    assert found == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_seeds_come_from_the_generator() -> None:
    def draw() -> tuple[np.ndarray, np.ndarray]:
        tf.random.set_seed(7)
        return tuple(attention(*tensors(), dropout=0.5).numpy() for _ in range(2))

    (first, second), again = draw(), draw()
    assert np.array_equal(first, again[0])
    assert np.array_equal(second, again[1])
    assert not np.array_equal(first, second)


@IMPLS
def test_variables(impl: str) -> None:
    """Variables may be inputs and parameters, with gradients that an optimiser takes."""
    score = make_score("Additive").map(tf.Variable)
    query = tf.Variable(arrays()[0])
    with tf.GradientTape() as tape:
        output = attention(query, *tensors()[1:], score=score, impl=impl)
    variables = [query, *score.tensors().values()]
    assert all(g is not None for g in tape.gradient(output, variables))
    expected = attention(*arrays(), score=make_score("Additive"))
    np.testing.assert_allclose(output, expected, rtol=1e-12)
    assert plan(query, *tensors()[1:], score=score).route == "cpu"


def test_prepared_keys() -> None:
    query, key, value = tensors()
    score = tensor_score("Additive")
    prepared = prepare_keys(key, score, valid_lens=LENGTHS)
    assert prepared.packed is not None
    found = attention(query, prepared, value, score=score, valid_lens=LENGTHS)
    expected = attention(query, key, value, score=score, valid_lens=LENGTHS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_masks_of_any_array() -> None:
    query, key, value = tensors()
    keep = np.random.default_rng(0).random((B, T_K)) < 0.5
    expected = attention(*arrays(), mask=Keys(keep), valid_lens=LENGTHS)
    for to in (tf.constant, np.asarray, np.ndarray.tolist):
        mask = Keys(keep if to is np.ndarray.tolist else to(keep))
        found = attention(query, key, value, mask=mask, valid_lens=to(LENGTHS))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    mask = tf.constant(keep[:, None])
    np.testing.assert_allclose(attention(query, key, value, mask=mask & Lengths(LENGTHS)), expected)
    np.testing.assert_allclose(attention(query, key, value, mask=Lengths(LENGTHS) & mask), expected)


@pytest.mark.parametrize("n", [math.nan, 2.5])
def test_lengths_are_whole_numbers(n: float) -> None:
    """Lengths of a graph cannot be refused: fractions are rounded up, NaN means no keys."""
    given = tf.constant([n] * B)
    for lengths in (given, [n] * B):
        with pytest.raises(ValueError, match=f"valid_lens holds {n}, expected whole numbers"):
            attention(*tensors(), valid_lens=lengths)
    run = tf.function(lambda lengths: attention(*tensors(), valid_lens=lengths))
    expected = attention(*arrays(), valid_lens=[0 if n != n else 3] * B)
    np.testing.assert_allclose(run(given), expected, rtol=1e-12)


def test_results_do_not_share_memory_with_inputs() -> None:
    given = tensors()
    before = [x.numpy() for x in given]
    with tf.GradientTape() as tape:
        tape.watch(given)
        output = attention(*given)
    tape.gradient(output, given)
    for x, old in zip(given, before, strict=True):
        assert np.array_equal(x, old)


def test_kinds_are_not_mixed() -> None:
    query, key, value = tensors()
    with pytest.raises(TypeError, match=r"TensorFlow.*NumPy"):
        attention(query, key.numpy(), value)
    with pytest.raises(TypeError, match=r"TensorFlow.*PyTorch"):
        attention(query, key, torch.tensor(value.numpy()))
    with pytest.raises(TypeError, match=r"TensorFlow.*NumPy"):
        attention(query, key, value, score=Additive(None, None, np.ones(D)))


def test_tensors_that_are_not_dense() -> None:
    ragged: Any = tf.ragged.constant([[[1.0]], [[1.0], [2.0]]])
    with pytest.raises((TypeError, ValueError), match="query is ragged: pass"):
        attention(ragged, ragged, ragged)


def test_imports() -> None:
    """NumPy's calls do not import TensorFlow; TensorFlow's calls import no other framework."""
    code = """
import sys, numpy, anyscore, anyscore.ops, anyscore.backends
x = numpy.ones((2, 3))
anyscore.attention(x, x, x)
assert "tensorflow" not in sys.modules
import tensorflow
before = {"torch", "jax", "keras"} & set(sys.modules)
x = tensorflow.constant(x)
anyscore.attention(x, x, x)
assert {"torch", "jax", "keras", "mxnet"} & set(sys.modules) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)


def test_layouts() -> None:
    xp, dense = load("tensorflow"), tf.eye(2)
    assert xp.device(dense) is None  # TensorFlow moves operands by itself
    assert xp.layout_problem(dense) is None
    assert xp.layout_problem(tf.Variable(dense)) is None
    for x, advice in (
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "x.to_tensor() and valid_lens=x.row_lengths()"),
        (tf.sparse.eye(2), "tf.sparse.to_dense(x)"),
        (tf.IndexedSlices(dense, tf.constant([0, 1])), "tf.convert_to_tensor(x)"),
    ):
        assert framework(x) == "tensorflow"
        assert xp.layout_problem(x).endswith(f"pass {advice}")


@IMPLS
@pytest.mark.parametrize("name", PAIRS)
def test_many_leading_dimensions(name: str, impl: str) -> None:
    """Queries and keys share dimensions in turn: more runs than TensorFlow broadcasts."""
    query, key, value = normal(1, 2, 1, 4, 3, D), normal(2, 1, 2, 2, 4, D), normal(1, 1, 1, 1, 4, 2)
    score = make_score(name)
    expected = attention(query, key, value, score=score)
    given = (tf.constant(x) for x in (query, key, value))
    found = attention(*given, score=score.map(tf.constant), impl=impl)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_large_call_warns_on_a_device_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu = "it runs on the CPU, and the tensors are on GPU:0"
    monkeypatch.setattr("anyscore.backends.tensorflow.backend._elsewhere", lambda x: on_gpu)
    monkeypatch.setattr("anyscore.functional.attention.MUCH", 1)
    x = tf.ones((1, 3, 4))
    with pytest.warns(UserWarning, match=f"cpu: {on_gpu}; the reference needs 108 bytes or more"):
        attention(x, x, x)
    attention(x, x, x, impl="reference")
