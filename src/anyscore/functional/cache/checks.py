"""Checks of a growing cache and its calls: errors are raised before anything is written."""

from __future__ import annotations

from numbers import Real
from typing import Any, NoReturn
from weakref import WeakSet

from anyscore import backends
from anyscore.call.autocast import autocast
from anyscore.call.backend import Backend, Buffers
from anyscore.call.prepared import PreparedKeys, check_held, check_keys
from anyscore.functional.cache.prepare import empty_queries
from anyscore.ops import DTYPES, FRAMEWORKS, Array, Ops, framework
from anyscore.ops.checks import brief, check_devices, check_integers, check_tensors, find_framework
from anyscore.score.base import Score
from anyscore.score.checks import check_call, check_class_of_score, factors_of
from anyscore.score.factors import Factors


def backend_of(x: Array) -> tuple[Backend, Buffers]:
    """Return the backend of a tensor, and its `Buffers`.

    Raises:
        TypeError: the framework of the tensor has no buffers.
    """
    name = framework(x) or ""
    backend = backends.load(name)
    return backend, backend.buffers or _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise TypeError(
        f"caches that grow are for NumPy, PyTorch and JAX, got a {FRAMEWORKS[name]} tensor."
    )


def tokens(x: Array) -> int:
    """Return T of x (..., T, d)."""
    return int(x.shape[-2])


def scalar_fields_of(score: Score) -> str:
    """Return the scalar fields of a score, without its tensors: "nu=2.0 sigma=1.0"."""
    return " ".join(f"{n}={float(x)}" for n, x in vars(score).items() if isinstance(x, Real))


def check_cache(cache: Any) -> None:
    """Check the fields of a cache, of which a file may hold any; once, but in compiled programs.

    Raises:
        TypeError, ValueError: a field is wrong, or does not fit the others.
    """
    once = backends.repeats(cache.values) is not None
    if once and cache in CHECKED:
        return
    values, length, query = cache.values, cache.length, cache.empty_query
    find_framework(**{"Cache.values": values})
    xp = backend_of(values)[0].xp
    check_rank("Cache.values", values)
    check_held(xp, "Cache", values, b=cache.b, key_bias=cache.key_bias, packed=cache.packed)
    check_keys(xp, "Cache", xp.shape(values)[-2], cache.b, cache.key_bias)
    *lead, tokens, width = xp.shape(cache.b)
    shapes = {"key_bias": (*lead, tokens), "packed": (*lead, tokens + 1, width)}
    for name, expected in shapes.items():
        x = getattr(cache, name)
        if x is not None and xp.shape(x) != expected:
            raise ValueError(f"Cache.{name} has shape {xp.shape(x)}, expected {expected}.")
    check_held(xp, "Cache", values, length=length, empty_query=query)
    if length is None or "int" not in xp.dtype(length) or xp.shape(length):
        got = brief(length) if length is None else f"{xp.dtype(length)} of {xp.shape(length)}"
        raise TypeError(f"Cache.length is {got}, expected an integer ().")
    if query is None or xp.dtype(query) not in DTYPES or xp.shape(query)[-2:-1] != (0,):
        got = brief(query) if query is None else f"{xp.dtype(query)} of {xp.shape(query)}"
        raise TypeError(f"Cache.empty_query is {got}, expected floats (..., 0, d_q).")
    check_class_of_score("Cache.score", cache.score)
    check_integers(0, **{"Cache.d_k": cache.d_k})
    if cache.d_k >= 2**31:
        raise ValueError(f"Cache.d_k must be < 2³¹, got {brief(cache.d_k)}.")
    if cache.window is not None:
        check_integers(1, **{"Cache.window": cache.window})
        if cache.window > tokens:
            raise ValueError(f"Cache.window must be ≤ {tokens}, got {brief(cache.window)}.")
    if not isinstance(cache.scalar_fields, str):
        got = brief(cache.scalar_fields)
        raise TypeError(f'Cache.scalar_fields is {got}, expected a text such as "sigma=1.0".')
    if cache.prepared is not None and not isinstance(cache.prepared, PreparedKeys):
        raise TypeError(f"Cache.prepared is {brief(cache.prepared)}, expected PreparedKeys.")
    if once:
        CHECKED.add(cache)


CHECKED: WeakSet[Any] = WeakSet()
"""Caches whose fields are right; fields are never assigned."""


def check_score_of(score: Any, cache: Any, call: str) -> None:
    """Check that a score has the class and the scalar fields of the score of a cache.

    A field is not compared if one of the two scores holds a tensor there. call: the call to show
    in the message.

    Raises:
        ValueError: the class or a scalar field differs.
    """
    held, scalar_fields = cache.score, cache.scalar_fields
    if type(score) is not held or type(scalar_fields) is not str:
        check_cache(cache)
    if type(score) is held:
        # Most scores of layers have tensors alone.
        own = scalar_fields_of(score) if scalar_fields else ""
        known, given = (
            dict(x.partition("=")[::2] for x in text.split()) for text in (scalar_fields, own)
        )
        other = [name for name, x in known.items() if given.get(name, x) != x]
        if not other:
            return
        what, got = f"{held.__name__} with {other[0]}={known[other[0]][:60]}", given[other[0]]
    else:
        what = f"the score {held.__name__}"
        got = type(score).__name__ if isinstance(score, Score) else brief(score)
    raise ValueError(
        f"the cache holds keys of {what}, got {got}: pass the score that it was made for, {call}, "
        f"score={held.__name__}(...))."
    )


def check_queries(queries: int, known: int | None) -> None:
    """Check that there are at most as many causal queries as tokens, if their number is known.

    Raises:
        ValueError: there are more queries.
    """
    if known is not None and queries > known:
        raise ValueError(
            f"{queries} queries, but {known} tokens are in the cache: append them first."
        )


def lower_tokens(
    key: Array, value: Array, score: Score, query: Array | None, held: Array | None
) -> tuple[Factors, Array]:
    """Check keys, values and the score. Return (the factors of the keys, the values).

    query: empty queries of the width that the score expects; derived from the score if None.
    held: the values of the cache; None before the cache exists.

    Raises:
        TypeError, ValueError: as `attention`.
    """
    find_framework(key=key, value=value)
    backend, _ = backend_of(key)
    xp = backend.xp
    context, dtype = backend.precision(key)
    with context():
        if dtype is not None:
            (key, value), score = autocast(xp, dtype, [key, value], score)
        if held is not None:
            check_rows(xp, "value", value, held)
        if query is None:
            _check_pair(xp, key, value)
            check_tensors(xp, key, key, value)
            query = empty_queries(xp, score, key)
        elif dtype is not None:
            query = xp.astype(query, dtype)
        try:
            check_call(xp, query, key, value, score)
        except (TypeError, ValueError):
            _check_pair(xp, key, value)  # its message names key and value, not the empty query
            raise
        return factors_of(xp, score, query, key), value


def check_rank(name: str, x: Array) -> None:
    """Check that x is (..., tokens, width).

    Raises:
        ValueError: x has fewer than two axes.
    """
    if len(x.shape) < 2:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, expected (..., tokens, width): rank ≥ 2."
        )


def _check_pair(xp: Ops, key: Array, value: Array) -> None:
    """Check the dtypes and shapes of keys and values against each other, without queries.

    Raises:
        TypeError, ValueError: keys and values do not fit.
    """
    for name, x in (("key", key), ("value", value)):
        check_devices(xp, x, **{name: x})
        if xp.dtype(x) not in DTYPES:
            raise TypeError(f"{name} is {xp.dtype(x)}, expected one of {', '.join(DTYPES)}.")
        check_rank(name, x)
    if xp.dtype(key) != xp.dtype(value):
        raise TypeError(
            f"key is {xp.dtype(key)} but value is {xp.dtype(value)}: convert them to one dtype."
        )
    leads = xp.shape(key)[-3::-1], xp.shape(value)[-3::-1]
    if any(n != m and 1 not in (n, m) for n, m in zip(*leads, strict=False)):
        raise ValueError(
            f"key {xp.shape(key)} and value {xp.shape(value)} have leading dimensions that do not "
            "broadcast."
        )


def check_rows(xp: Ops, name: str, rows: Array, held: Array) -> None:
    """Check that rows of a key or a value have the shape and dtype of the rows of a cache.

    Raises:
        TypeError, ValueError: the shape or the dtype differs.
    """
    got, known = xp.shape(rows), xp.shape(held)
    if (*got[:-2], got[-1]) != (*known[:-2], known[-1]):
        what = "value has shape" if name == "value" else "key becomes rows of shape"
        raise ValueError(
            f"{what} {got}, the cache holds {known}: expected the same but for the tokens (axis "
            "−2). Make another cache for another batch or other widths."
        )
    if xp.dtype(rows) != xp.dtype(held):
        raise TypeError(
            f"{name} is {xp.dtype(rows)}, the cache holds {xp.dtype(held)}: convert it, or make "
            "the cache of tensors of that dtype."
        )


def check_bias(score: str, bias: Array | None, held: Array | None) -> None:
    """Check that a score has a bias of keys exactly if a cache holds one.

    Raises:
        ValueError: only one of the two has a bias.
    """
    if (bias is None) != (held is None):
        raise ValueError(
            f"{score} has {'no' if bias is None else 'a'} bias of keys here, unlike the score that "
            "the cache was made for: its numbers differ, or one of them, such as negative_slope, "
            "is an argument of a compiled function. Make the score in that function."
        )


def check_room(length: int | None, count: int, capacity: int, wraps: bool) -> None:
    """Check that there is room for new tokens.

    length: the number of tokens in the cache; None if unknown. wraps: True if new tokens overwrite
    the oldest.

    Raises:
        ValueError: the cache is full, or its length is invalid.
    """
    if wraps and count > capacity:
        raise ValueError(
            f"{count} tokens are more than the {capacity} that the cache holds: append the last "
            f"{capacity}, or append in parts."
        )
    if not wraps and length is not None and not 0 <= length <= capacity:
        raise ValueError(
            f"the length of the cache is {length}, expected 0 ≤ length ≤ {capacity}: what it holds "
            "was not made by make_cache and append."
        )
    if not wraps and (length or 0) + count > capacity:
        there = "" if length is None else f"{length} of {capacity} tokens are there, "
        raise ValueError(
            f"the cache is full: {there}got {count} more, capacity={capacity}. Make it with a "
            "greater capacity, or with a window."
        )


def check_beams(xp: Ops, buffers: Buffers, beams: Any, b: Array, values: Array) -> Array:
    """Check the beams of a cache that holds b and values; return the beams as a tensor.

    Raises:
        TypeError, ValueError: beams are not (B,) integers from 0 to B − 1, or the cache has no
            batch.
    """
    of_keys, of_values = xp.shape(b), xp.shape(values)
    if len(of_keys) < 3 or len(of_values) < 3 or of_keys[0] != of_values[0]:
        raise ValueError(
            f"the cache holds keys {of_keys} and values {of_values}: expected one batch as the "
            "first axis of both."
        )
    batch = of_keys[0]
    if framework(beams) is None and not isinstance(beams, list | tuple | range):
        raise TypeError(f"beams is {brief(beams)}, expected integers {(batch,)}.")
    index = xp.array(beams, like=values)
    if "int" not in xp.dtype(index):
        raise TypeError(f"beams must be integers, got {xp.dtype(index)}.")
    if xp.shape(index) != (batch,):
        raise ValueError(f"beams has shape {xp.shape(index)}, expected {(batch,)}.")
    for i, beam in enumerate(buffers.concrete_ints(index) or ()):
        if not 0 <= beam < batch:
            raise ValueError(f"beams[{i}] is {beam}, expected 0 ≤ beam < {batch}.")
    return index
