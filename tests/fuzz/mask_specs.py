"""Masks as plain data, which is drawn, made into mask objects, and computed entry by entry.

A spec is (kind, fields); several specs intersect. `allowed` follows the documentation of each kind
in NumPy and shares no code with the package. A class of masks without a formula here comes from the
table of the other tests, with its rule there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as fields_of
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anyscore
from helpers import oracle
from helpers.table_masks import MASKS, RULES
from helpers.table_shapes import SHAPES
from helpers.table_shapes import Shape as Shaped

Shape = tuple[int, ...]

KINDS = "Lengths", "Causal", "Window", "Interval", "Keys", "Array"
"""Masks that are drawn and computed here; others come from the table, with its rules."""


@dataclass(frozen=True)
class Spec:
    kind: str
    fields: dict[str, Any]

    def build(self, array: Callable[[np.ndarray], Any]) -> Any:
        """Return the mask object, or the array itself; `array` turns arrays into tensors."""
        made = {n: array(x) if isinstance(x, np.ndarray) else x for n, x in self.fields.items()}
        return made["keep"] if self.kind == "Array" else getattr(anyscore, self.kind)(**made)


def spec_of(mask: Any) -> Spec:
    return Spec(type(mask).__name__, {x.name: getattr(mask, x.name) for x in fields_of(mask)})


def of_table() -> dict[str, list[str]]:
    """Return the rows of the table for each class of masks without a formula here.

    `Sequences` is left out, since it changes the positions of other masks.
    """
    found: dict[str, list[str]] = {}
    for name, case in MASKS.items():
        kind = type(case.make(SHAPES["heads"], np.random.default_rng(0), np.asarray)).__name__
        if kind in RULES and kind not in (*KINDS, "Sequences"):
            found.setdefault(kind, []).append(name)
    return found


def build(specs: list[Spec], array: Callable[[np.ndarray], Any]) -> Any:
    """Return the intersection of all masks; `&` needs a mask object beside two arrays."""
    made = [spec.build(array) for spec in specs]
    if len(made) > 1 and all(spec.kind == "Array" for spec in specs[:2]):
        made.insert(1, anyscore.Interval())
    return reduce(and_, made) if made else None


def allowed(specs: list[Spec], lead: Shape, queries: int, keys: int) -> np.ndarray:
    """Return the attended pairs, boolean (*lead, T_q, T_k)."""
    keep = np.ones((*lead, queries, keys), bool)
    for spec in specs:
        keep &= _allowed(spec.kind, spec.fields, lead, queries, keys)
    return keep


def _allowed(kind: str, fields: dict[str, Any], lead: Shape, queries: int, keys: int) -> Any:
    j = np.arange(keys).astype(object)  # Python's integers: sums of 64 bits need 65
    if kind == "Lengths":
        return j < _per_query(fields["n"], lead)
    if kind == "Interval":
        keep = np.ones((), bool)
        if fields["start"] is not None:
            keep = keep & (j >= _per_query(fields["start"], lead))
        if fields["stop"] is not None:
            keep = keep & (j < _per_query(fields["stop"], lead))
        return keep
    if kind in ("Window", "Causal"):
        place = np.arange(queries).astype(object)[:, None]
        if fields["align"] == "end":
            place = place + (keys - queries)
        if fields["offset"] is not None:
            place = place + _per_query(fields["offset"], lead)
        left, right = (None, 0) if kind == "Causal" else (fields["left"], fields["right"])
        keep = np.ones((), bool)
        if left is not None:
            keep = keep & (j >= place - int(left))
        return keep if right is None else keep & (j <= place + int(right))
    if kind not in KINDS:
        return oracle.allowed(Spec(kind, fields).build(np.asarray), lead, queries, keys)
    keep = np.asarray(fields["keep"])
    if kind == "Keys":
        if keep.ndim == 2 and lead:
            keep = keep.reshape(keep.shape[0], *(1,) * (len(lead) - 1), keys_of(keep))
        return keep[..., None, :]
    return keep


def keys_of(x: np.ndarray) -> int:
    return int(x.shape[-1])


def _per_query(x: Any, lead: Shape) -> np.ndarray:
    """Return numbers of Python that broadcast to (*lead, T_q, 1)."""
    x = np.asarray(x).astype(object)
    if x.ndim == 1 and lead:
        x = x.reshape(-1, *(1,) * len(lead))
    elif x.ndim == 2 and len(lead) > 1:
        x = x.reshape(x.shape[0], *(1,) * (len(lead) - 1), x.shape[1])
    return np.asarray(x[..., None])


# --------------------------------------------------------------------------------- strategies

INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float64", "float32", "float16")


@st.composite
def specs(draw: st.DrawFn, lead: Shape, queries: int, keys: int) -> list[Spec]:
    """Draw no mask, one mask, or an intersection of up to three."""
    count = draw(st.sampled_from((1, 1, 1, 2, 2, 3, 0)))
    return [draw(_spec(lead, queries, keys)) for _ in range(count)]


@st.composite
def _spec(draw: st.DrawFn, lead: Shape, queries: int, keys: int) -> Spec:
    kind = draw(st.sampled_from((*KINDS, *of_table())))
    if kind not in KINDS:
        names = [name for name in of_table()[kind] if len(lead) >= MASKS[name].rank]
        shape = Shaped(lead, lead, lead, queries, keys)
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        return spec_of(MASKS[draw(st.sampled_from(names))].make(shape, rng, np.asarray))
    if kind == "Lengths":
        return Spec(kind, {"n": draw(bounds(lead, queries, keys))})
    if kind == "Interval":
        either = st.none() | bounds(lead, queries, keys)
        return Spec(kind, {"start": draw(either), "stop": draw(either)})
    if kind in ("Causal", "Window"):
        fields: dict[str, Any] = {}
        if kind == "Window":
            fields = {"left": draw(widths(queries, keys)), "right": draw(widths(queries, keys))}
        align = draw(st.sampled_from(("start", "end", None)))
        offset = draw(st.none() | offsets(lead, queries, keys))
        if align is None and offset is None and queries != keys:
            align = "end"
        return Spec(kind, {**fields, "align": align, "offset": offset})
    full = (*lead, queries, keys) if kind == "Array" else (*lead, keys)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    if kind == "Keys":
        shapes = [(keys,), full] + ([(lead[0], keys)] if lead else [])
        shape = draw(st.sampled_from(shapes))
        if len(shape) == 2 and len(lead) > 1:  # its first axis is the first leading dimension
            shape = (lead[0], keys)
    else:
        rank = draw(st.integers(2, len(full)))
        shape = tuple(n if draw(st.booleans()) else 1 for n in full[len(full) - rank :])
    keep = rng.random(shape) < draw(st.sampled_from((0.7, 0.3, 0.0, 1.0)))
    return Spec(kind, {"keep": keep})


@st.composite
def bounds(draw: st.DrawFn, lead: Shape, queries: int, keys: int) -> Any:
    """Draw a number, list or array of any dtype as a bound of keys, also far beyond them."""
    shape = draw(st.sampled_from(_shapes(lead, queries)))
    dtype = draw(st.sampled_from((*INTEGERS, *FLOATS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = rng.uniform(-1, keys + 2, shape)
    if dtype in FLOATS:
        odd = rng.choice([math.inf, -math.inf, -1.0, 6e4], shape)
        return _plain(draw, np.where(rng.random(shape) < 0.1, odd, np.round(x)).astype(dtype))
    info = np.iinfo(dtype)
    x = np.clip(np.round(x), info.min, info.max).astype(dtype)
    odd = rng.choice(np.array([info.min, info.max, info.max // 2 + 3], dtype), shape)
    return _plain(draw, np.where(rng.random(shape) < 0.1, odd, x).astype(dtype))


@st.composite
def offsets(draw: st.DrawFn, lead: Shape, queries: int, keys: int) -> Any:
    shape = draw(st.sampled_from(_shapes(lead, queries)))
    dtype = draw(st.sampled_from(INTEGERS))
    info = np.iinfo(dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = np.clip(rng.integers(-keys - 1, keys + 2, shape), info.min, info.max).astype(dtype)
    far = rng.choice(np.array([info.min, info.max], dtype), shape)
    x = np.where(rng.random(shape) < draw(st.sampled_from((0.0, 0.0, 0.3))), far, x)
    return _plain(draw, x.astype(dtype))


def widths(queries: int, keys: int) -> st.SearchStrategy[Any]:
    """Draw a window's width on one side: None, small, the dtype's largest, or beyond any dtype."""
    small = st.integers(0, queries + keys + 1)
    typed = st.sampled_from(
        (np.int8(127), np.uint8(255), np.int64(2**63 - 1), np.uint64(2**64 - 1))
    )
    of_numpy = small.map(lambda n: np.int8(min(n, 127)))
    huge = st.sampled_from((2**31 - 1, 2**31, 2**63 - 1, 2**70))
    return st.one_of(st.none(), small, small, small, of_numpy, typed | huge)


def _shapes(lead: Shape, queries: int) -> list[Shape]:
    full = (*lead, queries)
    shapes = [(), (1,) * len(full), full]
    if lead:
        shapes += [(lead[0],), (lead[0], queries), (*lead, 1), (1,) * len(lead) + (queries,)]
    else:
        shapes += [(queries,)]
    return shapes


def _plain(draw: st.DrawFn, x: np.ndarray) -> Any:
    """Draw an array unchanged, or as Python's numbers and lists."""
    if 0 in x.shape or draw(st.sampled_from((True, True, False))):
        return x
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        return x
    return x if (x.astype(np.longdouble) >= 2**63).any() else x.tolist()
