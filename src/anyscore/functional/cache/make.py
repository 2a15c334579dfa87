"""`make_cache`: allocate the buffers of a cache, and append the first tokens."""

from __future__ import annotations

from dataclasses import replace

from anyscore.functional.cache.cache import Cache
from anyscore.functional.cache.checks import (
    backend_of,
    check_room,
    lower_tokens,
    scalar_fields_of,
    tokens,
)
from anyscore.functional.cache.prepare import empty_queries
from anyscore.kernels import cpu
from anyscore.ops import Array
from anyscore.ops.checks import brief, check_integers, check_size
from anyscore.ops.pytrees import register_pytrees
from anyscore.score import ScaledDot
from anyscore.score.base import Score


def make_cache(
    key: Array,
    value: Array,
    score: Score = ScaledDot(),  # noqa: B008 (frozen)
    *,
    capacity: int,
    window: int | None = None,
) -> Cache:
    """Make a cache of these tokens, with room for more: self-attention step by step.

        cache = cache.append(key, value, score=score)        # the tokens of a step, (..., n, d)
        output = cache.attend(query, score=score)            # their queries, causally

    `append` projects each key once. All memory is allocated now. The number of filled rows is a
    tensor, so that torch.compile and jax.jit compile one program for all steps. Empty rows are not
    read.

    Args:
        key: (..., T, d_k), the first tokens; T may be 0.
        value: (..., T, d_v).
        score: a score object. By default `ScaledDot()`.
        capacity: the largest number of tokens in the cache, an integer ≥ 1.
        window: the number of last tokens that a query attends, its own included, as `Window(window
            − 1, 0)`. With a window the cache is a ring, and never full: new tokens overwrite the
            oldest. A step of n tokens at once needs a capacity of window + n − 1. By default None,
            all tokens.

    Returns:
        A `Cache`.

    Raises:
        TypeError, ValueError: An argument is wrong. The error comes before any work.

    >>> import numpy as np
    >>> from anyscore import Additive, Causal, attention, make_cache
    >>> rng = np.random.default_rng(0)
    >>> score = Additive(rng.normal(size=(8, 4)), rng.normal(size=(8, 4)), rng.normal(size=8))
    >>> x = rng.normal(size=(2, 10, 4))
    >>> cache = make_cache(x[:, :0], x[:, :0], score, capacity=10)
    >>> steps = []
    >>> for t in range(10):
    ...     token = x[:, t : t + 1]
    ...     cache = cache.append(token, token, score=score)
    ...     steps.append(cache.attend(token, score=score))
    >>> together = attention(x, x, x, score=score, mask=Causal())
    >>> np.allclose(np.concatenate(steps, 1), together)
    True
    """
    register_pytrees()
    if not isinstance(score, Score):
        raise TypeError(f"a cache is of a score object, such as ScaledDot(), got {brief(score)}.")
    check_integers(1, capacity=capacity)
    check_size(window=window)
    if window is not None and window > capacity:
        raise ValueError(f"window={window} must be ≤ capacity={capacity}.")
    f, first = lower_tokens(key, value, score, None, None)
    backend, buffers = backend_of(first)
    check_room(0, tokens(first), capacity, window is not None)
    if problem := buffers.why_not(f.b, first):
        raise ValueError(f"a cache {problem}.")
    xp = backend.xp

    def room(x: Array, own: int) -> Array:
        shape = xp.shape(x)
        at = len(shape) - own
        return buffers.zeros((*shape[:at], capacity, *shape[at + 1 :]), x)

    b, values = room(f.b, 2), room(first, 2)
    bias = None if f.key_bias is None else room(f.key_bias, 1)
    packed = buffers.packed_buffer(b) if cpu.packs(f.pair) else None
    length = buffers.zeros((), first, xp.index_dtype())
    of_score = empty_queries(xp, score, key), type(score), int(xp.shape(key)[-1])
    cache = Cache(b, bias, packed, values, length, *of_score, window, scalar_fields_of(score))
    if buffers.in_place:
        cache = replace(cache, prepared=cache.keys)
    return cache.append(key, value, score=score)
