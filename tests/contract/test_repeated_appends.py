"""Repeated appends to a growing cache give the same results and errors, without new checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import anyscore
from anyscore import Causal, attention, make_cache
from anyscore.backends.repeated import RepeatedCalls
from anyscore.kernels import cpu
from helpers.repeated_calls import forget

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")

FRAMEWORKS = pytest.mark.parametrize("as_tensor", [np.array, torch.tensor], ids=["numpy", "torch"])
SCORES: dict[str, Callable[[Any], Any]] = {
    "scaled_dot": lambda weight: anyscore.ScaledDot(),
    "additive": lambda weight: anyscore.Additive(None, None, weight),
    "gatv2": lambda weight: anyscore.GATv2(None, None, weight),
    "laplace": lambda weight: anyscore.Laplace(2.0),
}
T, D, D_V = 12, 6, 5


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list: for each append, whether the core repeated it without checks."""
    forget()
    of_all: list[bool] = []
    append = RepeatedCalls.append

    def watched(self: RepeatedCalls, *args: Any) -> bool:
        of_all.append(append(self, *args))
        return of_all[-1]

    monkeypatch.setattr(RepeatedCalls, "append", watched)
    return of_all


def tokens(as_tensor: Any, dtype: Any = np.float64, lead: tuple[int, ...] = (2, 3)) -> list[Any]:
    rng = np.random.default_rng(0)
    sizes = (T, D), (T, D), (T, D_V), (D,)
    shapes = [(*lead, *size) if len(size) == 2 else size for size in sizes]
    return [as_tensor(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("name", SCORES)
@FRAMEWORKS
def test_the_answer_of_all_at_once(
    as_tensor: Any, name: str, lead: tuple[int, ...], dtype: Any, done: list[bool]
) -> None:
    q, k, v, weight = tokens(as_tensor, dtype, lead)
    score = SCORES[name](weight)
    cache = make_cache(k[..., :2, :], v[..., :2, :], score, capacity=T)
    done.clear()
    found = []
    for t in range(2, T):
        now = slice(t, t + 1)
        cache = cache.append(k[..., now, :], v[..., now, :], score=score)
        found.append(np.asarray(cache.attend(q[..., now, :], score=score)))
    assert done == [False] + [True] * (T - 3)
    expected = np.asarray(attention(q, k, v, score=score, mask=Causal()))[..., 2:, :]
    rtol = 1e-11 if dtype == np.float64 else 2e-4
    np.testing.assert_allclose(np.concatenate(found, -2), expected, rtol=rtol, atol=rtol)
    assert int(cache.length) == T
    with pytest.raises(ValueError, match="the cache is full: 12 of 12 tokens are there"):
        cache.append(k[..., :1, :], v[..., :1, :], score=score)
    assert int(cache.length) == T


@FRAMEWORKS
def test_rows_of_any_strides(as_tensor: Any, done: list[bool]) -> None:
    """Repeated appends take heads that are views of rows of all heads, as layers make them."""
    score = anyscore.ScaledDot()
    _, k, v, _ = tokens(as_tensor)
    cache = make_cache(k[..., :0, :], v[..., :0, :], score, capacity=T)
    between = [as_tensor(np.asarray(x).swapaxes(1, 2).copy()).swapaxes(1, 2) for x in (k, v)]
    for t in range(T):
        cache = cache.append(*(x[..., t : t + 1, :] for x in between), score=score)
    assert sum(done) >= T - 2
    np.testing.assert_array_equal(np.asarray(cache.b), np.asarray(k))
    np.testing.assert_array_equal(np.asarray(cache.values), np.asarray(v))
    turned = as_tensor(np.ones((2, 3, 2, 1))), v[..., :1, :]  # rows without unit stride
    fewer = make_cache(turned[0].swapaxes(-1, -2), turned[1], score, capacity=T)
    for _ in range(3):
        fewer = fewer.append(turned[0].swapaxes(-1, -2), turned[1], score=score)
    assert int(fewer.length) == 4
    assert (np.asarray(fewer.b)[..., :4, :] == 1).all()


@FRAMEWORKS
def test_wrong_tokens_are_refused_as_at_first(as_tensor: Any, done: list[bool]) -> None:
    _, k, v, weight = tokens(as_tensor)
    score = anyscore.Additive(None, None, weight)
    cache = make_cache(k[..., :1, :], v[..., :1, :], score, capacity=T)
    key, value = k[..., 1:2, :], v[..., 1:2, :]
    for _ in range(3):
        cache = cache.append(key, value, score=score)
    assert done[-1]
    single = as_tensor(np.asarray(value).astype(np.float32))
    wrong: list[tuple[Any, Any, Any, str]] = [
        (key, value[:1], score, "value has shape"),
        (key[:1], value[:1], score, "shape"),
        (key, single, score, "value is float32, the cache holds float64"),
        (key, value, anyscore.Additive(None, None, weight[:-1]), "w_v"),
        (key, value, anyscore.ScaledDot(), "the cache holds keys of the score Additive"),
    ]
    for *call, of_score, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            cache.append(*call, score=of_score)
        assert int(cache.length) == 4
    assert not any(done[-4:])


@FRAMEWORKS
def test_caches_of_two_sizes_and_numbers(as_tensor: Any, done: list[bool]) -> None:
    _, k, v, _ = tokens(as_tensor)
    two, three = anyscore.Laplace(2.0), anyscore.Laplace(3.0)
    small = make_cache(k[..., :0, :], v[..., :0, :], two, capacity=4)
    large = make_cache(k[..., :0, :], v[..., :0, :], two, capacity=T)
    other = make_cache(k[..., :0, :], v[..., :0, :], three, capacity=4)
    for t in range(4):
        step = k[..., t : t + 1, :], v[..., t : t + 1, :]
        small, large = small.append(*step, score=two), large.append(*step, score=two)
    for cache in small, large:
        np.testing.assert_array_equal(np.asarray(cache.b)[..., :4, :], np.asarray(k)[..., :4, :])
    with pytest.raises(ValueError, match=r"Laplace with sigma=3\.0, got 2\.0"):
        other.append(*step, score=two)


@FRAMEWORKS
def test_what_is_no_query(as_tensor: Any) -> None:
    _, k, v, _ = tokens(as_tensor)
    cache = make_cache(k, v, anyscore.ScaledDot(), capacity=T)
    for wrong in ([[1.0] * D], None, 3.0):
        with pytest.raises(TypeError, match="query"):
            cache.attend(wrong, score=anyscore.ScaledDot())


@FRAMEWORKS
def test_no_query_meets_an_empty_cache(as_tensor: Any, done: list[bool]) -> None:
    q, k, v, _ = tokens(as_tensor)
    score = anyscore.ScaledDot()
    full = make_cache(k, v, score, capacity=T)
    for _ in range(3):
        full.attend(q[..., :1, :], score=score)
    empty = make_cache(k[..., :0, :], v[..., :0, :], score, capacity=T)
    with pytest.raises(ValueError, match="1 queries, but 0 tokens are in the cache"):
        empty.attend(q[..., :1, :], score=score)


def test_a_row_of_the_cache_itself() -> None:
    _, k, v, weight = tokens(torch.tensor)
    score = anyscore.Additive(None, None, weight)
    cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=T)
    for _ in range(4):
        cache.append(cache.b[..., 1:2, :], cache.values[..., 1:2, :], score=score)
    assert torch.equal(cache.b[..., 3:7, :], k[..., 1:2, :].expand(2, 3, 4, D))


def test_arrays_that_were_frozen_are_not_written_to(done: list[bool]) -> None:
    _, k, v, _ = tokens(np.array)
    score = anyscore.ScaledDot()
    cache = make_cache(k[..., :2, :], v[..., :2, :], score, capacity=T)
    for _ in range(3):
        cache.append(k[..., :1, :], v[..., :1, :], score=score)
    assert done[-1]
    cache.values.setflags(write=False)
    before = cache.values.copy()
    with pytest.raises(ValueError, match="read-only"):
        cache.append(k[..., :1, :], v[..., :1, :], score=score)
    assert int(cache.length) == 5
    np.testing.assert_array_equal(cache.values, before)


def test_gradients_are_refused_and_what_was_kept_is_not_written_to(done: list[bool]) -> None:
    q, k, v, weight = tokens(torch.tensor)
    score = anyscore.Additive(None, None, weight)
    cache = make_cache(k[..., :2, :], v[..., :2, :], score, capacity=T)
    key, value = k[..., :1, :], v[..., :1, :]
    for _ in range(3):
        cache.append(key, value, score=score)
    assert done[-1]
    with pytest.raises(ValueError, match="written to in place, and keeps no graph"):
        cache.append(key.clone().requires_grad_(), value, score=score)
    assert int(cache.length) == 5
    with torch.inference_mode():
        cache.append(key, value, score=score)
    query = q[..., :1, :].clone().requires_grad_()
    output = cache.attend(query, score=score)
    cache.append(key, value, score=score)
    assert done[-1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
