"""Biases: numbers added to the score of each query and key, with gradients.

    s = φ(score(q, k) + bias_ij) + bias_after_ij

A bias is a tensor, or an object that computes it from positions. An object never becomes a matrix:
kernels read one number for each diagonal j − i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from anyscore.masks.alignment import check_align, check_aligned
from anyscore.masks.offsets import integers
from anyscore.ops import DTYPES, Array, Ops, accumulation, framework
from anyscore.ops.checks import (
    Sizes,
    brief,
    broadcasts,
    check_devices,
    check_integers,
    check_names,
    check_switches,
    find_framework,
)
from anyscore.ops.pytrees import Restored, register_pytrees, tree

MAX_POSITION = 2**30
"""The largest offset of queries; all distances then fit 32 bits."""


class LoweredBias(NamedTuple):
    """A bias lowered for one call.

    array: (..., T_q, T_k); or (..., 1, max(T_q + T_k − 1, 1)) of diagonals, with the bias of i and
    j in entry j − i + T_q − 1. diagonal: whether `array` holds diagonals. after: whether the bias
    is added after the outer function.
    """

    array: Array
    diagonal: bool
    after: bool

    def matrix(self, xp: Ops, queries: int, keys: int, rows: Sequence[int] | None = None) -> Array:
        """Return the bias (..., T_q, T_k); rows: of diagonals, the rows to return, None for all."""
        if not self.diagonal:
            return self.array
        i, j, last = xp.arange(queries, self.array), xp.arange(keys, self.array), queries - 1
        if rows is not None:
            i, queries = xp.array(list(rows), self.array), len(rows)
        index = xp.reshape(j[None, :] - i[:, None] + last, (queries * keys,))
        x = self.array[..., 0, :]
        return xp.reshape(xp.take(x, index), (*xp.shape(x)[:-1], queries, keys))


class Bias(Restored):
    """A bias of relative positions, a tree of its tensors in PyTorch and JAX.

    The key position of query i is i + offset (align="start") or i + T_k − T_q + offset
    (align="end"). T_q ≠ T_k needs `align` or `offset`. offset: an integer, or a tensor ().
    """

    static: ClassVar[tuple[str, ...]] = ()
    align: str | None
    offset: Any

    def __init_subclass__(cls) -> None:
        tree(cls)

    def __post_init__(self) -> None:
        register_pytrees()
        check_align(self.align)
        offset = self.offset
        if offset is not None and framework(offset) is None:
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise TypeError(f"offset must be an integer or a tensor (), got {brief(offset)}.")
            if abs(offset) > MAX_POSITION:
                raise ValueError(f"offset must be within ± 2³⁰, got {brief(offset)}.")

    def tensors(self) -> dict[str, Array]:
        """Map field names to the fields that are tensors."""
        fields = vars(self).items()  # torch.compile cannot trace `framework` of a string
        return {n: x for n, x in fields if n not in self.static and framework(x) is not None}

    def map(self, function: Callable[[Array], Array]) -> Any:
        """Copy the bias with a function applied to each of its tensors."""
        return replace(self, **{name: function(x) for name, x in self.tensors().items()})  # type: ignore[type-var]

    def values_at(self, xp: Ops, distances: Array, heads: int | None) -> Array:
        """Return the bias (..., n) of distances (n,), integers: key minus query position.

        heads: the number of query heads, None without an axis of heads.
        """
        raise NotImplementedError

    def from_query(self, start: Any, queries: int, keys: int) -> Any:
        """Return the bias for later queries of a call of these sizes, from query `start` on."""
        check_aligned(self, queries, keys)
        if self.align == "end":
            start = start + (keys - queries)
        return replace(
            self, align=None, offset=start if self.offset is None else start + self.offset
        )  # type: ignore[type-var]

    def _offset(self, xp: Ops, query: Array) -> Array:
        """Return an offset that is a tensor, clamped so that distances fit the index dtype."""
        offset = integers(xp, xp.array(self.offset, query))
        return xp.clip(offset, -MAX_POSITION, MAX_POSITION)

    def lower(self, xp: Ops, query: Array, sizes: Sizes) -> Array:
        """Return one number for each diagonal, (..., 1, max(T_q + T_k − 1, 1))."""
        queries, keys = sizes.queries, sizes.keys
        check_aligned(self, queries, keys)
        shift = keys - queries if self.align == "end" else 0
        if self.offset is not None:
            shift = shift + (
                self.offset if isinstance(self.offset, int) else self._offset(xp, query)
            )
        count = max(queries + keys - 1, 1)
        found = self.values_at(
            xp,
            xp.arange(count, query) - (queries - 1) - shift,
            sizes.lead[-1] if len(sizes.lead) > 1 else None,
        )
        found = xp.tensor(found, query)
        return xp.reshape(found, (*xp.shape(found)[:-1], 1, count))


@dataclass(frozen=True, eq=False)
class Relative(Bias):
    """Learned bias for each distance j − i between key and query, or for each bucket of distances.

        bias_ij = table[R + clip(j − i, −R, R)]        buckets="clipped"
        bias_ij = table[bucket(j − i)]                 buckets="t5"

    Fused kernels read one number for each diagonal j − i and make no matrix. Gradients reach the
    table.

    Args:
        table: (2R + 1,) or (heads, 2R + 1) for "clipped", (buckets,) or (heads, buckets) for "t5";
            a tensor of floating point. A T5 model's `relative_attention_bias.weight` is its
            transpose.
        buckets: "clipped", the default, or "t5".
        bidirectional: for "t5". True, the default, splits the buckets between keys up to the query
            and keys after it. False counts later keys as distance 0.
        max_distance: for "t5", the distance from which on all keys share the last bucket; 128 by
            default.
        align: "start", "end" or None, as for `Window`.
        offset: an integer or a tensor (), as for `Window`.

    The first half of the T5 buckets of one side holds one distance each; the others hold ranges
    that grow up to max_distance.

    Raises:
        TypeError: table is no tensor, or offset no integer.
        ValueError: The table has an even number of columns for "clipped"; max_distance is too
            small for the number of buckets; or buckets or align is unknown.

    Sources: Shaw et al. 2018, Self-Attention with Relative Position Representations, section 3.2,
    here as a bias; Raffel et al. 2020 (T5), section 2.1.

    >>> import numpy as np
    >>> from anyscore import Relative, scores
    >>> x = np.zeros((4, 1))
    >>> scores(x, x, bias=Relative(np.array([7.0, 0.0, 5.0])))      # before, here, after
    array([[0., 5., 5., 5.],
           [7., 0., 5., 5.],
           [7., 7., 0., 5.],
           [7., 7., 7., 0.]])
    """

    table: Array
    buckets: str = "clipped"
    bidirectional: bool = True
    max_distance: int = 128
    align: str | None = None
    offset: Any = None
    static = "buckets", "bidirectional", "max_distance", "align"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("clipped", "t5", buckets=self.buckets)
        check_switches(bidirectional=self.bidirectional)
        check_integers(1, max_distance=self.max_distance)
        if self.max_distance > MAX_POSITION:
            raise ValueError(f"max_distance must be ≤ 2³⁰, got {brief(self.max_distance)}.")
        if framework(self.table) is None:
            raise TypeError(f"table must be a tensor (heads, n), got {brief(self.table)}.")
        shape = tuple(self.table.shape)
        if not shape or shape[-1] < 1 or (self.buckets == "clipped" and shape[-1] % 2 == 0):
            expected = "2R + 1" if self.buckets == "clipped" else "buckets"
            raise ValueError(f"table has shape {shape}, expected (..., {expected}).")
        if self.buckets == "t5":
            half = shape[-1] // (2 if self.bidirectional else 1) // 2
            if half < 1 or self.max_distance <= half:
                raise ValueError(
                    f"max_distance={self.max_distance} must be > {half}, the number of buckets of "
                    f"one distance among {shape[-1]}; at least one is needed."
                )

    def values_at(self, xp: Ops, distances: Array, heads: int | None) -> Array:
        """Gather the entries of the table."""
        columns = xp.shape(self.table)[-1]
        if self.buckets == "clipped":
            index = xp.clip(distances + columns // 2, 0, columns - 1)
        else:
            index = self._buckets(xp, distances, columns)
        return xp.take(self.table, index)

    def _buckets(self, xp: Ops, distances: Array, columns: int) -> Array:
        """Return the bucket (n,) of each distance (n,)."""
        dtype, bucket = xp.index_dtype(), 0 * distances
        back = -distances
        if self.bidirectional:
            columns //= 2
            bucket = xp.astype(distances > 0, dtype) * columns
            back = xp.where(distances > 0, distances, back)
        near = columns // 2
        bucket = bucket + xp.clip(back, 0, near - 1)
        for start in _range_starts(near, columns, self.max_distance):
            bucket = bucket + xp.astype(back >= start, dtype)
        return bucket


def _range_starts(near: int, columns: int, end: int) -> list[int]:
    """List the exact first distance of each bucket that holds a range.

    Distance n ≥ near is in bucket near + ⌊(columns − near) log(n / near) / log(end / near)⌋.
    """
    ranges, starts = columns - near, []
    for b in range(ranges):
        n = math.ceil(near * (end / near) ** (b / ranges)) - 2
        n = max(n, near)
        while n**ranges * near**b < end**b * near**ranges:
            n += 1
        starts.append(n)
    return starts


@dataclass(frozen=True, eq=False)
class ALiBi(Bias):
    """Linear bias: a penalty that grows with the distance between key and query.

        bias_ij = −slope · |i − j|

    Fused kernels read one number for each diagonal j − i and make no matrix. Gradients reach the
    slopes.

    Args:
        slopes: a tensor (heads,) or (). By default None, the paper's slopes 2^(−8 h / heads) for
            head h = 1 … heads. If heads is no power of 2, slopes in between follow the authors'
            code.
        align: "start", "end" or None, as for `Window`.
        offset: an integer or a tensor (), as for `Window`.

    Raises:
        TypeError: slopes is no tensor, or offset no integer.
        ValueError: align is unknown, or |offset| exceeds 2³⁰.

    Source: Press et al. 2022, Train Short, Test Long: Attention with Linear Biases Enables Input
    Length Extrapolation, section 3.

    >>> import numpy as np
    >>> from anyscore import ALiBi, scores
    >>> x = np.zeros((3, 1))
    >>> scores(x, x, bias=ALiBi(np.array(0.5)))
    array([[ 0. , -0.5, -1. ],
           [-0.5,  0. , -0.5],
           [-1. , -0.5,  0. ]])
    >>> x = np.zeros((1, 8, 2, 1))                                  # 8 heads
    >>> scores(x, x, bias=ALiBi())[0, :3, 0, 1]                     # −1/2, −1/4, −1/8, …
    array([-0.5  , -0.25 , -0.125])
    """

    slopes: Any = None
    align: str | None = None
    offset: Any = None
    static = ("align",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slopes is not None and framework(self.slopes) is None:
            got = brief(self.slopes)
            raise TypeError(f"slopes must be a tensor (heads,) or (), or None, got {got}.")

    def values_at(self, xp: Ops, distances: Array, heads: int | None) -> Array:
        """Multiply the distances by the slopes."""
        size = xp.where(distances > 0, distances, -distances)
        if self.slopes is None:
            found = default_slopes(heads or 1)
            slopes = xp.array(found[0] if heads is None else [[x] for x in found], distances)
            return -slopes * xp.astype(size, xp.dtype(slopes))
        slopes = self.slopes
        dtype = accumulation(xp.dtype(slopes))
        return -xp.astype(slopes, dtype)[..., None] * xp.tensor(xp.astype(size, dtype), slopes)


def default_slopes(heads: int) -> list[float]:
    """List the slopes of `ALiBi` for this many heads."""
    heads = int(heads)  # a tensor in torch.jit.trace
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2.0 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return slopes + between[: heads - power]


def lower_biases(
    xp: Ops, bias: Any, bias_after: Any, query: Array, sizes: Sizes, has_diagonals: bool = True
) -> tuple[LoweredBias, ...]:
    """Check biases and lower them for a call; has_diagonals: see `LoweredMask`.

    Raises:
        TypeError, ValueError: `bias` or `bias_after` is no bias, or does not fit the call.
    """
    given = ("bias", bias, False), ("bias_after", bias_after, True)
    for name, x, _ in given:
        if isinstance(x, Bias) and not has_diagonals:
            raise ValueError(
                f"{name} is {type(x).__name__}(...), one number for each distance j − i of packed "
                "tokens: leave out cu_seqlens_k if lengths are alike, or pass (..., T_q, T_k)."
            )
    return tuple(
        _lower(xp, x, name, query, sizes, after) for name, x, after in given if x is not None
    )


def _lower(xp: Ops, bias: Any, name: str, query: Array, sizes: Sizes, after: bool) -> LoweredBias:
    is_object = isinstance(bias, Bias)
    if not is_object and framework(bias) is None:
        raise TypeError(
            f"{name} must be a tensor that broadcasts to (..., T_q, T_k), Relative(table) or "
            f"ALiBi(slopes), got {brief(bias)}."
        )
    tensors = bias.tensors() if is_object else {"": bias}
    tensors = {f"{name}.{field}".rstrip("."): x for field, x in tensors.items()}
    find_framework(query=query, **tensors)
    check_devices(xp, query, **tensors)
    for field, x in tensors.items():
        if field.endswith(".offset"):
            if "int" not in xp.dtype(x) or xp.shape(x):
                got = f"{xp.dtype(x)} of shape {xp.shape(x)}"
                raise TypeError(f"{field} is {got}, expected an integer or integers ().")
        elif xp.dtype(x) not in DTYPES:
            hint = ": a boolean tensor is a mask, pass mask=" if xp.dtype(x) == "bool" else ""
            raise TypeError(f"{field} is {xp.dtype(x)}, expected one of {', '.join(DTYPES)}{hint}.")
    array = bias.lower(xp, query, sizes) if is_object else bias
    shape, full = xp.shape(array), (*sizes.lead, sizes.queries, sizes.keys)
    if is_object and not broadcasts(shape[:-2], sizes.lead):
        raise ValueError(
            f"{name} has the leading dimensions {shape[:-2]}, expected what broadcasts to "
            f"{sizes.lead}, those of the queries."
        )
    if not is_object:
        if not broadcasts(shape, full):
            raise ValueError(f"{name} has shape {shape}, expected what broadcasts to {full}.")
        array = xp.broadcast_to(array, (*shape[:-2], *full[-2:]))
    if xp.dtype(array) == "float64" != accumulation(xp.dtype(query)):  # NumPy's default dtype
        array = xp.astype(array, "float32")
    return LoweredBias(array, is_object, after)
