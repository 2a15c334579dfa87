"""Biases as plain data, which is drawn, made into arguments, and computed entry by entry.

    tensor      b_ij = x_ij                                x (..., T_q or 1, T_k or 1)
    Relative    b_ij = x_(R + clip(j − p_i, −R, R))        x (..., 2R + 1)
    ALiBi       b_ij = −x · |j − p_i|                      x (...)

Query i has the key position p_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import anyscore
from fuzz.rounding import Number, roundings

Shape = tuple[int, ...]
FAR = (0.0, -1e9, 1e9, 1e8, -1e8, 4e8, -4e8, 1e4, -1e4, 6e5, -3e6, 2.0**24, -(2.0**26))
"""Offsets of scores from 0, say by a mask; `far_biases` adds the least number of the dtype."""
RANKS = {"tensor": 2, "Relative": 1, "ALiBi": 0}


@dataclass(frozen=True)
class Bias:
    """shape: of the tensor of normal numbers times `spread`. align, offset: positions of queries,
    for `Relative` and `ALiBi`. far: numbers in place of these; a row has one of them, with a few
    others.
    """

    kind: str
    shape: Shape
    spread: float
    align: str | None = None
    offset: int | None = None
    far: tuple[float, ...] = ()

    @property
    def rank(self) -> int:
        """Return the rank of the tensor for one head."""
        return RANKS[self.kind]

    def draw_numbers(
        self, rng: np.random.Generator, keep: np.ndarray, fill: float | None
    ) -> np.ndarray:
        x = rng.standard_normal(self.shape) * self.spread
        if self.far:
            x[:] = rng.choice(self.far, (*self.shape[:-1], 1))
            x = np.where(rng.random(self.shape) < 0.1, rng.choice(self.far, self.shape), x)
        if self.kind == "tensor" and fill is not None:
            x[~_used(keep, self.shape)] = fill
        return x

    def build(self, tensor: Any) -> Any:
        if self.kind == "tensor":
            return tensor
        return getattr(anyscore, self.kind)(tensor, align=self.align, offset=self.offset)

    def matrix(self, x: Number, queries: int, keys: int) -> Number:
        """Return the bias (T_q, T_k) of one head."""
        if self.kind == "tensor":
            x = x.like(np.where(np.isfinite(x.x), x.x, 0.0))  # other entries are masked
            return x.like(np.broadcast_to(x.x, (queries, keys)))
        away = self._distances(queries, keys)
        if self.kind == "ALiBi":
            return x * -np.abs(away).astype(x.x.dtype)
        return x[self._columns(away)]

    def slopes(self, d: Number) -> Number:
        """Return the derivative by the tensor of one head, from d by the bias.

        The derivative of a gathered or repeated bias is stored entry by entry in the dtype of the
        tensor. The derivative of a bias by diagonals is stored likewise.
        """
        if self.kind == "tensor":
            d = d.stored()
            for axis in (0, 1):
                if self.shape[axis - 2] == 1:
                    summed = d.tokens(axis)
                    d = summed[None] if axis == 0 else summed[:, None]
            return d
        away = self._distances(*d.x.shape)
        if self.kind == "ALiBi":
            return (d * -np.abs(away).astype(d.x.dtype)).tokens(1).tokens(0)
        diagonals = np.arange(away.min(initial=0), away.max(initial=0) + 1)
        d = _sums(d.stored(), away - diagonals[0], diagonals.size).stored()
        return _sums(d, self._columns(diagonals), self.shape[-1])

    def _distances(self, queries: int, keys: int) -> np.ndarray:
        i, j = np.arange(queries)[:, None], np.arange(keys)[None]
        place = i + (keys - queries if self.align == "end" else 0) + (self.offset or 0)
        return np.asarray(j - place)

    def _columns(self, away: np.ndarray) -> np.ndarray:
        half = self.shape[-1] // 2
        return np.clip(away, -half, half) + half


def _sums(d: Number, index: np.ndarray, count: int) -> Number:
    """Return the sum of the entries of each index."""
    sums = np.zeros((3, count), d.x.dtype)
    for to, x in zip(sums, (d.x, d.e, np.abs(d.x)), strict=True):
        np.add.at(to, index, x)
    terms = int(np.bincount(index.reshape(-1), minlength=1).max())
    return d.like(sums[0], sums[1] + d.eps * roundings(terms) * sums[2])


def _used(keep: np.ndarray, shape: Shape) -> np.ndarray:
    """Return which entries of a tensor an attended pair uses; the tensor broadcasts to `keep`."""
    whole = (1,) * (keep.ndim - len(shape)) + shape
    axes = tuple(axis for axis, n in enumerate(whole) if n == 1)
    return np.asarray(keep.any(axes, keepdims=True).reshape(shape))


# --------------------------------------------------------------------------------- strategies


@st.composite
def far_biases(draw: st.DrawFn, lead: Shape, queries: int, keys: int, dtype: str) -> Bias:
    """Draw a tensor that moves each row of scores far from 0, by different numbers."""
    own, rows = draw(shapes(lead)), draw(st.sampled_from((queries, queries, 1)))
    least = float(np.finfo(dtype).min)
    return Bias("tensor", (*own, rows, keys), 1.0, far=(*FAR, least, least))


@st.composite
def biases(draw: st.DrawFn, lead: Shape, queries: int, keys: int) -> Bias:
    kind = draw(st.sampled_from(("tensor", "tensor", "Relative", "ALiBi")))
    spread, own = draw(st.sampled_from((1.0, 0.1, 10.0))), draw(shapes(lead))
    if kind == "tensor":
        rows, columns = draw(st.sampled_from((queries, 1))), draw(st.sampled_from((keys, keys, 1)))
        return Bias(kind, (*own, rows, columns), spread)
    align = draw(st.sampled_from(("start", "end", None)))
    offset = draw(st.none() | st.integers(-keys - 1, keys + 1))
    if align is None and offset is None and queries != keys:
        align = "end"
    if kind == "Relative":
        own = (*own, 2 * draw(st.sampled_from((3, 1, 16, 0))) + 1)
    return Bias(kind, own, spread, align, offset)


@st.composite
def shapes(draw: st.DrawFn, lead: Shape) -> Shape:
    """Draw a shape that broadcasts to `lead`: some sizes are 1, and the first may be missing."""
    own = tuple(n if draw(st.integers(0, 4)) else 1 for n in lead)
    return own[draw(st.integers(0, len(lead))) :]
