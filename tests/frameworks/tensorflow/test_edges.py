"""Edges of a graph in TensorFlow give the values and gradients of PyTorch."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import torch

from anyscore import Edges, attention, plan, scores
from helpers.graph_calls import ARRAYS, BIAS, NODES, PAIRS, TERMS, W, attend


def test_values_and_gradients() -> None:
    given = [*ARRAYS, W, BIAS, TERMS]
    tensors = [torch.tensor(x, requires_grad=True) for x in given]
    want = attend(Edges.from_index(PAIRS, NODES), *tensors)
    want.output.square().sum().backward()
    xs = [tf.constant(x) for x in given]
    for pairs in (PAIRS, tf.constant(PAIRS)):
        edges = Edges.from_index(pairs, NODES)
        for call in (attend, tf.function(attend)):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                found = call(edges, *xs)
                loss = tf.reduce_sum(tf.square(found.output))
            np.testing.assert_allclose(found.output, want.output.detach(), atol=2e-6)
            np.testing.assert_allclose(found.weights, want.weights.detach(), atol=2e-6)
            for slope, tensor in zip(tape.gradient(loss, xs), tensors, strict=True):
                np.testing.assert_allclose(
                    tf.convert_to_tensor(slope), tensor.grad, rtol=1e-4, atol=2e-5
                )


def test_the_core_runs_them() -> None:
    query, key, value = map(tf.constant, ARRAYS)
    edges = Edges.from_index(PAIRS, NODES)
    assert plan(query, key, value, mask=edges).route == "cpu"
    ours = attention(query, key, value, mask=edges)
    assert np.array_equal(ours, attention(*ARRAYS, mask=edges))  # a call of NumPy
    for options in ({"normalizer": "sigmoid"}, {"dropout": 0.3, "dropout_seed": 5}, {"softcap": 1}):
        one, other = (
            attention(query, key, value, mask=edges, impl=impl, **options)
            for impl in ("fused", "reference")
        )
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_scores_with_gradients() -> None:
    query, key, _ = map(tf.constant, ARRAYS)
    edges, found = Edges.from_index(PAIRS, NODES), []
    for impl in ("fused", "reference"):
        for run in (scores, tf.function(scores)):
            with tf.GradientTape() as tape:
                tape.watch([query, key])
                s = run(query, key, mask=edges, impl=impl)
                loss = tf.reduce_sum(s**2)
            found.append([s, *tape.gradient(loss, [query, key])])
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            np.testing.assert_allclose(
                tf.convert_to_tensor(x), tf.convert_to_tensor(y), rtol=1e-4, atol=1e-4
            )


def test_second_derivatives() -> None:
    x = tf.constant(ARRAYS[0], tf.float64)
    edges, found = Edges.from_index(PAIRS, NODES), []
    for impl in ("fused", "reference"):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(attention(x, x, x, mask=edges, impl=impl) ** 2)
            slope = tf.convert_to_tensor(tape.gradient(loss, x))
            size = tf.reduce_sum(slope**2)
        found.append(tf.convert_to_tensor(outer.gradient(size, x)))
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-9)
