"""Checks of a mask's whole numbers, offsets among them, where their values are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyscore.ops import Ops, framework, load
from anyscore.ops.checks import brief


def check_integer_vector(x: Any, name: str) -> np.ndarray[Any, Any] | None:
    """Check that x is one axis of integers; return its values (n,), None if they are unknown."""
    kind = framework(x)
    if kind is None and not isinstance(x, list | tuple):
        if type(x) is object:  # the placeholder of a tensor in a tree
            return None
        raise TypeError(f"{name} is {brief(x)} ({type(x).__name__}), expected integers (n,).")
    xp = load(kind or "numpy")
    array = x if kind is not None else as_integers(x)
    if array is None:
        raise TypeError(f"{name} is {brief(x)}, expected integers (n,).")
    if "int" not in xp.dtype(array) or len(xp.shape(array)) != 1:
        raise TypeError(
            f"{name} is {xp.dtype(array)} of shape {xp.shape(array)}, expected integers (n,)."
        )
    return concrete_values(xp, array)


def as_integers(x: Any) -> np.ndarray[Any, Any] | None:
    """Return a list or a tuple as an array, of integers if it is empty; None if it is ragged."""
    try:
        array = np.asarray(x)
    except ValueError:  # also of lists that contain themselves
        return None
    return array if array.size else array.astype(np.int64)


def integers(xp: Ops, x: Any) -> Any:
    """Return integers in the index dtype; unsigned ones beyond it become its largest number."""
    dtype, index = xp.dtype(x), xp.index_dtype()
    if dtype == index:  # the common case
        return x
    x = xp.astype(x, index)
    return xp.where(x < 0, 2 ** (int(index[3:]) - 1) - 1, x) if dtype.startswith("u") else x


def check_whole(xp: Ops, x: Any, name: str) -> None:
    """Check that floats are whole numbers, or infinite.

    Raises:
        ValueError: a known number is a fraction or NaN.
    """
    known = concrete_values(xp, x)
    others = [] if known is None else known[known != np.rint(known)]
    if len(others):
        raise ValueError(
            f"{name} holds {others[0]}, expected whole numbers: round them to numbers of keys."
        )


def concrete_values(xp: Ops, x: Any) -> np.ndarray[Any, Any] | None:
    """Return the values of an array; None if it is traced, or not in this machine's memory."""
    if xp.is_tracing():
        return None
    try:
        return np.asarray(x)
    except Exception:
        return None


def check_offsets(name: str, offsets: np.ndarray[Any, Any] | None, hint: str) -> None:
    """Check that offsets begin with 0 and never fall; None, for unknown values, passes.

    hint: the end of the message, the argument to pass instead.

    Raises:
        ValueError: they do not begin with 0, or fall.
    """
    if offsets is None:
        return
    if not offsets.size or offsets[0] != 0:
        got = offsets[:1].tolist() or "no entry"
        raise ValueError(f"{name} must begin with 0, got {got}: {hint}")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        i = int(falls[0])
        raise ValueError(
            f"{name} must never fall, but entry {i + 1} is {offsets[i + 1]} after {offsets[i]}: "
            f"{hint}"
        )
