"""Edges of a graph in TensorFlow: values and gradients are those of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import torch

from anyscore import Edges, GATv2, attention

NODES, EDGES = 30, 200
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, NODES, (2, EDGES))
ARRAYS = [RNG.standard_normal((2, NODES, 8)).astype(np.float32) for _ in range(3)]
W, BIAS, TERMS = (RNG.standard_normal(n).astype(np.float32) for n in (8, EDGES, (EDGES, 8)))


def attend(edges: Edges, query: Any, key: Any, value: Any, w: Any, bias: Any, terms: Any) -> Any:
    score, mask = GATv2(None, None, w), edges.with_terms(terms)
    return attention(query, key, value, score=score, mask=mask, bias=bias, return_weights=True)


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
