"""Traced calls are right: lengths of None, one trace for all, gradients, XLA, saved models."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import Causal, Interval, Keys, Lengths, Window, attention, prepare_keys
from anyscore.functional.attention import plan
from anyscore.ops import load
from helpers.samples import make_score, normal

B, T_Q, T_K, D, D_V = 3, 4, 6, 5, 2
LENGTHS = np.array([0, 2, 6])
IMPLS = pytest.mark.parametrize("impl", ["reference", "fused"])


def tensors(batch: int = B, queries: int = T_Q, keys: int = T_K) -> list[tf.Tensor]:
    shapes = (batch, queries, D), (batch, keys, D), (batch, keys, D_V)
    return [tf.constant(normal(*shape)) for shape in shapes]


def unknown() -> list[tf.TensorSpec]:
    """Return specs of query, key and value with known widths alone."""
    return [tf.TensorSpec([None, None, n], tf.float64) for n in (D, D, D_V)]


@IMPLS
@pytest.mark.parametrize("name", ["Additive", "ScaledDot", "Trilinear", "Cosine"])
def test_one_trace_for_all_lengths(name: str, impl: str) -> None:
    """One trace of known widths has right values and gradients; offsets and lengths are tensors."""
    own, traces = make_score(name).map(tf.Variable), []
    integers = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64)]

    def call(q: Any, k: Any, v: Any, lengths: Any, offset: Any) -> tuple:
        traces.append(name)
        mask = Window(2, 1, offset=offset) & Lengths(lengths)
        inputs = [q, k, v, *own.tensors().values()]
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            options = {"dropout": 0.2, "dropout_seed": 3, "return_lse": True, "impl": impl}
            found = attention(q, k, v, score=own, mask=mask, **options)
            y = tf.reduce_sum(found.output**2)
        slopes = tape.gradient(y, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return found.output, found.lse, *slopes

    traced = tf.function(call, input_signature=[*unknown(), *integers])
    for sizes, offset in (((3, 4, 6), 1), ((1, 1, 1), 0), ((2, 5, 3), -2), ((2, 3, 0), 0)):
        given = [*tensors(*sizes), tf.constant(LENGTHS[-sizes[0] :]), tf.constant(offset, tf.int64)]
        for found, expected in zip(traced(*given), call(*given), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert len(traces) == 1 + 4


@IMPLS
@pytest.mark.parametrize(
    "make",
    [
        lambda keep: None,
        lambda keep: Causal("end"),
        lambda keep: Keys(keep) & Window(1, None, "start"),
        lambda keep: Interval(1, 4),
        lambda keep: keep[:, None],
        lambda keep: Lengths(3) & keep[:, None, :],
    ],
    ids=["none", "causal", "keys", "interval", "boolean", "both"],
)
def test_masks_without_known_lengths(make: Any, impl: str) -> None:
    keep = tf.constant(np.random.default_rng(0).random((B, T_K)) < 0.5)

    def call(q: Any, k: Any, v: Any, keep: Any) -> Any:
        return attention(q, k, v, mask=make(keep), impl=impl, dropout=0.3, dropout_seed=1)

    signature = [*unknown(), tf.TensorSpec([None, None], tf.bool)]
    found = tf.function(call, input_signature=signature)(*tensors(), keep)
    np.testing.assert_allclose(found, call(*tensors(), keep), rtol=1e-12)


@IMPLS
def test_heads_without_known_lengths(impl: str) -> None:
    """Grouped heads agree, with parameters for each head."""
    query, key = normal(2, 6, T_Q, D), normal(2, 3, T_K, D)
    score = make_score("GATv2").map(lambda x: tf.constant(x))
    specs = [tf.TensorSpec([None, 6, None, D], tf.float64)]
    specs += [tf.TensorSpec([None, 3, None, D], tf.float64)]

    def call(q: Any, k: Any) -> Any:
        return attention(q, k, k, score=score, mask=Causal("end"), impl=impl)

    given = tf.constant(query), tf.constant(key)
    found = tf.function(call, input_signature=specs)(*given)
    np.testing.assert_allclose(found, call(*given), rtol=1e-12)


def test_static_shapes_survive() -> None:
    def shape_of(specs: list[tf.TensorSpec], impl: str) -> Any:
        traced = tf.function(lambda q, k, v: attention(q, k, v, valid_lens=3, impl=impl))
        return traced.get_concrete_function(*specs).structured_outputs.shape.as_list()

    for impl in ("reference", "fused"):
        assert shape_of(unknown(), impl) == [None, None, D_V]
    known = [tf.TensorSpec(x.shape, x.dtype) for x in tensors()]
    assert shape_of(known, "fused") == [B, T_Q, D_V]


@pytest.mark.parametrize("name", ["Additive", "Cosine", "Laplace"])
def test_second_derivatives(name: str) -> None:
    """Second derivatives equal the reference's, traced as a whole of unknown lengths or outside."""
    score = make_score(name).map(tf.constant)

    def run(*xs: Any, impl: str = "fused") -> Any:
        return attention(*xs, score=score, mask=Causal("end"), impl=impl)

    def call(q: Any, k: Any, v: Any, run: Any = run) -> Any:
        with tf.GradientTape() as outer:
            outer.watch([q, k, v])
            with tf.GradientTape() as tape:
                tape.watch([q, k, v])
                y = tf.reduce_sum(tf.sin(run(q, k, v)))
            first = tape.gradient(y, [q, k, v])
            z = tf.add_n([tf.reduce_sum(tf.cos(g)) for g in first])
        return outer.gradient(z, [q, k, v])

    expected = call(*tensors(), run=partial(run, impl="reference"))
    whole = tf.function(call, input_signature=unknown())(*tensors())
    outside = call(*tensors(), run=tf.function(run))
    for found, same in zip([*whole, *outside], [*expected, *expected], strict=True):
        np.testing.assert_allclose(found, same, rtol=1e-8, atol=1e-10)


def test_a_tape_outside_of_the_function() -> None:
    given = tensors()
    traced = tf.function(lambda *xs: attention(*xs, valid_lens=LENGTHS))
    slopes = []
    for call in (traced, traced.python_function):
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = tf.reduce_sum(call(*given) ** 2)
        slopes.append(tape.gradient(y, given))
    for found, expected in zip(*slopes, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_drawn_dropout_differs_from_call_to_call() -> None:
    traced = tf.function(lambda *xs: attention(*xs, dropout=0.5))
    first, second = traced(*tensors()), traced(*tensors())
    assert not np.array_equal(first, second)


def test_loops() -> None:
    """A decoder keeps its state in a loop of the graph, over keys prepared outside the loop."""
    query, key, value = tensors()
    score = make_score("Additive").map(tf.constant)
    prepared = prepare_keys(key, score)

    def step(state: Any, keys: Any) -> Any:
        wide = tf.concat([attention(state, keys, value, score=score)] * 2 + [state[..., :1]], -1)
        return wide[..., :D]

    @tf.function(autograph=False)
    def run(state: Any) -> Any:
        counter = tf.constant(0)
        loop = tf.while_loop(
            lambda i, s: i < 3, lambda i, s: (i + 1, step(s, prepared)), (counter, state)
        )
        return loop[1]

    expected = query
    for _ in range(3):
        expected = step(expected, key)
    np.testing.assert_allclose(run(query), expected, rtol=1e-10)


def test_autograph_leaves_it_alone(caplog: pytest.LogCaptureFixture) -> None:
    traced = tf.function(lambda q, k, v: attention(q, k, v, valid_lens=LENGTHS))
    traced(*tensors())
    assert not caplog.records


def test_xla() -> None:
    """A call traced for XLA takes the reference by itself."""
    plans = []

    def call(*xs: Any) -> Any:
        plans.append(plan(*xs))
        return attention(*xs, valid_lens=LENGTHS, mask=Causal("end"))

    found = tf.function(call, jit_compile=True)(*tensors())
    assert (plans[0].route, plans[0].reason) == ("reference", "cpu: XLA cannot compile it")
    np.testing.assert_allclose(found, call(*tensors()), rtol=1e-10)
    with pytest.raises(NotImplementedError, match="XLA cannot"):
        tf.function(lambda *xs: attention(*xs, impl="fused"), jit_compile=True)(*tensors())


def test_saved_models(tmp_path: Path) -> None:
    """A call traced for a saved model takes the reference by itself, and so do its gradients."""

    class Model(tf.Module):
        def __init__(self) -> None:
            self.sigma = tf.Variable(1.5, dtype=tf.float64)

        @tf.function(input_signature=unknown())
        def __call__(self, q: Any, k: Any, v: Any) -> Any:
            score = make_score("Gaussian").map(lambda x: self.sigma)
            return attention(q, k, v, score=score, mask=Causal("end"), valid_lens=4)

    tf.saved_model.save(Model(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    graph = loaded.__call__.concrete_functions[0].graph.as_graph_def()
    ops = {n.op for f in graph.library.function for n in f.node_def} | {n.op for n in graph.node}
    assert not any("PyFunc" in op for op in ops)
    np.testing.assert_allclose(loaded(*tensors()), Model()(*tensors()), rtol=1e-10)


def test_unknown_ranks_and_widths_are_refused() -> None:
    def trace(*shapes: Any) -> None:
        specs = [tf.TensorSpec(shape, tf.float64) for shape in shapes]
        tf.function(attention, input_signature=specs).get_concrete_function()

    with pytest.raises(ValueError, match=r"unknown rank.*tf\.ensure_shape"):
        trace(None, [B, T_K, D], [B, T_K, D_V])
    with pytest.raises(TypeError, match=r"width is None.*tf\.ensure_shape"):
        trace([B, T_Q, None], [B, T_K, None], [B, T_K, D_V])


@IMPLS
def test_what_does_not_fit_is_told_when_it_runs(impl: str) -> None:
    def call(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, impl=impl)

    traced = tf.function(call, input_signature=unknown())
    query, key, value = tensors()
    for wrong in ([query[:2], key, value], [query, key, value[:, :3]], [query, key[:2], value]):
        with pytest.raises((tf.errors.OpError, ValueError)):
            traced(*wrong)
    with pytest.raises(tf.errors.InvalidArgumentError):  # an unknown length counts as > 1
        traced(query[:1], key, value)
    for shared in ([query, key[:1], value[:1]], [query, key, value[:1]]):  # these broadcast
        np.testing.assert_allclose(traced(*shared), call(*shared), rtol=1e-12)


def test_sizes() -> None:
    """Checks may compare and compute with a length that is None."""
    seen = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32)])
    def look(x: Any) -> Any:
        n, m = load("tensorflow").shape(x)
        seen.append((n, m))
        assert repr((n, m)) == "(None, 3)"
        assert all((n, n == 7, n == load("tensorflow").shape(x)[0], n not in (0, 1), n > 1))
        assert not any((n > 2, n < 9))
        return [
            tf.convert_to_tensor(y) for y in (n + 1, 1 + n, n - 1, 9 - n, 2 * n * n, -(-n // 4))
        ]

    assert [int(x) for x in look(tf.zeros((5, 3)))] == [6, 6, 4, 4, 50, 2]
    assert seen[0][1] == 3
