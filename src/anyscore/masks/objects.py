"""Masks: which keys each query may attend.

Masks in practice leave each query one contiguous interval of keys [start, stop): valid lengths,
causal, sliding window, packed documents, and any intersection of them. Kernels take intervals. Any
other mask is a boolean array in which True means *may attend*.

    Causal() & Lengths(n) & keep        # masks and boolean arrays intersect, in any order

Every array argument also takes a number, a list or a NumPy array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar

from anyscore.masks.alignment import check_align, is_aligned
from anyscore.masks.context import MaskContext
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import AnyLowered, LoweredEdges
from anyscore.ops import Array, Ops
from anyscore.ops.checks import brief, broadcasts
from anyscore.ops.pytrees import Restored, register_pytrees, tree


class Mask(Restored):
    """Base class of masks; `&` intersects a mask with other masks and with boolean arrays.

    A subclass defines `lower`. Masks are trees of their fields in PyTorch and JAX.

    Attributes:
        static: names of the fields that are part of the structure of such a tree. By default none.
        by_position: True if the mask depends on positions of keys alone, not on rows of an array.
            A cache with a window, whose rows change tokens, takes only such masks.
        of_all_queries: True if all queries may attend the same keys. Keys can then be prepared
            before queries exist.

    Raises:
        TypeError: The other operand of `&` is the class of a mask, such as `Causal` without
            parentheses.

    >>> import numpy as np
    >>> from anyscore import Causal, attention
    >>> x, odd = np.zeros((4, 1)), np.array([[False, True, False, True]])
    >>> found = attention(x, x, x, mask=Causal() & odd, return_weights=True)
    >>> (found.weights > 0).astype(int)
    array([[0, 0, 0, 0],
           [0, 1, 0, 0],
           [0, 1, 0, 0],
           [0, 1, 0, 1]])
    """

    static: ClassVar[tuple[str, ...]] = ()
    by_position: ClassVar[bool] = False
    of_all_queries: ClassVar[bool] = False
    __array_ufunc__ = None  # lets `array & mask` reach __rand__ in NumPy

    def __init_subclass__(cls) -> None:
        tree(cls)

    def __post_init__(self) -> None:
        register_pytrees()

    def __and__(self, other: Any) -> Mask:
        return All((self, as_mask(other)))

    def __rand__(self, other: Any) -> Mask:
        return All((as_mask(other), self))

    def context(self, call: MaskContext) -> MaskContext:
        """Return the call that the masks beside this one are lowered for."""
        return call

    def at_end(self, xp: Ops, first: Array) -> Mask:
        """Return the mask for queries at the last positions.

        first: the position () of the first query. A mask that does not depend on positions of
        queries, or sets them, is returned unchanged.
        """
        return self

    def lower(self, call: MaskContext) -> AnyLowered:
        """Lower the mask for one call.

        Raises:
            TypeError, ValueError: arrays do not fit the call in dtype or shape.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class All(Mask):
    """The intersection of `masks`, the result of `&`."""

    masks: tuple[Mask, ...]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if not (isinstance(self.masks, tuple) and all(isinstance(x, Mask) for x in self.masks)):
            raise TypeError(f"masks is {brief(self.masks)}, expected a tuple of masks.")

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to the intersection of intervals and arrays."""
        xp, start, stop, allowed = call.xp, None, None, None
        masks = parts(self)
        for mask in masks:
            call = mask.context(call)
        for mask in masks:
            one = mask.lower(call)
            if isinstance(one, LoweredEdges):
                raise ValueError(
                    f"{type(mask).__name__} does not combine with other masks: leave out what may "
                    "not be attended."
                )
            if one.start is not None:
                start = one.start if start is None else xp.maximum(start, one.start)
            if one.stop is not None:
                stop = one.stop if stop is None else xp.minimum(stop, one.stop)
            if one.mask is not None:
                allowed = one.mask if allowed is None else xp.logical_and(allowed, one.mask)
        return call.lowered(start, stop, allowed)


@dataclass(frozen=True, eq=False)
class BooleanMask(Mask):
    """A boolean array, True = may attend. A plain array passed as a mask becomes a `BooleanMask`.

    keep: rank ≥ 2, last dimensions {1, T_q} × {1, T_k}, leading ones broadcast as in NumPy.
    """

    keep: Array

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to a boolean array."""
        keep = call.boolean(self.keep, "mask")
        shape, full = call.xp.shape(keep), (*call.lead, call.queries, call.keys)
        if len(shape) < 2 or len(shape) > len(full) or not broadcasts(shape, full):
            hint = ""
            if call.lead and shape == (call.lead[0], call.keys):
                hint = " For a key-padding mask of shape (batch, keys) pass mask=Keys(keep)."
            elif len(shape) == 3 and len(full) == 4:
                hint = " For a mask without heads insert their axis: mask[:, None]."
            raise ValueError(
                f"mask has shape {shape}, expected rank ≥ 2 and a shape that broadcasts to "
                f"{full} (leading dimensions, queries, keys).{hint}"
            )
        return call.lowered(mask=call.xp.reshape(keep, (1,) * (len(full) - len(shape)) + shape))


@dataclass(frozen=True, eq=False)
class Keys(Mask):
    """Keys that every query may attend: an arbitrary key-padding mask.

        query i may attend key j    if    keep_j

    Args:
        keep: booleans, True = may attend. Shapes: (B, T_k), with B the first leading dimension;
            (T_k,); or (*lead, T_k), with all leading dimensions.

    Raises:
        TypeError, ValueError: keep is not boolean, or of another shape. The call that uses the
            mask raises the error.

    >>> import numpy as np
    >>> from anyscore import Keys, attention
    >>> x, keep = np.zeros((2, 2, 1)), np.array([[True, True], [False, True]])
    >>> attention(x, x, x, mask=Keys(keep), return_weights=True).weights[:, 0]
    array([[0.5, 0.5],
           [0. , 1. ]])
    """

    keep: Array
    of_all_queries = True

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to a boolean array, one row for all queries."""
        keep = call.boolean(self.keep, "Keys(keep)")
        shape, full = call.xp.shape(keep), (*call.lead, call.keys)
        aligned = shape
        if len(shape) == 2 and len(call.lead) > 1:
            aligned = shape[:1] + (1,) * (len(call.lead) - 1) + shape[1:]
        elif len(shape) == 1:
            aligned = (1,) * len(call.lead) + shape
        if len(aligned) != len(full) or not broadcasts(aligned, full):
            first = call.lead[:1]
            raise ValueError(
                f"Keys(keep) has shape {shape}, expected {(*first, call.keys)} "
                f"or a shape that broadcasts to {full}."
            )
        return call.lowered(mask=call.xp.reshape(keep, (*aligned[:-1], 1, aligned[-1])))


@dataclass(frozen=True, eq=False)
class Interval(Mask):
    """One range of keys for each query, start ≤ j < stop.

    Left padding is Interval(padding, None). For packed documents start and stop are the bounds of
    each query's document; `Sequences` computes these from offsets.

    Args:
        start: the first key; numbers and shapes as `n` of `Lengths`. By default None, no bound.
        stop: the key after the last; likewise.

    Raises:
        TypeError, ValueError: A bound has another shape, or is no whole number. The call that uses
            the mask raises the error.

    >>> import numpy as np
    >>> from anyscore import Interval, attention
    >>> x = np.zeros((3, 1))
    >>> found = attention(x, x, x, mask=Interval([0, 0, 1], [1, 2, 3]), return_weights=True)
    >>> (found.weights > 0).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """

    start: Any = None
    stop: Any = None
    by_position = of_all_queries = True

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to the interval [start, stop)."""
        start = None if self.start is None else call.bound(self.start, "start", nan=call.keys)
        stop = None if self.stop is None else call.bound(self.stop, "stop", nan=0)
        return call.lowered(start, stop)


@dataclass(frozen=True, eq=False)
class Lengths(Mask):
    """Valid lengths: a query may attend the first n keys.

        query i may attend key j    if    j < n

    The argument `valid_lens` of functions and layers is the same mask. A number above T_k means
    all keys, a negative one none. On accelerators and in compiled programs values are unknown.
    Fractions are then rounded up, and NaN means no key.

    Args:
        n: whole numbers of any integer or float type. Shapes: (); (B,), with B the first leading
            dimension; (B, T_q); or any that broadcasts to (*lead, T_q).

    Raises:
        TypeError, ValueError: n has another shape, or is known to be a fraction or NaN. The call
            that uses the mask raises the error.

    >>> import numpy as np
    >>> from anyscore import Lengths, attention
    >>> x = np.zeros((2, 4, 1))
    >>> attention(x, x, x, mask=Lengths([4, 2]), return_weights=True).weights[:, 0]
    array([[0.25, 0.25, 0.25, 0.25],
           [0.5 , 0.5 , 0.  , 0.  ]])
    """

    n: Any
    by_position = of_all_queries = True

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to the interval [0, n)."""
        return call.lowered(stop=call.bound(self.n, "valid_lens", nan=0))


@dataclass(frozen=True, eq=False)
class Window(Mask):
    """Sliding window around the query's own position.

        query i may attend key j    if    p_i − left ≤ j ≤ p_i + right

    The position p_i of query i among the keys is i + offset (align="start") or i + T_k − T_q +
    offset (align="end").

    Args:
        left: the number of keys before the own position, an integer ≥ 0; None: all.
        right: the number of keys after the own position, an integer ≥ 0; None: all.
        align: "start" lines up the first query with the first key, "end" the last query with the
            last key. None, the default, is for T_q = T_k or for an offset.
        offset: an integer, or integers of shape () or (B,), such as the length of a preallocated
            cache. None, the default, is 0.

    Raises:
        TypeError: `left` or `right` is no integer.
        ValueError: `left` or `right` is negative; align is unknown; or a call has T_q ≠ T_k, with
            neither align nor offset.

    >>> import numpy as np
    >>> from anyscore import Window, attention
    >>> x = np.zeros((4, 1))
    >>> (attention(x, x, x, mask=Window(1, 0), return_weights=True).weights > 0).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """

    left: int | None
    right: int | None
    align: str | None = None
    offset: Any = None
    static = "left", "right", "align"
    by_position = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, width in (("left", self.left), ("right", self.right)):
            if width is not None and (isinstance(width, bool) or not isinstance(width, Integral)):
                raise TypeError(f"{name} must be an integer ≥ 0 or None, got {brief(width)}.")
            if width is not None and width < 0:
                raise ValueError(f"{name} must be ≥ 0, got {width}.")
            if width is not None:  # NumPy's integers overflow
                object.__setattr__(self, name, int(width))
        check_align(self.align)

    def at_end(self, xp: Ops, first: Array) -> Mask:
        """Return the window of queries at the last positions."""
        return _at_end(self, xp, first)

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to the interval of keys around each query."""
        return _lower_window(self, self.left, self.right, call)


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Causal mask: a query may attend keys up to its own position.

        query i may attend key j    if    j ≤ p_i

    The mask is Window(None, 0, align, offset), where positions p_i are defined. With T_q ≠ T_k
    libraries disagree about p_i, so align or offset is required.

    Args:
        align: "start" lines up the first query with the first key, "end" the last query with the
            last key. None, the default, is for T_q = T_k or for an offset.
        offset: an integer, or integers of shape () or (B,). None, the default, is 0.

    Raises:
        ValueError: align is unknown; or a call has T_q ≠ T_k, with neither align nor offset.

    >>> import numpy as np
    >>> from anyscore import Causal, attention
    >>> query, key = np.zeros((2, 1)), np.zeros((4, 1))
    >>> for align in ("start", "end"):
    ...     mask = Causal(align)
    ...     (attention(query, key, key, mask=mask, return_weights=True).weights > 0).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0]])
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    align: str | None = None
    offset: Any = None
    static = ("align",)
    by_position = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_align(self.align)

    def at_end(self, xp: Ops, first: Array) -> Mask:
        """Return the window of queries at the last positions."""
        return _at_end(self, xp, first)

    def lower(self, call: MaskContext) -> LoweredMask:
        """Lower to the interval of keys up to each query."""
        return _lower_window(self, None, 0, call)


def parts(mask: Any) -> list[Mask]:
    """List the masks that `&` combined."""
    if isinstance(mask, All):
        return [part for one in mask.masks for part in parts(one)]
    return [] if mask is None else [as_mask(mask)]


def as_mask(x: Any) -> Mask:
    """Return x if it is a mask object, else x as a boolean array, `BooleanMask`.

    Raises:
        TypeError: x is the class of a mask.
    """
    if isinstance(x, type) and issubclass(x, Mask):
        raise TypeError(f"mask is the class {x.__name__}: make a mask of it, {x.__name__}(...).")
    return x if isinstance(x, Mask) else BooleanMask(x)


def _at_end(mask: Window | Causal, xp: Ops, first: Array) -> Mask:
    if mask.align != "end" and is_aligned(mask):
        return mask
    if mask.offset is not None:
        first = first + xp.array(mask.offset, like=first)
    return replace(mask, align=None, offset=first)


def _lower_window(
    mask: Causal | Window, left: int | None, right: int | None, call: MaskContext
) -> LoweredMask:
    xp, position = call.xp, call.positions(mask)
    offset = None
    if mask.offset is not None:
        offset = call.per_query(mask.offset, "offset", floats=False)

    def end(width: int) -> Array:
        far = min(max(width, -call.beyond_all_keys), call.beyond_all_keys)
        moved = position + (far if offset is None else call.add_saturating(offset, width))
        return xp.maximum(xp.minimum(moved, call.keys), 0)

    start = None if left is None else end(-left)
    stop = None if right is None else end(right + 1)
    return call.lowered(start, stop)
