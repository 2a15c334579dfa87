"""Arguments of masks: numbers, lists and tensors become arrays of one call.

Lengths and offsets stay tensors throughout. Values of integers are never inspected on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from anyscore.masks.alignment import HOW, check_aligned, is_aligned
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.offsets import check_whole, integers
from anyscore.ops import PLAIN, Array, Ops, framework, load
from anyscore.ops.checks import brief, broadcasts


class QueryPositions(NamedTuple):
    """The positions of a rank's queries in the whole sequence (T_q,), and its number of tokens."""

    at: Array
    tokens: int


@dataclass(frozen=True)
class MaskContext:
    """The call that a mask is lowered for: its leading dimensions, queries and keys.

    packed: positions of packed sequences; masks then count positions and lengths within each
    sequence. shard: the positions of queries, if they are a part of their sequence. Keys are then
    counted in the whole sequence, and arrays per query have the queries of the part.
    """

    xp: Ops
    like: Array
    lead: tuple[int, ...]
    queries: int
    keys: int
    packed: PackedPositions | None = None
    shard: QueryPositions | None = None

    @property
    def all_queries(self) -> int:
        """The number of queries of the whole sequence."""
        return self.queries if self.shard is None else self.shard.tokens

    def lowered(
        self, start: Array | None = None, stop: Array | None = None, mask: Array | None = None
    ) -> LoweredMask:
        """Return a mask lowered for this call."""
        lowered = LoweredMask(self.xp, self.keys, start, stop, mask)
        lowered.has_diagonals = self.packed is None or self.packed.shift is None
        return lowered

    def of_packed(self, name: str) -> Array:
        """Return a field of `packed` (T_q,), as an array of rank len(lead) + 1."""
        return self.xp.reshape(getattr(self.packed, name), (*(1,) * len(self.lead), self.queries))

    def positions(self, mask: Any) -> Array:
        """Return the key position of each query under the mask's alignment, without its offset.

        The rank is len(lead) + 1.

        Raises:
            ValueError: the mask sets no alignment, though queries and keys differ in length.
        """
        at_end = mask.align == "end"
        if self.packed is None:
            check_aligned(mask, self.all_queries, self.keys)
        elif self.packed.shift is not None and not is_aligned(mask):
            raise ValueError(
                f"{type(mask).__name__} in sequences whose queries and keys differ in length must "
                f"say how they line up: {HOW} (the key position of the first query), each within "
                "its sequence."
            )
        shard = self.shard
        i = self.xp.arange(self.queries, like=self.like) if shard is None else shard.at
        i = self.xp.reshape(i, (1,) * len(self.lead) + (self.queries,))
        if self.packed is None:
            return i + (self.keys - self.all_queries) if at_end else i
        if self.packed.shift is None:
            return i
        i = i - self.of_packed("first_query") + self.of_packed("first_key")
        return i + self.of_packed("shift") if at_end else i

    def array(self, x: Any, name: str) -> Array:
        """Return `x` on the device of the query.

        Raises:
            TypeError, ValueError: x is a tensor of another framework or device, or no array.
        """
        ours, theirs = framework(self.like), framework(x)
        if theirs is not None and (problem := load(theirs).layout_problem(x)):
            raise TypeError(f"{name} is {problem}.")
        if theirs not in (None, "numpy", ours):
            raise TypeError(
                f"{name} is a {theirs} tensor but the query is a {ours} tensor: "
                "pass both from one framework."
            )
        try:
            if theirs is None and not isinstance(x, PLAIN):
                raise TypeError
            made = self.xp.array(x, like=self.like)
            if self.xp.dtype(made).startswith(("str", "object")):  # NumPy takes anything
                raise TypeError
            return made
        except NotImplementedError:  # PyTorch's meta tensors hold no values
            raise ValueError(
                f"{name} is on {self.xp.device(x)}, the query on {self.xp.device(self.like)}: "
                "move them to one device."
            ) from None
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"{name} is {brief(x)} ({type(x).__name__}), expected a number, a list or a tensor."
            ) from None

    def boolean(self, x: Any, name: str) -> Array:
        """Return `x` as a boolean array.

        Raises:
            TypeError: x holds numbers; the message says how to pass them.
        """
        x = self.array(x, name)
        dtype = self.xp.dtype(x)
        if dtype == "bool":
            return x
        if "int" in dtype:
            advice = "for 0/1 integers pass mask != 0; for lengths pass valid_lens= or Lengths(n)."
        else:
            advice = (
                "for an additive mask of 0 and −inf pass mask == 0; a float tensor is a bias, pass "
                "bias=."
            )
        raise TypeError(f"{name} must be boolean with True = may attend, got {dtype}: {advice}")

    def per_query(self, x: Any, name: str, floats: bool = True) -> Array:
        """Return numbers given per batch, per query or in full, as an array of rank len(lead) + 1.

        Numbers of packed sequences may also be given per sequence.
        """
        x = self.array(_clamp_python_ints(x), name)
        dtype = self.xp.dtype(x)
        if 0 in self.xp.shape(x) and "float" in dtype:  # as of an empty list
            x, dtype = self.xp.astype(x, self.xp.index_dtype()), self.xp.index_dtype()
        if "int" not in dtype and not (floats and "float" in dtype):
            advice = ""
            if dtype == "bool":
                advice = ": for a boolean padding mask (True = may attend) pass mask=Keys(keep)"
            raise TypeError(
                f"{name} must be integers{' or floats' if floats else ''}, got {dtype}{advice}."
            )
        of_sequences = self.packed is not None and self.xp.shape(x) == (self.packed.count,)
        if self.packed is not None:
            x = self.packed.per_query(self.xp, x)
        shape = self.xp.shape(x)
        full = (*self.lead, self.queries)
        if of_sequences:
            aligned = (1,) * len(self.lead) + shape
        elif len(shape) == 1 and self.lead:
            aligned = shape + (1,) * len(self.lead)
        elif len(shape) == 2 and len(self.lead) > 1:
            aligned = shape[:1] + (1,) * (len(self.lead) - 1) + shape[1:]
        else:
            aligned = (1,) * (len(full) - len(shape)) + shape
        if not broadcasts(aligned, full):
            batch = self.lead[0] if self.lead else None
            allowed = (
                [(), (batch,), (batch, self.queries), full] if batch is not None else [(), full]
            )
            of = f"leading dimensions {self.lead}, {self.queries} queries"
            if self.packed is not None:
                allowed.insert(1, (self.packed.count,))
                of = f"{self.packed.count} sequences, {of}"
            raise ValueError(
                f"{name} has shape {shape}, expected one of "
                f"{', '.join(map(str, dict.fromkeys(allowed)))} ({of})."
            )
        return self.xp.reshape(x, aligned)

    @property
    def beyond_all_keys(self) -> int:
        """A distance beyond all keys; its sum with a position does not overflow."""
        return 2**29 if self.xp.index_dtype() == "int32" else 2**61

    def add_saturating(self, x: Array, width: int) -> Array:
        """Return x + width for any integers, in the index dtype, clamped to ± `beyond_all_keys`.

        The sum is exact for all 64 bits of x and for any width: no step overflows.
        """
        xp, dtype, index = self.xp, self.xp.dtype(x), self.xp.index_dtype()
        bits = int(index[3:])
        low, high, far = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, self.beyond_all_keys
        x = x if dtype == index else xp.astype(x, index)
        if dtype == f"u{index}":  # the upper half is negative now: move both by a half
            upper = xp.clip(x, low, -1) + high + 1
            x, width = xp.where(x < 0, upper, xp.clip(x, 0, high) - high - 1), width - low
        least, most = max(-far - width, low), min(far - width, high)
        if most < low or least > high:
            return xp.clip(x, 0, 0) + (far if most < low else -far)
        return (xp.clip(x, least, most) - least) + (least + width)

    def bound(self, x: Any, name: str, nan: int) -> Array:
        """Return ⌈x⌉ clamped to [0, T_k], so that j < x and j ≥ x become integer comparisons.

        In packed sequences x counts from the first key of the query's sequence. nan: the number
        that replaces NaN where values are unknown.

        Raises:
            ValueError: a known float is neither whole nor infinite.
        """
        xp, x = self.xp, self.per_query(x, name)
        dtype = xp.dtype(x)
        if "float" not in dtype:
            return self._of_sequence(xp.clip(integers(self.xp, x), 0, self.keys))
        if dtype != "float64":  # T_k may exceed what float16 can hold
            x = xp.astype(x, "float32")
        check_whole(xp, x, name)
        x = xp.where(x == x, x, nan)
        return self._of_sequence(xp.astype(xp.ceil(xp.clip(x, 0, self.keys)), xp.index_dtype()))

    def _of_sequence(self, x: Array) -> Array:
        """Return bounds within sequences as bounds of packed keys; x if there are no sequences."""
        return x if self.packed is None else x + self.of_packed("first_key")


def _clamp_python_ints(x: Any) -> Any:
    """Clamp Python integers, in lists too, to int64; to uint64 if none is negative."""
    least, most = _min_max(x)
    if most < 2**63:
        return x if least >= -(2**63) else _clamp(x, -(2**63), 2**63 - 1)
    if least < 0:
        return _clamp(x, -(2**63), 2**63 - 1)
    return np.array(_clamp(x, 0, 2**64 - 1), np.uint64)


MAX_RANK = 64
"""The most axes of an array of NumPy: lists within more lists, or within themselves, are none."""


def _min_max(x: Any, depth: int = 0) -> tuple[int, int]:
    """Return the minimum and the maximum of 0 and all single integers in x."""
    if isinstance(x, list | tuple) and depth < MAX_RANK:
        ends = [_min_max(y, depth + 1) for y in x]
        return min([0, *[a for a, _ in ends]]), max([0, *[b for _, b in ends]])
    if isinstance(x, Integral) and not isinstance(x, bool):
        return min(int(x), 0), max(int(x), 0)
    return 0, 0


def _clamp(x: Any, least: int, most: int, depth: int = 0) -> Any:
    if isinstance(x, list | tuple) and depth < MAX_RANK:
        return [_clamp(y, least, most, depth + 1) for y in x]
    return min(max(int(x), least), most) if isinstance(x, Integral) else x


@dataclass(frozen=True)
class PackedPositions:
    """The sequence of each query of a call, and its first and last tokens: (T_q,) each.

    count: the number of sequences. sequence: the index of the sequence, in [0, count). first_query,
    first_key: the first query and the first key of the sequence. last_key: one more than the last
    key; first_key where a query belongs to no sequence. shift: the number of keys less the number
    of queries; None if keys share the offsets of queries.
    """

    count: int
    sequence: Array
    first_query: Array
    first_key: Array
    last_key: Array
    shift: Array | None

    @classmethod
    def of(
        cls,
        xp: Ops,
        queries: int,
        of_queries: Array,
        of_keys: Array | None,
        shard: QueryPositions | None = None,
    ) -> PackedPositions:
        """Return the positions of `queries` from offsets (count + 1,).

        of_keys: offsets of the keys, None if they are `of_queries`. shard: see `MaskContext`.
        """
        count = xp.shape(of_queries)[0] - 1
        of_queries = xp.clip(of_queries, 0, queries)
        index = xp.cumsum(xp.count(of_queries[1:], queries + 1))[:queries]
        index = index if shard is None else xp.take(index, shard.at)
        inside = index < count
        index = xp.minimum(index, max(count - 1, 0))
        first_query, after = xp.take(of_queries[:-1], index), xp.take(of_queries[1:], index)
        first_key, last_key, shift = first_query, after, None
        if of_keys is not None:
            first_key, last_key = xp.take(of_keys[:-1], index), xp.take(of_keys[1:], index)
            shift = (last_key - first_key) - (after - first_query)
        last_key = xp.where(inside, last_key, first_key)
        return cls(count, index, first_query, first_key, last_key, shift)

    def per_query(self, xp: Ops, x: Array) -> Array:
        """Expand numbers (count,) of sequences to queries, (T_q,); return any other x unchanged."""
        return xp.take(x, self.sequence) if xp.shape(x) == (self.count,) else x
