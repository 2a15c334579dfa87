"""Growing caches are reordered, copied and written in place, in any sequence of operations."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyscore import (
    Cache,
    Causal,
    Window,
    attention,
    make_cache,
)
from helpers.by_pair import by_pair
from helpers.growing_caches import D_V, FRAMEWORKS, KV, WITH_A_BIAS, B, D, H, T, arrays, same, to
from helpers.samples import NAMES, make_score

pytestmark = pytest.mark.sample

SCORES = by_pair("name", NAMES)


@FRAMEWORKS
@WITH_A_BIAS
def test_beams(name: str, framework: str) -> None:
    """A reordered cache equals a cache of the reordered tokens."""
    score = make_score(name).map(to(framework))
    rng, beams = np.random.default_rng(0), 3
    cache, history = None, [np.zeros((beams, KV, 0, d)) for d in (D, D_V)]
    for t in range(9):
        k, v = rng.normal(size=(beams, KV, 1, D)), rng.normal(size=(beams, KV, 1, D_V))
        history = [np.concatenate(x, -2) for x in zip(history, (k, v), strict=True)]
        k, v = map(to(framework), (k, v))
        if cache is None:
            cache = make_cache(k, v, score, capacity=9)
        else:
            cache = cache.append(k, v, score=score)
        chosen = rng.integers(0, beams, beams)
        cache = cache.reorder(chosen.tolist() if t % 2 else to(framework)(chosen))
        history = [x[chosen] for x in history]
        q = to(framework)(rng.normal(size=(beams, H, 1, D)))
        expected = attention(q, *map(to(framework), history), score=score)
        same(cache.attend(q, score=score), expected)


@st.composite
def _operations(draw: Any) -> tuple[Any, ...]:
    name = draw(st.sampled_from(NAMES))
    window = draw(st.none() | st.integers(1, 4))
    capacity = draw(st.integers(window or 1, 12))
    one = st.tuples(st.sampled_from(["append", "attend", "reorder"]), st.integers(0, 5))
    return name, window, capacity, draw(st.lists(one, max_size=14)), draw(st.integers(0, 99))


@given(_operations(), st.sampled_from(["numpy", "torch"]))
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_operations(case: tuple[Any, ...], framework: str) -> None:
    """A cache equals a list of its tokens; an append beyond its capacity changes nothing."""
    name, window, capacity, operations, seed = case
    rng, convert = np.random.default_rng(seed), to(framework)
    scale = 10.0 ** rng.integers(-2, 3)
    score = make_score(name).map(convert)
    k, v = np.zeros((B, KV, 0, D)), np.zeros((B, KV, 0, D_V))
    cache = make_cache(convert(k), convert(v), score, capacity=capacity, window=window)
    for operation, n in operations:
        if operation == "append":
            more = scale * rng.normal(size=(B, KV, n, D)), rng.normal(size=(B, KV, n, D_V))
            if n > capacity or (window is None and k.shape[-2] + n > capacity):
                with pytest.raises(ValueError, match=r"the cache is full|are more than the"):
                    cache.append(*map(convert, more), score=score)
                continue
            cache = cache.append(*map(convert, more), score=score)
            k, v = np.concatenate([k, more[0]], -2), np.concatenate([v, more[1]], -2)
        elif operation == "reorder":
            beams = rng.integers(0, B, B)
            cache, k, v = cache.reorder(convert(beams)), k[beams], v[beams]
        else:
            q = convert(rng.normal(size=(B, H, n, D)))
            if n > k.shape[-2]:
                with pytest.raises(ValueError, match="in the cache: append them first"):
                    cache.attend(q, score=score)
                continue
            if window is not None and n > capacity - window + 1:
                with pytest.raises(ValueError, match="need a capacity of"):
                    cache.attend(q, score=score)
                continue
            of = Causal(offset=k.shape[-2] - n)
            if window is not None:
                of = Window(window - 1, 0, offset=k.shape[-2] - n)
            expected = attention(q, convert(k), convert(v), score=score, mask=of)
            same(cache.attend(q, score=score), expected, rtol=1e-7)
    assert int(cache.length) == k.shape[-2]


@FRAMEWORKS
def test_it_is_written_in_place(framework: str) -> None:
    _, k, v = map(to(framework), arrays())
    cache = make_cache(k[..., :3, :], v[..., :3, :], capacity=T)
    tensors = vars(cache).copy()
    assert cache.append(k[..., 3:5, :], v[..., 3:5, :]) is cache
    assert cache.reorder([1, 0]) is cache
    assert all(tensors[name] is x for name, x in vars(cache).items())
    assert int(cache.length) == 5
    assert cache.capacity == T


def test_copies() -> None:
    q, k, v = map(torch.tensor, arrays())
    score = make_score("Additive").map(torch.tensor)
    cache = make_cache(k[..., :5, :], v[..., :5, :], score, capacity=T)
    expected = cache.attend(q[..., :5, :], score=score)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert isinstance(other, Cache)
        same(other.attend(q[..., :5, :], score=score), expected)
        other.append(k[..., 5:, :], v[..., 5:, :], score=score)
        at_once = attention(q, k, v, score=score, mask=Causal())
        same(other.attend(q, score=score), at_once)
        same(cache.attend(q[..., :5, :], score=score), expected)


def test_autocast() -> None:
    score = make_score("Additive").map(lambda x: torch.tensor(x, dtype=torch.float32))
    q, k, v = (torch.tensor(x, dtype=torch.float32) for x in arrays())
    with torch.autocast("cpu", torch.bfloat16):
        expected = attention(q, k, v, score=score, mask=Causal())
        cache = make_cache(k[..., :0, :], v[..., :0, :], score, capacity=T)
        cache.append(k, v, score=score)
        found = cache.attend(q, score=score)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert cache.values.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
