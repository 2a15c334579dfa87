"""Attention for JAX on GPUs, by Pallas: the forward; the backward is in `backward.py`.

The functions have the interface of `kernels.xla.attention`. Any `Pair` can be traced into the
kernels. The softmax is online over tiles of keys, so memory is O(T_q + T_k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.pallas import backward as backward_kernels
from anyscore.kernels.pallas import launch
from anyscore.kernels.pallas.launch import run_kernel
from anyscore.kernels.pallas.panels import Layout, panels
from anyscore.kernels.pallas.tiles import Tiles, loop, sigmoid
from anyscore.kernels.xla import attention as xla
from anyscore.kernels.xla.call import FfiCall
from anyscore.modifiers.biases import LoweredBias
from anyscore.ops import Array, load, masked
from anyscore.score.pairs import TANH, Pair

_xp = load("jax")

INTERPRET = False
"""True runs the kernels in Pallas' interpreter, on any device, for tests."""


class StaticArgs(NamedTuple):
    """The arguments of a call that are not arrays; hashable.

    pair: the pair that `settings` names. targets: the platforms of lowering, the Pallas kernels'
    platform last: "cpu", "cuda", "tpu", or "interpret" for Pallas' interpreter. untried: whether
    the kernels may go ways that no GPU has run.
    """

    settings: Settings
    pair: Pair
    targets: tuple[str, ...]
    untried: bool = False


def problem() -> str | None:
    """Return why the kernels cannot be called, None if they can."""
    return launch.problem


@cache
def has_device() -> bool:
    """Return whether this machine's GPUs run the kernels: NVIDIA's, Ampere or later."""
    try:
        return all(float(x.compute_capability) >= 8 for x in jax.devices("cuda"))
    except RuntimeError:
        return False


def forward(x: Operands, s: StaticArgs) -> Results:
    """Return attention, as `kernels.xla.attention.forward` does; `packed` is not read."""
    return xla.forward(x._replace(packed=None), s.settings, _make(s))


def backward(x: Operands, s: StaticArgs, results: Results, upstream: Results) -> Operands:
    """Return gradients, as `kernels.xla.attention.backward` does; scores are computed again."""
    return xla.backward(x, s.settings, results._replace(scores=None), upstream, _make(s))


def _make(s: StaticArgs) -> xla.Make:
    """Return a function from the fields of an `FfiCall` to a `KernelCall`."""
    return partial(KernelCall, pair=s.pair, target=s.targets[-1], untried=s.untried)


@dataclass(frozen=True)
class KernelCall(FfiCall):
    """A call of the Pallas kernels, batched and partitioned over devices as an `FfiCall`.

    target: "cuda", "tpu" or "interpret". untried: as in `StaticArgs`.
    """

    pair: Pair
    target: str
    untried: bool

    def __call__(self, *operands: Array) -> list[Array]:
        given = dict(zip(self.operands, operands, strict=True))
        if "bias" in given and self.settings.bias_is_diagonal:
            return self._with_matrix(given)
        a, b, value = given["a"], given["b"], given.get("value")
        if value is None:  # one column of zeros, for an output that is dropped
            lead = (1,) * len(self.lead)
            given["value"] = jnp.zeros((*lead, b.shape[-2], 1), self.acc_dtype)
            if self.function == "backward":
                none = jnp.zeros((*lead, a.shape[-2], 1), self.acc_dtype)
                given |= {"output": none, "d_output": none}
        s = Layout(
            settings=self.settings,
            pair=self.pair,
            target=self.target,
            queries=a.shape[-2],
            keys=b.shape[-2],
            h=a.shape[-1],
            d_v=given["value"].shape[-1],
            masked=not given.keys().isdisjoint(("start", "stop", "mask")),
            acc_dtype=self.acc_dtype,
            by_exponentials=self.untried and self.pair == TANH and self.acc_dtype == "float32",
        )
        found = _KERNELS[self.function](s, given)
        return [masked.sum_to(_xp, found[name], shape) for name, shape in self.results]

    def _with_matrix(self, given: Mapping[str, Array]) -> list[Array]:
        """Call with a bias of diagonals as a matrix; JAX computes the matrix."""
        queries, keys = given["a"].shape[-2], given["b"].shape[-2]

        def matrix(diagonals: Array) -> Array:
            return LoweredBias(diagonals, True, False).matrix(_xp, queries, keys)

        bias, back = jax.vjp(matrix, given["bias"].astype(self.acc_dtype))
        settings = self.settings._replace(bias_is_diagonal=False)
        results = tuple(
            (name, bias.shape if name == "bias" else shape) for name, shape in self.results
        )
        call = replace(self, settings=settings, results=results)
        found = call(*(dict(given) | {"bias": bias}).values())
        names = [name for name, _ in self.results]
        return [back(x)[0] if name == "bias" else x for name, x in zip(names, found, strict=True)]


def _forward(s: Layout, operands: Mapping[str, Array]) -> dict[str, Array]:
    """Compute output (*lead, T_q, d_v), stats (*lead, 2, T_q) and scores (*lead, T_q, T_k)."""
    rows, width = s.row_tiles * s.rows, s.value_chunks * s.values
    results = {"output": (rows, width), "stats": (2, rows)}
    if s.settings.scores:
        results["scores"] = rows, s.column_tiles * s.columns
    grid = s.row_tiles, s.value_parts
    found = run_kernel(s, _forward_tile, grid, panels(s, operands), results)
    output, stats, *scores = found
    found = [output[..., : s.queries, : s.d_v], stats[..., : s.queries]]
    found += [x[..., : s.queries, : s.keys] for x in scores]
    shaped = (x.reshape(*s.settings.lead, *x.shape[2:]) for x in found)
    return dict(zip(results, shaped, strict=True))


def _forward_tile(s: Layout, refs: dict[str, Any]) -> None:
    """Write the output of a tile of queries, one part of its columns, stats and scores."""
    tiles, t, part = Tiles(s, refs), pl.program_id(1), pl.program_id(2)
    i = pl.multiple_of(t * s.rows, s.rows)
    chunks = [part * s.chunks_of_part + c for c in range(s.chunks_of_part)]

    def step(k: Any, carry: Any) -> Any:
        """Return the carry after tile k of keys.

        m (rows,) is the largest score so far, and `total` (rows,) the sum of e^(s − m). `o` holds
        the sums of e^(s − m) times the values, in chunks (rows, values).
        """
        m, total, o = carry
        j = pl.multiple_of(k * s.columns, s.columns)
        mask = tiles.mask(0, i, j)
        scores = jnp.where(mask, tiles.scores(0, i, j)[0], -math.inf)
        if "scores" in refs:
            keep(k, scores)
        if by_sigmoid:
            top, p, shrink = m, sigmoid(scores, shift), jnp.ones_like(m)
        else:
            top = jnp.maximum(m, scores.max(1))
            at = jnp.where(top == -math.inf, 0, top)
            p, shrink = jnp.exp(scores - at[:, None]), jnp.exp(m - at)
        z = p * tiles.dropout_mask(0, i, j) if s.settings.dropout else p
        new = (tiles.sum_of_rows(z, mask, 1, "value", 0, j, c) for c in chunks)
        o = tuple(x * shrink[:, None] + y for x, y in zip(o, new, strict=True))
        return top, total * shrink + p.sum(1), o

    def keep(k: Any, scores: Any) -> None:
        """Write the scores of tile k of keys."""

        @pl.when(part == 0)
        def _() -> None:
            j = pl.multiple_of(k * s.columns, s.columns)
            refs["scores"][0, tiles.queries(i), tiles.keys(j)] = scores

    def unattended(k: Any, _: None) -> None:
        keep(k, jnp.full((s.rows, s.columns), -math.inf, s.acc_dtype))

    m = jnp.full((s.rows,), -math.inf, s.acc_dtype)
    start = m, jnp.zeros_like(m), (jnp.zeros((s.rows, s.values), s.acc_dtype),) * len(chunks)
    low, high = tiles.take("low", 0, 0, t), tiles.take("high", 0, 0, t)
    by_sigmoid = bool(s.settings.normalizer)
    shift = tiles.shift(i, low, high) if by_sigmoid else m
    m, total, o = loop(high, step, start, low)
    if "scores" in refs:
        loop(jnp.minimum(low, s.column_tiles), unattended, None)
        loop(s.column_tiles, unattended, None, jnp.maximum(low, high))
    empty = shift == -math.inf if by_sigmoid else total == 0
    total = jnp.where(empty | by_sigmoid, 1, total)
    for c, x in zip(chunks, o, strict=True):
        refs["output"][0, tiles.queries(i), s.chunk(c)] = jnp.where(
            empty[:, None], 0, x / total[:, None]
        )

    @pl.when(part == 0)
    def _() -> None:
        refs["stats"][0, 0, tiles.queries(i)] = shift if by_sigmoid else m
        refs["stats"][0, 1, tiles.queries(i)] = jnp.log(total)


_KERNELS: dict[str, Callable[[Layout, Mapping[str, Array]], dict[str, Array]]] = {
    "forward": _forward,
    "backward": backward_kernels.backward,
}
