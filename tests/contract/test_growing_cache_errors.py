"""Each wrong use of a growing cache raises one clear error and writes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    Causal,
    Dot,
    Gaussian,
    Keys,
    Lorentz,
    ScaledDot,
    make_cache,
)
from helpers import machine
from helpers.samples import make_score, normal

pytestmark = pytest.mark.sample

B, H, KV, T, D, D_V = 2, 4, 2, 11, 5, 3


def arrays() -> list[np.ndarray]:
    return [normal(B, H, T, D), normal(B, KV, T, D), normal(B, KV, T, D_V)]


def _cache(score: Any = None, **options: Any) -> Any:
    _, k, v = arrays()
    options = {"capacity": 4, **options}
    score = ScaledDot() if score is None else score
    return make_cache(k[..., :3, :], v[..., :3, :], score, **options)


K, V = normal(B, KV, 2, D), normal(B, KV, 2, D_V)
Q = normal(B, H, 1, D)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _cache().append(K, V), ValueError, "full: 3 of 4 tokens are there, got 2 more"),
        (lambda: _cache(capacity=2), ValueError, "the cache is full: 0 of 2 .* got 3 more"),
        (lambda: _cache(capacity=2, window=2), ValueError, "3 tokens are more than the 2"),
        (lambda: _cache(capacity=0), ValueError, "capacity must be ≥ 1, got 0"),
        (lambda: _cache(capacity=2.5), TypeError, "capacity must be an integer"),
        (lambda: _cache(capacity=None), TypeError, "capacity must be an integer ≥ 1, got None"),
        (lambda: _cache(window=0), ValueError, "window must be ≥ 1"),
        (lambda: _cache(window=5), ValueError, r"window=5 must be ≤ capacity=4"),
        (lambda: make_cache(K, V, lambda q, k: q, capacity=2), TypeError, "a score object"),
        (lambda: make_cache([1.0], V, capacity=2), TypeError, "key is a list"),
        (lambda: make_cache(K, V[..., :1, :], capacity=2), ValueError, "key has 2 tokens"),
        (lambda: make_cache(K.astype(int), V, capacity=2), TypeError, "^key is int64, expected"),
        (lambda: make_cache(K, V.astype("f4"), capacity=2), TypeError, "^key is float64 but value"),
        (lambda: make_cache(K[0, 0, 0], V, capacity=2), ValueError, r"^key has shape \(5,\)"),
        (lambda: _cache().append(K, V, score=Dot()), ValueError, "of the score ScaledDot, got Dot"),
        (lambda: _cache().append(K, V, score=len), ValueError, "ScaledDot, got <built-in"),
        (
            lambda: _cache(Gaussian()).attend(Q),
            ValueError,
            r"Gaussian, got ScaledDot: .* attend\(query, score=Gaussian\(\.\.\.\)\)",
        ),
        (
            lambda: _cache(Lorentz()).attend(Q, score=Lorentz(3.0)),
            ValueError,
            "keys of Lorentz with sigma=1.0, got 3.0",
        ),
        (
            lambda: _cache(Lorentz()).append(K[..., :1, :], V[..., :1, :], score=Lorentz(3.0)),
            ValueError,
            "keys of Lorentz with sigma=1.0, got 3.0",
        ),
        (
            lambda: _cache(capacity=9).append(K[:1], V),
            ValueError,
            r"key becomes rows of shape \(1, 2, 2, 5\), the cache holds \(2, 2, 9, 5\)",
        ),
        (
            lambda: _cache(capacity=9).append(np.concatenate([K, K]), np.concatenate([V, V])),
            ValueError,
            r"value has shape \(4, 2, 2, 3\), the cache holds \(2, 2, 9, 3\)",
        ),
        (
            lambda: _cache(capacity=9).append(np.concatenate([K, K]), V),
            ValueError,
            r"^key \(4, 2, 2, 5\) and value \(2, 2, 2, 3\) have leading dimensions",
        ),
        (
            lambda: _cache(capacity=9).append(K, V[..., :2]),
            ValueError,
            r"value has shape \(2, 2, 2, 2\), the cache holds \(2, 2, 9, 3\)",
        ),
        (lambda: _cache().append(K[..., :4], V), ValueError, "equal|d_k|width"),
        (
            lambda: _cache(capacity=9).append(K.astype("f4"), V.astype("f4")),
            TypeError,
            "float64|float32",
        ),
        (lambda: _cache().append(torch.tensor(K), V), TypeError, "key is a PyTorch|PyTorch"),
        (lambda: _cache().append(torch.tensor(K), torch.tensor(V)), TypeError, "cache is a NumPy"),
        (lambda: _cache().attend(torch.ones(1, 1, D)), TypeError, "query is a PyTorch"),
        (lambda: _cache().attend(np.ones(D)), ValueError, r"query has shape \(5,\), expected"),
        (
            lambda: _cache().attend(normal(B, H, 4, D)),
            ValueError,
            "^4 queries, but 3 tokens are in",
        ),
        (lambda: _cache().mask(4), ValueError, "4 queries, but 3 tokens .* append them first"),
        (lambda: _cache().mask(None), TypeError, "queries must be an integer ≥ 0, got None"),
        (lambda: _cache().mask(-1), ValueError, "queries must be ≥ 0, got -1"),
        (lambda: _cache().reorder(None), TypeError, r"beams is None, expected integers \(2,\)"),
        (lambda: _cache().reorder("ab"), TypeError, "beams is 'ab', expected integers"),
        (lambda: _cache().reorder([0, 2]), ValueError, r"beams\[1\] is 2, expected 0 ≤ beam < 2"),
        (lambda: _cache().reorder([-1, 0]), ValueError, r"beams\[0\] is -1"),
        (lambda: _cache().reorder([0]), ValueError, r"beams has shape \(1,\), expected \(2,\)"),
        (lambda: _cache().reorder([[0, 1]]), ValueError, r"beams has shape \(1, 2\)"),
        (lambda: _cache().reorder([0.0, 1.0]), TypeError, "beams must be integers, got float64"),
        (lambda: _cache().reorder([True, False]), TypeError, "beams must be integers, got bool"),
        (
            lambda: make_cache(K[0, 0], V[0, 0], capacity=2).reorder([0]),
            ValueError,
            "expected one batch as the first axis of both",
        ),
        (
            lambda: _cache(window=3).attend(normal(B, H, 3, D)),
            ValueError,
            "3 queries with a window of 3 need a capacity of 5, got 4: it serves 2 at a time",
        ),
        (
            lambda: _cache(window=3).attend(normal(B, H, 1, D), causal=False),
            ValueError,
            "a window is of causal attention",
        ),
        (
            lambda: _cache(window=3).attend(Q, mask=np.ones((1, 4), bool)),
            TypeError,
            r"a mask must count positions: .* got a boolean array. .* Interval\(padding, None\)",
        ),
        (
            lambda: _cache(window=3).attend(Q, mask=Keys(np.ones((B, 4), bool)) & Causal()),
            TypeError,
            "a mask must count positions: .* got Keys",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_what_is_refused_changes_nothing(framework: str) -> None:
    to = torch.tensor if framework == "torch" else np.array
    q, k, v = map(to, arrays())
    score = make_score("Additive").map(to)
    cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=4)
    expected = np.asarray(cache.attend(q[..., :3, :], score=score))
    for more in ((k[..., 3:6, :], v[..., 3:6, :]), (k[..., 3:4, :], v[..., 3:4, :1])):
        with pytest.raises(ValueError, match="the cache"):
            cache.append(*more, score=score)
    with pytest.raises(ValueError, match="beams"):
        cache.reorder([1, 2])
    assert int(cache.length) == 3
    assert np.array_equal(np.asarray(cache.attend(q[..., :3, :], score=score)), expected)


def test_an_empty_cache_holds_nothing() -> None:
    cache = make_cache(K[..., :0, :], V[..., :0, :], capacity=4)
    assert (cache.attend(Q, causal=False) == 0).all()
    with pytest.raises(ValueError, match="1 queries, but 0 tokens are in the cache"):
        cache.attend(Q)


def test_gradients_are_refused() -> None:
    _, k, v = map(torch.tensor, arrays())
    weights = normal(3, D), normal(3, D), normal(3)
    score = Additive(*(torch.tensor(w, requires_grad=True) for w in weights))
    match = "keeps no graph: append under torch.no_grad"
    with pytest.raises(ValueError, match=match):
        make_cache(k, v, score, capacity=40)
    with torch.no_grad():
        cache = make_cache(k, v, score, capacity=40)
    with pytest.raises(ValueError, match=match):
        cache.append(k, v, score=score)
    with pytest.raises(ValueError, match=match):
        make_cache(k.requires_grad_(), v, capacity=40)
    with pytest.raises(ValueError, match=match):
        make_cache(k.detach(), v.requires_grad_(), capacity=40)
    with torch.inference_mode():
        cache = make_cache(k, v, score, capacity=40)
        cache.append(k[..., :1, :], v[..., :1, :], score=score)
    assert int(cache.length) == T + 1


@pytest.mark.slow
def test_scores_of_other_frameworks() -> None:
    tf = machine.package("tensorflow")
    x = tf.ones((2, 3, 4))
    with pytest.raises(TypeError, match="for NumPy, PyTorch and JAX, got a TensorFlow tensor"):
        make_cache(x, x, Gaussian(), capacity=4)


@pytest.mark.parametrize("length", [2**63 - 1, 5, -1, -(2**63)])
@pytest.mark.parametrize("as_tensor", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_a_length_that_no_cache_has(as_tensor: Any, length: int) -> None:
    """An impossible length, say of a foreign file, raises, also after appends of that shape."""
    k, v = as_tensor(K), as_tensor(V)
    steps = [(k[..., :1, :], v[..., :1, :])] * 3
    known, cache = (make_cache(k[..., :0, :], v[..., :0, :], capacity=4) for _ in range(2))
    for key, value in steps:
        known.append(key, value)
    cache.length[...] = length
    with pytest.raises(ValueError, match=r"the cache is full|expected 0 ≤ length ≤ 4"):
        cache.append(*steps[0])
    assert not np.asarray(cache.values).any()
    assert not np.asarray(cache.b).any()
    assert int(cache.length) == length
