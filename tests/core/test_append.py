"""`_core.RepeatedAppend` writes rows to their places in a cache, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyscore import _core

pytestmark = [pytest.mark.sample, pytest.mark.sanitize]

CAPACITY = 9


def cache_of(lead: tuple[int, ...], width: int, dtype: Any, packs: bool) -> list[Any]:
    """Return b, values, packed and length of an empty cache; unwritten entries are 7."""
    b, values = np.full((*lead, CAPACITY, width), 7, dtype), np.full((*lead, CAPACITY, 3), 7, dtype)
    packed = np.zeros((*lead, CAPACITY + 1, width), dtype) if packs else None
    return [b, values, packed, np.zeros((), np.int64)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
    st.integers(1, 3),
)
def test_rows_stand_where_they_came(
    lead: tuple[int, ...], width: int, count: int, dtype: Any, packs: bool, threads: int
) -> None:
    cache = cache_of(lead, width, dtype, packs)
    rng = np.random.default_rng(0)
    every = [rng.standard_normal((*lead, CAPACITY, n)).astype(dtype) for n in (width, 3)]
    pair = "tanh" if packs else "product"
    first = [x[..., :count, :] for x in every]
    append = _core.RepeatedAppend(pair, *first, *cache)
    expected = np.zeros((*lead, CAPACITY + 1, width), dtype)
    for start in range(0, CAPACITY, count):
        rows = [x[..., start : start + count, :] for x in every]
        fits = start + count <= CAPACITY
        assert append(*rows, *cache, threads) is fits
        filled = start + count if fits else start
        assert int(cache[3]) == filled
        for x, to in zip(every, cache[:2], strict=True):
            np.testing.assert_array_equal(to[..., :filled, :], x[..., :filled, :])
            assert (to[..., filled:, :] == 7).all()
        if packs and fits:
            _core.append_keys(pair, cache[0], expected, start, count, threads)
    if packs:
        assert cache[2].tobytes() == expected.tobytes()


def test_arrays_of_another_kind_write_nothing() -> None:
    cache = cache_of((2,), 4, np.float32, True)
    key, value = np.ones((2, 1, 4), np.float32), np.ones((2, 1, 3), np.float32)
    append = _core.RepeatedAppend("tanh", key, value, *cache)
    frozen = cache[1].copy()
    frozen.setflags(write=False)
    others: list[list[Any]] = [
        [key.astype(np.float64), value, *cache],
        [key, value[:1], *cache],
        [key, np.ones((2, 1, 6), np.float32)[..., ::2], *cache],
        [key, value, cache[0], frozen, *cache[2:]],
        [key, value, *cache[:2], None, cache[3]],
        [key, value, *cache[:3], np.zeros((), np.int32)],
        [key, value, *cache[:3], np.full((), -1, np.int64)],
        [key, value, *cache[:3], np.full((), CAPACITY, np.int64)],
        [key, value, cache[0][:, ::-1], *cache[1:]],
    ]
    for arrays in others:
        assert append(*arrays, 1) is False
    assert (cache[0] == 7).all()
    assert (cache[1] == 7).all()
    assert not cache[2].any()
    assert int(cache[3]) == 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 3, CAPACITY + 1, -1, -(2**63)])
def test_nothing_is_written_beside_the_cache(length: int, count: int) -> None:
    """No length, say from a file, makes an append write outside the cache."""
    around = [np.full((CAPACITY + 6, n), 7, np.float32) for n in (4, 3)]
    b, values = (x[3:-3] for x in around)
    packed, start = np.zeros((CAPACITY + 1, 4), np.float32), np.full((), length)
    rows = [np.ones((count, n), np.float32) for n in (4, 3)]
    append = _core.RepeatedAppend("tanh", *rows, b, values, packed, np.zeros((), np.int64))
    assert append(*rows, b, values, packed, start, 1) is False
    assert all((x == 7).all() for x in around)
    assert int(start) == length


@pytest.mark.parametrize("wrong", ["keys", "values", "rows"])
def test_keys_and_values_have_the_same_room(wrong: str) -> None:
    b, values, _, length = cache_of((), 4, np.float32, False)
    key, value = np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)
    if wrong == "rows":
        value = value[:1]
    else:
        b, values = (b[:5], values) if wrong == "keys" else (b, values[:5])
    with pytest.raises(ValueError, match="the rows are not like those that are there"):
        _core.RepeatedAppend("product", key, value, b, values, None, length)


@pytest.mark.parametrize("wrong", ["dtype", "width", "rank", "stride", "length", "frozen"])
def test_what_no_append_can_repeat(wrong: str) -> None:
    b, values, packed, length = cache_of((2,), 4, np.float32, True)
    key, value = np.ones((2, 1, 4), np.float32), np.ones((2, 1, 3), np.float32)
    if wrong == "dtype":
        key = key.astype(np.float64)
    elif wrong == "width":
        value = np.ones((2, 1, 4), np.float32)
    elif wrong == "rank":
        key = key[0]
    elif wrong == "stride":
        value = np.ones((2, 1, 6), np.float32)[..., ::2]
    elif wrong == "length":
        length = np.zeros(1, np.int64)
    else:
        b.setflags(write=False)
    with pytest.raises((TypeError, ValueError)):
        _core.RepeatedAppend("tanh", key, value, b, values, packed, length)
