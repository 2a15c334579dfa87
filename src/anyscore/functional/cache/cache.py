"""Caches of keys and values that grow: self-attention one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from anyscore.backends import repeats
from anyscore.backends.repeated import RepeatedCalls, kind_of_score
from anyscore.call.lowering import combine
from anyscore.call.prepared import PreparedKeys
from anyscore.functional.attention import attention, plan
from anyscore.functional.cache.checks import (
    CHECKED,
    backend_of,
    check_beams,
    check_bias,
    check_cache,
    check_queries,
    check_rank,
    check_room,
    check_rows,
    check_score_of,
    lower_tokens,
    tokens,
)
from anyscore.functional.cache.positions import CachePositions, bias_by_row, mask_by_row
from anyscore.masks.objects import Causal, Lengths, Mask
from anyscore.ops import Array
from anyscore.ops.checks import check_integers, find_framework
from anyscore.ops.pytrees import Restored, tree
from anyscore.score import ScaledDot
from anyscore.score.base import Score


@tree
@dataclass(frozen=True, eq=False)
class Cache(Restored):
    """Buffers of keys, prepared for a score, and of their values; `make_cache` makes one.

    In PyTorch and NumPy the methods write to the buffers in place. In JAX they return another
    cache. A cache is a pytree of its tensors in PyTorch and JAX.

    Attributes:
        b: the prepared keys, (..., capacity, h); see `PreparedKeys`.
        key_bias: (..., capacity), or None; see `PreparedKeys`.
        packed: the packed keys, or None; see `PreparedKeys`.
        values: (..., capacity, d_v).
        length: (), an integer, the number of tokens appended so far.
        empty_query: (..., 0, d_q).
        score: the class of the score.
        d_k: the width of keys.
        window: the largest number of tokens that a query attends, its own included; None: all.
            With a window, the token of position p is in row p mod capacity.
        scalar_fields: the scalar fields of the score, as text.

    >>> import numpy as np
    >>> from anyscore import make_cache
    >>> x = np.array([[1.0], [3.0], [8.0]])
    >>> cache = make_cache(0 * x[:1], x[:1], capacity=3)
    >>> for t in (1, 2):
    ...     cache = cache.append(0 * x[t : t + 1], x[t : t + 1])
    ...     cache.attend(np.zeros((1, 1)))                  # the mean of the values so far
    array([[2.]])
    array([[4.]])
    """

    static: ClassVar[tuple[str, ...]] = ("score", "d_k", "window", "scalar_fields")
    derived: ClassVar[tuple[str, ...]] = ("prepared",)
    b: Array
    key_bias: Array | None
    packed: Array | None
    values: Array
    length: Array
    empty_query: Array
    score: type[Score]
    d_k: int
    window: int | None
    scalar_fields: str
    prepared: PreparedKeys | None = None

    @property
    def capacity(self) -> int:
        """Return the number of rows of the buffers."""
        return tokens(self.values)

    @property
    def keys(self) -> PreparedKeys:
        """Return all rows as prepared keys; `attention` needs `mask()` of the cache with them."""
        if self.prepared is not None:
            return self.prepared
        buffers = backend_of(self.values)[1]
        blank = buffers.empty_view((*self.b.shape[:-2], self.capacity, self.d_k), self.values)
        nothing = blank[..., :0, :]
        return PreparedKeys(blank, self.score, self.b, self.key_bias, self.packed, nothing)

    def append(self, key: Array, value: Array, *, score: Score = ScaledDot()) -> Cache:  # noqa: B008
        """Append tokens; return the cache with them.

        Compiled programs and accelerators cannot raise an error if the cache is full. Then the
        values beyond the capacity become NaN, and so do all later outputs.

        Args:
            key: (..., n, d_k).
            value: (..., n, d_v).
            score: the score of the queries, with the same parameters. By default `ScaledDot()`.

        Returns:
            The cache with these tokens.

        Raises:
            TypeError, ValueError: The tokens have another shape or dtype than the cache; the
                score is another; the cache is full. In PyTorch: tokens need gradients.
        """
        check_score_of(score, self, "append(key, value")
        before = self._known(key)
        if before is not None and before.append(self, key, value, score):
            return self
        if before is None or self not in CHECKED:
            check_cache(self)
        find_framework(cache=self.values, key=key)
        f, value = lower_tokens(key, value, score, self.empty_query, self.values)
        backend, buffers = backend_of(self.values)
        xp, count, wraps = backend.xp, tokens(value), self.window is not None
        bias, start = f.key_bias, self.length
        known = None if wraps else buffers.concrete_int(self.length)
        check_rows(xp, "key", f.b, self.b)
        check_bias(type(score).__name__, bias, self.key_bias)
        check_room(known, count, self.capacity, wraps)
        if problem := buffers.why_not(f.b, value, *(() if bias is None else (bias,))):
            raise ValueError(f"a cache {problem}.")
        if not wraps and known is None:
            start = xp.clip(start, 0, self.capacity - count)
            value = xp.where(start == self.length, value, float("nan"))
        elif not wraps:
            start = known
        b, packed = buffers.write_rows(self.b, f.b, start, wraps), self.packed
        values = buffers.write_rows(self.values, value, start, wraps)
        if packed is not None:
            packed = buffers.pack(f.pair.name, b, packed, start, count)
        if self.key_bias is not None and bias is not None:
            column = bias[..., None]
            bias = buffers.write_rows(self.key_bias[..., None], column, start, wraps)[..., 0]
        if before is not None:
            before.remember_append(self, key, value, score, f)
        return self._with(b, bias, packed, values, buffers.add(self.length, count))

    def _known(self, x: Array) -> RepeatedCalls | None:
        """Return the repeated calls of x's type; None if the type of the cache is another.

        None also for a cache with a window or with biases of keys.
        """
        alike = self.window is None is self.key_bias
        alike = alike and type(x) is type(self.values) is type(self.b) is type(self.length)
        return repeats(x) if alike else None

    def _with(self, b: Array, bias: Any, packed: Any, values: Array, length: Array) -> Cache:
        """Return a cache with these tensors; self if b is its own, written in place."""
        if b is self.b:
            return self
        changed = {"b": b, "key_bias": bias, "packed": packed, "values": values, "length": length}
        return replace(self, **changed)

    def mask(self, queries: int = 1, causal: bool = True) -> Mask:
        """Return the mask of rows for queries at the last positions appended.

        Args:
            queries: their number. By default 1.
            causal: True, the default, if each query attends up to its own position; False if it
                attends all tokens.

        Returns:
            A mask for calls of `attention` with `Cache.keys`.

        Raises:
            TypeError, ValueError: `queries` is no number, or exceeds a known number of tokens; or,
                with a window, the buffer lacks tokens of the first query's window.
        """
        check_cache(self)
        check_integers(0, queries=queries)
        if causal:
            check_queries(queries, backend_of(self.values)[1].concrete_int(self.length))
        if self.window is not None:
            return self._positions(queries).mask(self.window, causal)
        if queries == 1 or not causal:
            return Lengths(self.length)
        return Causal(offset=self.length - queries)

    def positions(self) -> Array:
        """Return the position of the token in each row (capacity,); < 0 for an empty row.

        Raises:
            TypeError, ValueError: A field of the cache is wrong.
        """
        check_cache(self)
        return self._positions(0).positions()

    def _positions(self, queries: int) -> CachePositions:
        xp, wraps = backend_of(self.values)[0].xp, self.window is not None
        return CachePositions(xp, self.values, self.length, self.capacity, queries, wraps)

    def attend(
        self,
        query: Array,
        *,
        score: Score = ScaledDot(),  # noqa: B008 (frozen)
        causal: bool = True,
        mask: Any = None,
        bias: Any = None,
        bias_after: Any = None,
        **options: Any,
    ) -> Any:
        """Return `attention` of queries at the last positions appended.

        Args:
            query: (..., T_q, d_q).
            score: the score of `append`. By default `ScaledDot()`.
            causal: True, the default, if each query attends up to its own position; False if it
                attends all tokens.
            mask: intersected with the mask of the cache; by default None. `Lengths`, `Interval`,
                `Causal` and `Window` count positions. `Causal` and `Window` without align or
                offset place the queries at the last positions. Boolean arrays (T_q, capacity)
                index rows, so a cache with a window refuses them.
            bias, bias_after: as for `attention`. `Relative` and `ALiBi` without align or offset
                place the queries at the last positions.
            options: the other options of `attention`.

        Returns:
            The result of `attention`.

        Raises:
            TypeError, ValueError: As `attention`, and as `mask` of the cache.
        """
        given = {"mask": mask, "bias": bias, "bias_after": bias_after, **options}
        plain = mask is bias is bias_after is None and not options
        before = self._known(query) if plain else None
        if before is not None and query.shape[-2:-1] == (1,):
            check_score_of(score, self, "attend(query")
            kind, length = kind_of_score(score), self.length
            found = before.run(kind, query, self.keys, self.values, length, None, score)
            if found is not None and self.length > 0:
                return found[0]
        given = self._placed(query, score, causal, given)
        return attention(query, self.keys, self.values, score=score, **given)

    def check_step(self, query: Array, *, score: Score, **options: Any) -> None:
        """Raise the errors of `attend` before the tokens of the queries are appended."""
        ahead = replace(self, length=self.length + tokens(query))
        given = ahead._placed(query, score, True, options)
        plan(query, ahead.keys, ahead.values, score=score, **given)

    def _placed(
        self, query: Array, score: Score, causal: bool, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Translate masks and biases from positions to buffer rows; add the cache's mask."""
        check_cache(self)
        find_framework(query=query, cache=self.values)
        check_score_of(score, self, "attend(query")
        check_rank("query", query)
        at = self._positions(tokens(query))
        own = self.mask(at.queries, causal)
        mask = combine(options.get("mask"), options.get("valid_lens"))
        placed = options | {"mask": own, "valid_lens": None}
        if mask is not None:
            placed["mask"] = own & mask_by_row(at, mask)
        elif isinstance(own, Lengths):  # lengths, not a mask: only those are repeated
            placed |= {"mask": None, "valid_lens": own.n}
        for name in ("bias", "bias_after"):
            placed[name] = bias_by_row(at, options.get(name), query.shape[:-2])
        return placed

    def reorder(self, beams: Any) -> Cache:
        """Replace entry i of the batch by entry beams[i], as a beam search does.

        Compiled programs and accelerators do not check beams: JAX fills an entry beyond the batch
        with NaN.

        Args:
            beams: (B,), integers ≥ 0 of the first axis of keys and values.

        Returns:
            The cache with these entries.

        Raises:
            TypeError, ValueError: beams are not (B,) integers from 0 to B − 1, or keys or values
                have no batch.
        """
        check_cache(self)
        backend, buffers = backend_of(self.values)
        index = check_beams(backend.xp, buffers, beams, self.b, self.values)
        rows = None if self.window is not None else buffers.concrete_int(self.length)
        b = buffers.reorder_batch(self.b, index, rows)
        values = buffers.reorder_batch(self.values, index, rows)
        packed, bias = self.packed, self.key_bias
        if packed is not None:
            packed = buffers.reorder_batch(packed, index, None if rows is None else rows + 1)
        if bias is not None:
            bias = buffers.reorder_batch(bias[..., None], index, rows)[..., 0]
        return self._with(b, bias, packed, values, self.length)
