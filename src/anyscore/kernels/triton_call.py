"""A call on PyTorch tensors as the Triton kernels take it: operands by stride, panels made once."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from anyscore.kernels import triton_panels
from anyscore.kernels.triton_pairs import TANH, Functions
from anyscore.kernels.triton_scores import Panels, Weights
from anyscore.kernels.triton_tiles import Dropout, Mask, Operand, Rows, Sizes

TILE = 64
BAND_BYTES = 2**28
"""What the backward stores of weights and their gradients, if that is more than LEAST_BAND keys."""
LEAST_BAND = 256
HALF = torch.bfloat16, torch.float16


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def columns_of(width: int) -> int:
    """How many columns of so many a program sums: a power of 2."""
    return min(max(16, 1 << max(width - 1, 0).bit_length()), 128)


def blocks_of(width: int) -> int:
    """How many programs share them."""
    return max(-(-width // columns_of(width)), 1)


@dataclass(frozen=True)
class Lead:
    """The leading dimensions of a call as two: problem p is (p // heads, p % heads)."""

    front: tuple[int, ...]
    heads: int
    groups: int

    @staticmethod
    def of(lead: tuple[int, ...], groups: int) -> Lead:
        return Lead(tuple(lead[:-1]), lead[-1], groups) if lead else Lead((), 1, groups)

    @property
    def problems(self) -> int:
        return prod(self.front) * self.heads

    def two(self, x: Tensor, own: int) -> Tensor:
        """x (..., *own) as (n, h, *own), each of the two 1 or all there are; copied only if leading
        dimensions other than the last broadcast in part.
        """
        tail = tuple(x.shape[x.dim() - own :])
        lead = tuple(x.shape[: x.dim() - own])
        lead = (1,) * (len(self.front) + 1 - len(lead)) + lead
        x = x.reshape(*lead, *tail)
        front = lead[:-1]
        if front not in (self.front, (1,) * len(front)):
            x, front = x.expand(*self.front, lead[-1], *tail), self.front
        return x.reshape(prod(front), lead[-1], *tail)

    def group(self, heads: int) -> int:
        """How many query heads share one of an operand's `heads`."""
        return max(self.heads // heads, 1) if heads else 1

    def operand(self, x: Tensor | None, own: int, rows: bool = False) -> Operand:
        """x (..., *own dimensions) as a kernel takes it. rows: the last dimension is one of rows,
        not of columns. A dimension of 1 broadcasts.
        """
        if x is None:
            return Operand(None, 0, 0, 1, 0, 0)
        x = self.two(x, own)
        stride = [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
        if own == 1:
            stride = [*stride, 0] if rows else [*stride[:2], 0, stride[2]]
        return Operand(x, stride[0], stride[1], self.group(x.shape[1]), *stride[2:])

    def sum_to(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Gradients of every problem, (problems, *own dimensions), summed to those of an input."""
        own = x.dim() - 1
        tail = tuple(shape[len(shape) - own :])
        lead = tuple(shape[: len(shape) - own])
        lead = (1,) * (len(self.front) + 1 - len(lead)) + lead
        heads = lead[-1]
        x = x.reshape(*self.front, heads, self.heads // max(heads, 1), *tail).sum(len(self.front) + 1)
        axes = [i for i, (n, m) in enumerate(zip(lead, self.front, strict=False)) if n != m]
        return (x.sum(axes) if axes else x).reshape(shape)

    def contiguous(self, x: Tensor) -> tuple[int, int, int]:
        """n, h and group of something contiguous with an entry for each problem of x (n, h, ...)."""
        n, h = x.shape[:2]
        return (0 if n == 1 else h), (0 if h == 1 else 1), self.group(h)


class Call:
    """What forward and backward share: everything of a call but the values.

    sums: the dtype that is computed in.
    """

    def __init__(
        self, pair: Functions, a: Tensor, b: Tensor, weight: Tensor | None,
        key_bias: Tensor | None, start: Tensor | None, stop: Tensor | None, keep: Tensor | None,
        scale: float, groups: int, lead: tuple[int, ...], sums: torch.dtype,
    ) -> None:  # fmt: skip
        self.pair, self.sums, self.scale = pair, sums, scale
        self.lead = lead_ = Lead.of(lead, groups)
        self.queries, self.keys, self.width = a.shape[-2], b.shape[-2], a.shape[-1]
        self.padded = round_up(max(self.width, 1), 16)
        self.query_tiles = -(-self.queries // TILE)
        self.key_tiles = -(-self.keys // TILE)
        self.sizes = Sizes(lead_.heads, self.queries, self.keys)
        self.mask = Mask(
            lead_.operand(start, 1, rows=True),
            lead_.operand(stop, 1, rows=True),
            lead_.operand(keep if keep is None else keep.view(torch.uint8), 2),
        )
        self.mask = Mask(*(None if x.data is None else x for x in self.mask))
        self.bias = None if key_bias is None else lead_.operand(key_bias, 1)
        if pair.is_product and weight is not None:
            a, weight = a.to(sums) * weight[..., None, :], None
        self.a, self.b = lead_.two(a, 2), lead_.two(b, 2)
        self.weight = None if weight is None else lead_.two(weight, 1)
        # The products of different dtypes are taken in that of sums.
        self.features_dtype = (
            a.dtype if pair.is_product and a.dtype == b.dtype and a.dtype in HALF else sums
        )
        self.precision = "tf32x3" if sums == torch.float32 else "ieee"
        self.exponentials = pair is TANH and sums == torch.float32
        self.weights = self._weights()
        n, h = self.a.shape[:2]
        if self.exponentials:
            self.shift = self._shift()
            n, h = prod(lead_.front), lead_.heads
        self.of_queries = self._panels(self.a, n, h, self.query_tiles, True)
        n, h = self.b.shape[:2]
        if self.exponentials and self.weight is not None:
            n, h = max(n, self.weight.shape[0]), max(h, self.weight.shape[1])
        self.of_keys = self._panels(self.b, n, h, self.key_tiles, False)

    def options(self) -> dict[str, Any]:
        """What the kernels that compute scores are compiled for."""
        return {"PAIR": self.pair, "WIDTH": self.width, "PADDED": self.padded}

    def band(self, kind: torch.dtype) -> int:
        """How many keys the backward takes at a time: it stores so many weights for each query."""
        row = self.lead.problems * self.queries * (self.sums.itemsize + kind.itemsize)
        return min(round_up(self.keys, TILE), max(BAND_BYTES // row // TILE * TILE, LEAST_BAND))

    def dropout(self, p: float, seed: Tensor | None, period: int) -> Dropout:
        if seed is None:
            return Dropout(None, 0, 1, 1.0)
        # The smallest word that is kept is p · 2³², rounded up.
        last = min(int(-(-p * 2.0**32 // 1)), 2**32) - 1
        return Dropout(seed.reshape(1), last, period, 1 / (1 - p))

    def rows(self, x: Tensor, dtype: torch.dtype) -> Rows:
        """The rows of x (n, h, rows, columns), in the dtype they are multiplied in."""
        n, h, rows, width = x.shape
        tiles, padded = -(-rows // TILE), columns_of(width) * blocks_of(width)
        copy = x.new_empty((n * h, tiles * TILE, padded), dtype=dtype)
        odd = x.new_empty((n * h, tiles), dtype=torch.int32)
        triton_panels.finite[tiles, n * h](
            self._operand(x, h), copy, odd, h, rows, width, tiles, padded
        )
        return Rows(copy, odd, *self.lead.contiguous(x), tiles, padded)

    def _operand(self, x: Tensor, heads: int) -> Operand:
        """x (n, h, rows, columns) for a kernel of n · heads problems of its own."""
        stride = [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
        return Operand(x, stride[0], stride[1], heads // x.shape[1], *stride[2:])

    def _weights(self) -> Weights:
        w = self.weight
        if w is None and not self.exponentials:
            return Weights(None, None, 0, 0, 1)
        n, h = (1, 1) if w is None else w.shape[:2]
        like = self.a if w is None else w
        table = like.new_empty((n * h, 4, self.padded), dtype=self.sums)
        constants = like.new_empty((n * h, 2), dtype=self.sums)
        operand = Operand(None, 0, 0, 1, 0, 0)
        if w is not None:
            s = [0 if m == 1 else t for m, t in zip(w.shape, w.stride(), strict=True)]
            operand = Operand(w, s[0], s[1], 1, 0, s[2])
        triton_panels.coefficients[(n * h,)](
            operand, table, constants, h, self.width, self.padded, self.scale
        )
        n_stride, h_stride, group = (0, 0, 1) if w is None else self.lead.contiguous(w)
        return Weights(table, constants, n_stride, h_stride, group)

    def _shift(self) -> Tensor:
        n, h = self.b.shape[:2]
        shift = self.b.new_empty((n * h, self.padded), dtype=torch.float32)
        triton_panels.shifts[self.padded // 16, n * h](
            self._operand(self.b, h), shift, h, self.keys, self.width, self.padded
        )
        return shift

    def _panels(self, x: Tensor, n: int, h: int, tiles: int, of_query: bool) -> Panels:
        """Panels of x for problems (n, h)."""
        rows = x.shape[2]
        features = x.new_empty((n * h, tiles, self.padded, TILE), dtype=self.features_dtype)
        operand, grid = self._operand(x, h), (tiles, n * h)
        triton_panels.fill[grid](operand, features, h, rows, self.width, tiles, self.padded)
        panels = bounds = None
        if self.exponentials:
            panels = torch.empty_like(features)
            bounds = x.new_empty((n * h, tiles, 2), dtype=torch.float32)
            of_b = self.b.shape[:2]
            shift = Operand(
                self.shift,
                0 if of_b[0] == 1 else of_b[1] * self.padded,
                0 if of_b[1] == 1 else self.padded,
                h // of_b[1], 0, 0,
            )  # fmt: skip
            w_n, w_h, group = self.weights.n, self.weights.h, self.weights.group
            size = 4 * self.padded
            table = Operand(self.weights.table, w_n * size, w_h * size, group, 0, 0)
            triton_panels.exponentials[grid](
                operand, panels, bounds, table, shift, h, rows, self.width, tiles, self.padded,
                OF_QUERY=of_query,
            )  # fmt: skip
        return Panels(
            features, panels, bounds, 0 if n == 1 else h, 0 if h == 1 else 1,
            self.lead.group(h), tiles,
        )  # fmt: skip
