"""Calls as arguments of the Triton kernels: operands with strides, and panels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from anyscore.call.operands import Operands, Settings
from anyscore.kernels.triton import panels, scorers
from anyscore.kernels.triton import tiles as tile_kernels
from anyscore.kernels.triton.pairs import TANH, Functions
from anyscore.kernels.triton.scorers import Scorer
from anyscore.kernels.triton.scores import Panels, Weights
from anyscore.kernels.triton.targets import target_of
from anyscore.kernels.triton.tiles import (
    Biases,
    Dropout,
    Features,
    Mask,
    Operand,
    Rows,
    Sizes,
)
from anyscore.masks.lowered import LoweredMask
from anyscore.modifiers.dropout import last_dropped
from anyscore.ops import load
from anyscore.score.outer import FORMULAS

TILE: int = tile_kernels.TILE.value
BLOCK: int = panels.BLOCK.value
TOGETHER: int = panels.TOGETHER.value
"""Widths are padded to a multiple of this number."""
HALF = torch.bfloat16, torch.float16
WIDE_TILE = 128
"""The number of queries in a tile of products of 16-bit features, with WARPS warps."""
WARPS = 8
MOST_AT_ONCE = 128
"""The largest width of which a product reads all features in one step."""
PROGRAMS = 512
"""The number of programs that keeps a GPU busy."""
BAND_BYTES = 2**28
"""The most bytes of weights and gradients in a band; a band has at least LEAST_BAND keys."""
LEAST_BAND = 256

NO_DROPOUT = Dropout(None, None, 0, 1)
_NOTHING = Operand(None, 0, 0, 1, 0, 0)


def launch(kernel: Any, programs: int, *args: Any, **constant: Any) -> None:
    """Launch a kernel with fused multiply-adds, which counts of instructions assume."""
    kernel[(programs,)](*args, **constant, enable_fp_fusion=True)


def round_up(n: int, step: int) -> int:
    """Return the least multiple of step that is ≥ n."""
    return -(-n // step) * step


def tiles_of(n: int) -> int:
    """Return the number of tiles of n rows."""
    return -(-n // TILE)


@dataclass(frozen=True)
class Columns:
    """A width split into `blocks` of `count` columns, a power of 2, one block per program."""

    width: int
    dtype: torch.dtype

    @property
    def count(self) -> int:
        most = 256 // self.dtype.itemsize  # the capacity of registers
        return min(max(BLOCK, 1 << max(self.width - 1, 0).bit_length()), most)

    @property
    def blocks(self) -> int:
        return max(-(-self.width // self.count), 1)


class Inputs:
    """Operands and settings of a call, with two leading dimensions, n and h.

    Problem p has n, h = divmod(p, heads); `front` are the leading dimensions merged in n.
    """

    def __init__(self, x: Operands, s: Settings) -> None:
        self.x, self.s = x, s
        self.front, self.heads = tuple(s.lead[:-1]), s.lead[-1] if s.lead else 1
        self.problems = prod(s.lead)
        self.sizes = Sizes(self.heads, x.a.shape[-2], x.b.shape[-2])

    @cached_property
    def mask(self) -> Mask:
        """Return the lowered mask for kernels."""
        x = self.x
        start, stop = (
            y if y is None else self.operand(y, 1, of_rows=True) for y in (x.start, x.stop)
        )
        mask = x.mask if x.mask is None else self.operand(x.mask.view(torch.uint8), 2)
        return Mask(start, stop, mask)

    @cached_property
    def read(self) -> tuple[Operand | None, Operand | None]:
        """Return the queries that attend a key, and the attended keys, as bytes; None for all."""
        x = self.x
        if x.start is x.stop is x.mask is None:
            return None, None
        mask = LoweredMask(load("torch"), self.sizes.keys, x.start, x.stop, x.mask)
        queries, keys = (
            self.operand(y.view(torch.uint8), 1, of_rows=True) for y in mask.attending_attended
        )
        return queries, keys

    @cached_property
    def biases(self) -> Biases:
        """Return the biases for kernels."""
        keys, pairs = self.x.key_bias, self.x.bias
        return Biases(
            None if keys is None else self.operand(keys, 1),
            None if pairs is None else self._of_pairs(pairs),
        )

    def _of_pairs(self, bias: Tensor) -> Operand:
        if not self.s.bias_is_diagonal:
            return self.operand(bias, 2)
        x = self.operand(bias[..., self.sizes.queries - 1 :], 2)  # from the diagonal of query 0 on
        return x._replace(row=-x.column)

    @cached_property
    def dropout(self) -> Dropout:
        """Return dropout for kernels.

        Raises:
            ValueError: the call has edges and an origin.
        """
        seed, origin = self.x.seed, self.x.origin
        if origin is not None and self.x.rowptr is not None:
            raise ValueError("origin is for dropout without edges.")
        if seed is None:
            return NO_DROPOUT
        origin = None if origin is None else origin.contiguous()
        return Dropout(seed.reshape(1), origin, last_dropped(self.s.dropout), self.s.dropout_period)

    def two(self, x: Tensor, own: int) -> Tensor:
        """Return x (..., *own dimensions) as (n, h, *own dimensions); n and h are 1 or full.

        x is copied only if leading dimensions other than the last broadcast in part.
        """
        lead, tail = tuple(x.shape[: x.dim() - own]), tuple(x.shape[x.dim() - own :])
        x = x.reshape(*(1,) * (len(self.front) + 1 - len(lead)), *x.shape)
        front, heads = tuple(x.shape[: len(self.front)]), x.shape[len(self.front)]
        if front != self.front and prod(front) != 1:
            x, front = x.expand(*self.front, heads, *tail), self.front
        return x.reshape(prod(front), heads, *tail)

    def operand(self, x: Tensor, own: int, of_rows: bool = False) -> Operand:
        """Return x (..., *own dimensions) for kernels. of_rows: whether x has rows, no columns."""
        x = self.two(x, own)
        return operand(x, self.heads, of_rows)

    def of_problems(self, x: Tensor) -> Tensor:
        """Return x (n, h, *own dimensions) as (problems, *own dimensions)."""
        own = x.shape[2:]
        x = x.repeat_interleave(self.heads // x.shape[1], 1) if x.shape[1] != self.heads else x
        return x.expand(self.problems // self.heads, self.heads, *own).reshape(-1, *own)

    def shared(self, n: int, h: int) -> tuple[int, int, int]:
        """Return n, h and group of contiguous panels or rows of n · h problems."""
        return (0 if n == 1 else h), (0 if h == 1 else 1), max(self.heads // max(h, 1), 1)

    def rows(self, x: Tensor, dtype: torch.dtype) -> Rows:
        """Return the `Rows` of x (n, h, rows, columns), in the dtype of their products."""
        n, h, count, width = x.shape
        columns, tiles = Columns(width, dtype), round_up(tiles_of(count), 2)
        padded = columns.count * columns.blocks
        copy = x.new_empty((n * h, tiles * TILE, padded), dtype=dtype)
        nonfinite = x.new_empty((n * h, tiles), dtype=torch.int32)
        launch(
            panels.finite,
            tiles * n * h,
            operand(x, h),
            copy,
            nonfinite,
            h,
            count,
            width,
            tiles,
            padded,
        )
        return Rows(copy, nonfinite, *self.shared(n, h), tiles, padded)

    def sum_to(self, x: Tensor, shape: torch.Size) -> Tensor:
        """Return gradients (problems, *own dimensions) summed to the shape of an input."""
        own = x.dim() - 1
        tail, lead = shape[len(shape) - own :], tuple(shape[: len(shape) - own])
        lead = (*(1,) * (len(self.front) + 1 - len(lead)), *lead)
        x = x.reshape(*self.front, lead[-1], self.heads // lead[-1], *tail).sum(len(self.front) + 1)
        axes = [i for i, (n, m) in enumerate(zip(lead, self.front, strict=False)) if n != m]
        return (x.sum(axes) if axes else x).reshape(shape)


def _is_uniform(weight: Tensor | None) -> bool:
    """Return whether all features are known to have one weight, without a look at the numbers."""
    return weight is None or (weight.shape[-1] > 0 and weight.stride(-1) == 0)


def _two(x: Tensor) -> tuple[int, int]:
    return x.shape[0], x.shape[1]


def operand(x: Tensor, heads: int, of_rows: bool = False) -> Operand:
    """Return x (n, h, ...) for kernels of problems (n, heads); dimensions of 1 broadcast."""
    stride = [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
    if x.dim() == 3:
        stride = [*stride, 0] if of_rows else [*stride[:2], 0, stride[2]]
    return Operand(x, stride[0], stride[1], max(heads // max(x.shape[1], 1), 1), *stride[2:])


class PackedCall:
    """The scorer, features and weights of inputs, for forward and backward.

    inputs: with scale and weight of `exactly`. acc_dtype: the accumulation dtype, float32 or
    float64. a (n, h, T_q, width), b (n, h, T_k, width): the features. narrow: whether tensor cores
    multiply features of 16 bits. wide: whether their tiles may have 128 queries. options: of
    launches of kernels with tiles of `tile` queries.
    """

    def __init__(self, pair: Functions, inputs: Inputs, acc_dtype: torch.dtype) -> None:
        a, b, weight = inputs.x.a, inputs.x.b, inputs.x.weight
        if pair.is_product and weight is not None:
            a, weight = a.to(acc_dtype) * weight[..., None, :], None
        self.inputs, self.acc_dtype, self.scale = inputs, acc_dtype, inputs.s.scale
        self.a, self.b = inputs.two(a, 2), inputs.two(b, 2)
        self.weight = None if weight is None else inputs.two(weight, 1)
        self.width = a.shape[-1]
        self.padded = round_up(max(self.width, 1), BLOCK)
        half = a.dtype == b.dtype and a.dtype in HALF and acc_dtype == torch.float32
        steep = inputs.s.outer in FORMULAS  # of any slope
        self.by_norms = pair.by_norms and half and not steep and _is_uniform(self.weight)
        self.by_products = pair.is_product or self.by_norms
        self.narrow = self.by_products and half
        self.target = target_of(a)
        self.precision = self.target.precision if acc_dtype == torch.float32 else "ieee"
        self.exponentials = pair is TANH and acc_dtype == torch.float32
        self.folded = (
            pair.steps is not None and not pair.steps.difference and acc_dtype == torch.float32
        )
        queries, keys = a.shape[-2], b.shape[-2]
        self.wide = self.narrow and pair.wide
        self.tile = WIDE_TILE if self.wide and queries > TILE else TILE
        # Gradients need the sums of dS, and leave out the weight, which is multiplied later.
        self.by_sums = self.by_norms or pair.steps is not None
        self.unweighted = self.weight is not None and self.by_sums
        self.options = {"num_warps": WARPS} if self.tile == WIDE_TILE else {}
        self.query_tiles, self.key_tiles = -(-queries // self.tile), tiles_of(keys)
        self.scorer = self._scorer(pair)
        self.weights = self._weights()
        self.of_queries: Panels | Features
        self.of_keys: Panels | Features
        if self.by_products:
            self.of_queries, self.of_keys = self._features(self.a), self._features(self.b)
            return
        of_a, of_b = _two(self.a), _two(self.b)
        if self.exponentials:
            of_a = prod(inputs.front), inputs.heads
            self.shift = self._shift()
        if self.weight is not None and (self.exponentials or self.folded):
            n, h = _two(self.weight)
            of_a, of_b = (max(of_a[0], n), max(of_a[1], h)), (max(of_b[0], n), max(of_b[1], h))
        self.of_queries = self._panels(self.a, *of_a, of_query=True)
        self.of_keys = self._panels(self.b, *of_b, of_query=False)

    def _scorer(self, pair: Functions) -> Scorer:
        make = scorers.product if pair.is_product else scorers.elementwise
        if self.exponentials:
            make = scorers.tanh_by_exponentials
        elif self.by_norms:
            make = scorers.squared_by_norms
        elif self.folded:
            make = scorers.folded
        depth = BLOCK
        if self.narrow:
            depth = max(1 << max(self.width - 1, 0).bit_length(), BLOCK)
            depth = depth if depth <= MOST_AT_ONCE else MOST_AT_ONCE // 2
        return make(pair).of_settings(
            self.inputs.s, width=self.width, padded=self.padded, narrow=self.narrow, depth=depth,
            reciprocal=self.target.reciprocal, precision=self.precision, queries=self.tile,
            slots=round_up(self.width + 2 * TOGETHER, BLOCK),
        )  # fmt: skip

    def _features(self, x: Tensor) -> Features:
        """Return the `Features` of x (n, h, rows, width), with squared norms if they are needed."""
        n, h, rows, _ = x.shape
        source, norms = operand(x, self.inputs.heads), None
        if self.by_norms:
            norms = x.new_empty((n * h, rows), dtype=torch.float32)
            launch(panels.norms, tiles_of(rows) * n * h, operand(x, h), norms, h, rows, self.width)
        return Features(*source, norms, 0 if n == 1 else h, 0 if h == 1 else 1)

    def band(self, pair_bytes: int) -> tuple[int, int]:
        """Return the numbers of problems and of keys in a band of the backward.

        pair_bytes: of a query and a key. A band has all problems if they may share a bias.
        """
        sizes, problems = self.inputs.sizes, self.inputs.problems
        queries, pairs = max(sizes.queries, 1), BAND_BYTES // pair_bytes
        if self.inputs.x.bias is None:
            busy = -(-PROGRAMS // self.query_tiles)
            problems = min(problems, max(busy, pairs // (queries * self.key_tiles * TILE)))
        most = max(pairs // (problems * queries) // TILE * TILE, LEAST_BAND)
        return problems, min(self.key_tiles * TILE, most)

    def _weights(self) -> Weights:
        """Return the `Weights`: of `coefficients`, or one number of each problem with norms."""
        w = self.weight
        if w is None and not self.exponentials and not self.folded:
            return Weights(None, None, 0, 0, 1)
        if w is not None and self.by_norms:
            return Weights(w[..., 0].contiguous(), None, *self.inputs.shared(*w.shape[:2]))
        n, h = (1, 1) if w is None else w.shape[:2]
        table = self.a.new_empty((n * h, 4, self.padded), dtype=self.acc_dtype)
        constants = self.a.new_empty((n * h, 2), dtype=self.acc_dtype)
        launch(
            panels.coefficients, n * h, _NOTHING if w is None else operand(w, h), table,
            constants, h, self.width, self.padded, self.scale,
        )  # fmt: skip
        if self.folded:
            self.slots = self._slots(w, n, h)
            constants = self.slots.counts
        return Weights(table, constants, *self.inputs.shared(n, h))

    def _slots(self, w: Tensor | None, n: int, h: int) -> panels.Slots:
        """Return the `Slots` of n · h weights w, which `order_by_sign` writes."""
        slots = self.scorer.slots
        order = self.a.new_full((n * h, slots), -1, dtype=torch.int32)
        factors = self.a.new_zeros((n * h, slots), dtype=torch.float32)
        counts = self.a.new_empty((n * h, 2), dtype=torch.int32)
        launch(
            panels.order_by_sign, n * h, _NOTHING if w is None else operand(w, h), order, factors,
            counts, h, self.width, slots, self.scale,
        )  # fmt: skip
        return panels.Slots(order, factors, counts, *self.inputs.shared(n, h))

    def _shift(self) -> Tensor:
        """Return the middle of each feature of the keys, (n, h, padded)."""
        n, h, keys, _ = self.b.shape
        shift = self.b.new_empty((n, h, self.padded), dtype=torch.float32)
        launch(
            panels.shifts,
            self.padded // BLOCK * n * h,
            operand(self.b, h),
            shift,
            h,
            keys,
            self.width,
            self.padded,
        )
        return shift

    def _panels(self, x: Tensor, n: int, h: int, of_query: bool) -> Panels:
        """Return panels of x for n · h problems."""
        rows = x.shape[2]
        tiles, source = tiles_of(rows), operand(x, h)
        features = x.new_empty((n * h, tiles, self.padded, TILE), dtype=self.acc_dtype)
        mapped = bounds = sums = None
        sizes = h, rows, self.width, tiles, self.padded
        launch(panels.fill, tiles * n * h, source, features, *sizes)
        w = self.weights
        if self.exponentials:
            mapped = torch.empty_like(features)
            bounds = x.new_empty((n * h, tiles, 2), dtype=torch.float32)
            stride = 4 * self.padded
            table = Operand(w.table, w.n * stride, w.h * stride, w.group, 0, 0)
            launch(
                panels.exponentials, tiles * n * h, source, mapped, bounds, table,
                operand(self.shift, h), *sizes, OF_QUERY=of_query,
            )  # fmt: skip
        if self.folded:
            slots = self.scorer.slots
            mapped = features.new_empty((n * h, tiles, slots, TILE))
            sums = features.new_empty((n * h, tiles, TILE))
            launch(
                panels.fold, tiles * n * h, source, mapped, sums, self.slots, h, rows, tiles, slots
            )
        return Panels(features, mapped, bounds, sums, *self.inputs.shared(n, h), tiles)
