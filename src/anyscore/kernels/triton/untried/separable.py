"""Attention whose tanh scores are products of longer rows, on PyTorch tensors in half precision.

`rows` chooses on the device how many columns each problem needs, and leaves some problems to the
exact kernels. No number is read back, so CUDA graphs replay with other numbers.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.triton import attention, scorers
from anyscore.kernels.triton.attention import Gradients, Upstream
from anyscore.kernels.triton.call import (
    BAND_BYTES,
    BLOCK,
    LEAST_BAND,
    Columns,
    Inputs,
    launch,
    operand,
    round_up,
    tiles_of,
)
from anyscore.kernels.triton.pairs import PRODUCT, Functions
from anyscore.kernels.triton.targets import capability_of
from anyscore.kernels.triton.tiles import Biases, Rows
from anyscore.kernels.triton.untried import nested, nested_backward, rows
from anyscore.kernels.triton.untried import tables as of_levels
from anyscore.kernels.triton.untried.rows import Choice, Factors
from anyscore.kernels.triton.untried.tables import Tables

MOST_COLUMNS = 20
"""The most columns per feature, in the mean over a problem's features."""
ALIGNED = 128
"""Numbers of rows are padded to a multiple of this number, the largest tile."""
CHUNK: int = rows.CHUNK.value
ROWS: int = rows.ROWS.value


def forward(pair: Functions, x: Operands, s: Settings, acc_dtype: torch.dtype) -> Results:
    """Return the results, in acc_dtype. pair: the exact pair, tanh."""
    return attention.forward(pair, x, s, acc_dtype, approximation=_by_rows)


def backward(
    pair: Functions, x: Operands, s: Settings, results: Results, upstream: Results
) -> Operands:
    """Return the gradients of a, b, weight, key_bias, value and bias; None for absent ones.

    The exact kernels compute all of them for few queries, and for a bias of pairs. They do so for
    float16 too, whose rounding is smaller than the errors of slopes.
    """
    is_fine = torch.bfloat16 not in (x.a.dtype, x.b.dtype)
    exact = is_fine or x.bias is not None or x.a.shape[-2] <= attention.DECODE_QUERIES
    by_rows = None if exact else _gradients_by_rows
    return attention.backward(pair, x, s, results, upstream, approximation=by_rows)


@cache
def _tables(device: torch.device) -> Tables:
    """Return the tables on a device."""
    made = (torch.tensor(x, dtype=torch.float32, device=device) for x in of_levels.tables())
    return Tables(*(x.contiguous() for x in made))


def _by_rows(inputs: Inputs, value: Rows, results: Results) -> Tensor:
    """Write the results of problems whose rows are exact enough. Return chunks (problems,)."""
    chosen = Chosen(inputs)
    x, s, sizes = inputs.x, inputs.s, inputs.sizes
    columns = Columns(results.output.shape[-1], value.data.dtype)
    scorer = scorers.product(PRODUCT).of_settings(s)
    tile = _tile(capability_of(x.a.device))
    for first in range(0, inputs.problems, chosen.band):
        of_queries, of_keys = chosen.factors(first)
        v = of_keys.bias.view(-1, inputs.heads, of_keys.padded)
        programs = chosen.in_band(first) * (of_queries.padded // tile["QUERIES"]) * columns.blocks
        launch(
            nested.nested, programs, of_queries, of_keys, chosen.choice,
            Biases(operand(v, inputs.heads), inputs.biases.pairs), value, inputs.mask,
            inputs.dropout, results.output, results.stats, sizes, first, chosen.most, s.scale,
            columns.blocks, SCORER=scorer, D_V=columns.width, COLUMNS=columns.count, **tile,
        )  # fmt: skip
    chunks: Tensor = chosen.choice.chunks
    return chunks


def _gradients_by_rows(inputs: Inputs, given: Upstream, made: Gradients) -> Tensor:
    """Write the gradients of the problems that `_by_rows` computed. Return chunks (problems,)."""
    chosen = Chosen(inputs, trained=True)
    sizes, new, d_v = inputs.sizes, inputs.x.a.new_empty, made.value.shape[-1]
    unit = new(inputs.problems, dtype=torch.float32)
    launch(
        nested_backward.measure, inputs.problems, inputs.operand(inputs.x.value, 2),
        operand(given.d_output, inputs.heads), given.delta, chosen.attending, chosen.attended,
        chosen.choice.chunks, unit, sizes, d_v, COLUMNS=Columns(d_v, torch.float32).count,
    )  # fmt: skip
    of_keys = torch.zeros_like(made.weight[:, :1]).expand(-1, tiles_of(sizes.keys), -1).clone()
    for first in range(0, inputs.problems, chosen.band):
        _gradients_of_band(chosen, first, given, made, unit, of_keys)
    made.weight[:, 0] += of_keys.sum(1)
    chunks: Tensor = chosen.choice.chunks
    return chunks


class _Band(NamedTuple):
    """P and dS (problems, padded T_q, size) of problems from `first` on, and keys from `key` on."""

    p: Tensor
    ds: Tensor
    first: int
    problems: int
    key: int
    size: int


def _gradients_of_band(
    chosen: Chosen, first: int, given: Upstream, made: Gradients, unit: Tensor, of_keys: Tensor
) -> None:
    """Write the gradients of the band from problem `first` on; of_keys: parts of d_weight."""
    inputs, choice, most = chosen.inputs, chosen.choice, chosen.most
    s, sizes, new = inputs.s, inputs.sizes, inputs.x.a.new_empty
    (queries, keys), count = chosen.lengths, chosen.in_band(first)
    f, g = chosen.factors(first)
    d_f, d_g = (new((count, n, most), dtype=torch.float32) for n in (queries, keys))
    size = min(keys, max(BAND_BYTES // (4 * count * queries) // ALIGNED * ALIGNED, LEAST_BAND))
    p = new((count, queries, size), dtype=given.values.data.dtype)
    ds = new((count, queries, size), dtype=torch.float16)
    scorer = scorers.product(PRODUCT).of_settings(s)
    columns = Columns(made.value.shape[-1], p.dtype)
    v = operand(g.bias.view(-1, inputs.heads, keys), inputs.heads)
    d_outputs = given.d_outputs
    for key in range(0, keys, size):
        band = _Band(p, ds, first, count, key, min(size, keys - key))
        launch(
            nested_backward.row_gradients, count * (queries // 128) * (band.size // 64), f, g,
            choice, Biases(v, None), inputs.mask, inputs.dropout, given.stats, given.values,
            d_outputs, given.delta, unit, p, ds, sizes, first, key, band.size, most, s.scale,
            SCORER=scorer, DEPTH=min(columns.count, 64), QUERIES=128, KEYS=64, num_warps=8,
        )  # fmt: skip
        _products(chosen, band, ds, g.data, d_f, ALIGNED, of_query=True)
        _products(chosen, band, ds, f.data, d_g, ALIGNED, of_query=False)
        if columns.width:
            _products(chosen, band, p, d_outputs.data, made.value, columns.count, of_query=False)
    for side, of_query in enumerate((True, False)):
        launch(
            rows.slopes, count * tiles_of(chosen.counts[side]), (chosen.a, chosen.b)[side],
            chosen.weight, chosen.tables, choice, unit, (d_f, d_g)[side], (made.a, made.b)[side],
            made.weight if of_query else of_keys, made.key_bias, first, chosen.counts[side],
            chosen.lengths[side], chosen.width, chosen.padded, most, inputs.heads, s.scale,
            OF_QUERY=of_query,
        )  # fmt: skip


def _products(
    chosen: Chosen, band: _Band, stored: Tensor, data: Tensor, target: Tensor, columns: int,
    of_query: bool,
) -> None:  # fmt: skip
    """Write the products of stored P or dS, transposed unless of_query, with data, to target.

    Products of dS are sums over the columns of rows, and add up over bands of keys.
    """
    queries, width = chosen.lengths[0], target.shape[-1]
    tiles = (queries if of_query else band.size) // ALIGNED
    launch(
        nested_backward.band_products, band.problems * tiles * -(-width // columns), stored, data,
        target, chosen.choice.chunks, band.first, queries, band.size, data.shape[1], data.shape[2],
        chosen.counts[0], band.key if of_query else 0, target.shape[1],
        0 if of_query else band.key, width, OF_QUERY=of_query, IS_ROWS=stored is band.ds,
        ADD=of_query and band.key > 0, ROWS=ALIGNED, COLUMNS=columns, num_warps=8,
    )  # fmt: skip


def _tile(capability: tuple[int, int]) -> dict[str, int]:
    """Return the constants of a tile: Hopper has the most shared memory."""
    keys = 128 if capability[0] == 9 else 64
    return {"QUERIES": 128, "KEYS": keys, "num_warps": 8, "num_stages": 3}


class Chosen:
    """The choice of columns for the problems of a call, and the rows of a band of problems.

    trained: whether rows are for a backward. band: the number of problems whose rows are made at a
    time, within `BAND_BYTES`. most: the columns of a row.
    """

    def __init__(self, inputs: Inputs, trained: bool = False) -> None:
        x, sizes = inputs.x, inputs.sizes
        self.inputs, self.width = inputs, x.a.shape[-1]
        self.padded = round_up(max(self.width, 1), BLOCK)
        self.trained, self.allowed = trained, MOST_COLUMNS * self.width
        most = 2 * of_levels.PAIRS * self.width + 1 if trained else self.allowed
        self.most = round_up(max(most, 1), ALIGNED)
        self.counts = sizes.queries, sizes.keys
        queries, keys = self.lengths = tuple(round_up(n, ALIGNED) for n in self.counts)
        bytes_of_rows = (6 if trained else 2) * self.most * (queries + keys)
        bytes_of_pairs = 4 * queries * keys if trained else 0
        self.band = max(BAND_BYTES // (bytes_of_rows + bytes_of_pairs), 1)
        self.a, self.b = inputs.operand(x.a, 2), inputs.operand(x.b, 2)
        self.weight = None if x.weight is None else inputs.operand(x.weight, 1)
        self.key_bias = inputs.biases.keys
        self.attending, self.attended = inputs.read
        self.tables = _tables(x.a.device)
        self.choice = self._choose()

    def in_band(self, first: int) -> int:
        """Return the number of problems in the band from problem `first` on."""
        return min(self.band, self.inputs.problems - first)

    def _choose(self) -> Choice:
        problems, new = self.inputs.problems, self.inputs.x.a.new_empty
        floats, integers = (
            {"size": (problems, self.padded), "dtype": dtype}
            for dtype in (torch.float32, torch.int32)
        )
        choice = Choice(
            new(**floats), new(**floats), new(**integers), new(**integers), new(**integers),
            new((problems, self.most), dtype=torch.int32),
            *(new(problems, dtype=torch.int32) for _ in range(2)),
            *(new(problems, dtype=torch.float32) for _ in range(2)),
        )  # fmt: skip
        launch(
            rows.stats, problems * (self.padded // BLOCK), self.a, self.b, self.attending,
            self.attended, choice, self.inputs.sizes, self.width, self.padded,
        )  # fmt: skip
        dtypes = self.inputs.x.a.dtype, self.inputs.x.b.dtype
        noise = self.tables.noise[0 if torch.bfloat16 in dtypes else 1]
        launch(
            rows.choose, problems, self.tables, noise, self.weight, choice, self.inputs.heads,
            self.width, self.padded, self.allowed, self.most, TRAINED=self.trained,
        )  # fmt: skip
        return choice

    def factors(self, first: int) -> tuple[Factors, Factors]:
        """Return the rows of queries and of keys, of the band from problem `first` on."""
        return self._factors(first, of_query=True), self._factors(first, of_query=False)

    def _factors(self, first: int, of_query: bool) -> Factors:
        side = 0 if of_query else 1
        count, length = self.counts[side], self.lengths[side]
        new, problems = self.inputs.x.a.new_empty, self.in_band(first)
        made = Factors(
            new((problems, length, self.most), dtype=torch.float16),
            new((self.inputs.problems, length), dtype=torch.float32),
            length,
        )
        launch(
            rows.factors, problems * (length // ROWS), (self.a, self.b)[side],
            (self.attending, self.attended)[side], self.weight,
            None if of_query else self.key_bias, self.tables, self.choice, made, first, count,
            self.width, self.padded, self.most, self.inputs.heads, self.inputs.s.scale,
            OF_QUERY=of_query, num_warps=8,
        )  # fmt: skip
        return made
