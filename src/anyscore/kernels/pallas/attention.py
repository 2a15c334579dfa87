"""Attention for JAX on GPUs, by Pallas: forward and weights; the backward is in `pallas_backward`.

The functions are those of `kernels.xla`, with operands named and shaped alike; the pair is any
`Pair`, traced into the kernels. Softmax is online over tiles of keys, so memory is O(T_q + T_k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from anyscore.kernels.pallas import backward as pallas_backward
from anyscore.kernels.pallas import launch as pallas_call
from anyscore.kernels.pallas.launch import run_kernel
from anyscore.kernels.pallas.panels import OF_KEYS, Layout, Shape, panels
from anyscore.kernels.pallas.tiles import Tiles, loop
from anyscore.kernels.xla.devices import Call, run
from anyscore.ops import Array, load, masked

_xp = load("jax")

INTERPRET = False
"""Whether kernels run in Pallas' interpreter, on whatever device there is: for tests."""


def problem() -> str | None:
    """Why the kernels cannot be called, None if they can."""
    return pallas_call.problem


@cache
def has_device() -> bool:
    """Whether the GPUs here are such as they run on: NVIDIA's, Ampere or later."""
    try:
        return all(float(x.compute_capability) >= 8 for x in jax.devices("cuda"))
    except RuntimeError:
        return False


def forward(operands: Mapping[str, Array], lead: Shape, **told: Any) -> list[Array]:
    """Output, in the dtype of sums, and log-sum-exp."""
    rows = (*lead, operands["a"].shape[-2])
    results = {"output": (*rows, operands["value"].shape[-1]), "lse": rows}
    return _call("forward", operands, lead, results, told)


def backward(operands: Mapping[str, Array], lead: Shape, **told: Any) -> dict[str, Array]:
    """Gradients of a, b, weight, key_bias and value, those that are given, in the dtype of sums."""
    names = [x for x in ("a", "b", "weight", "key_bias", "value") if x in operands]
    results = {name: operands[name].shape for name in names}
    return dict(zip(names, _call("backward", operands, lead, results, told), strict=True))


def weights(operands: Mapping[str, Array], lead: Shape, **told: Any) -> Array:
    """exp(s − lse), 0 where masked, (*lead, T_q, T_k) in the dtype of sums."""
    shape = (*operands["lse"].shape, operands["b"].shape[-2])
    return _call("weights", operands, lead, {"weights": shape}, told)[0]


@dataclass(frozen=True)
class KernelCall(Call):
    """A call of these kernels, batched and spread over devices as those of XLA are."""

    def __call__(self, *operands: Array) -> list[Array]:
        told = dict(self.told)
        named = dict(zip(told.pop("names").split(), operands, strict=True))
        a, b = named["a"], named["b"]
        value: Any = named.get("value", b)
        s = Layout(
            lead=self.lead,
            groups=self.groups,
            queries=a.shape[-2],
            keys=b.shape[-2],
            h=a.shape[-1],
            d_v=value.shape[-1],
            names=frozenset(named),
            sums=str(self.results[0][1]),
            **told,
        )
        found = _KERNELS[self.target](s, named)
        return [masked.sum_to(_xp, x, to) for x, (to, _) in zip(found, self.results, strict=True)]


def _call(
    target: str,
    operands: Mapping[str, Array],
    lead: Shape,
    results: Mapping[str, Shape],
    told: Mapping[str, Any],
) -> list[Array]:
    operands = {name: x for name, x in operands.items() if name != "packed"}
    wide = any(x.dtype == np.float64 for x in operands.values())
    sums = np.dtype("float64" if wide else "float32")
    told = {"dropout": 0.0, "target": "cuda", "names": " ".join(operands), **told}
    groups = told.pop("groups")
    call = KernelCall(
        target,
        tuple(sorted(told.items())),
        lead,
        groups,
        tuple((shape, sums) for shape in results.values()),
        tuple(name in OF_KEYS for name in operands),
        tuple(name in OF_KEYS for name in results),
    )
    return run(call, *operands.values())


def _forward(s: Layout, operands: Mapping[str, Array]) -> list[Array]:
    rows, width = s.row_tiles * s.rows, s.value_chunks * s.values
    results = {"output": (rows, width), "lse": (1, rows)}
    grid = s.row_tiles, s.value_parts
    output, lse = run_kernel(s, _forward_tile, grid, panels(s, operands), results)
    output, lse = output[..., : s.queries, : s.d_v], lse[..., 0, : s.queries]
    return [output.reshape(*s.lead, *output.shape[2:]), lse.reshape(*s.lead, s.queries)]


def _forward_tile(s: Layout, refs: dict[str, Any]) -> None:
    """The output of a tile of queries, in one part of its columns; and their log-sum-exp."""
    tiles, t, part = Tiles(s, refs), pl.program_id(1), pl.program_id(2)
    i = pl.multiple_of(t * s.rows, s.rows)
    chunks = [part * s.chunks_of_part + c for c in range(s.chunks_of_part)]

    def step(k: Any, carry: Any) -> Any:
        """m (rows,), the largest score so far, and two sums of e^(s − m): total (rows,), and o,
        that with the values, each chunk of it (rows, values).
        """
        m, total, o = carry
        j = pl.multiple_of(k * s.columns, s.columns)
        keep = tiles.attended(0, i, j)
        scores = jnp.where(keep, tiles.scores(0, i, j), -math.inf)
        top = jnp.maximum(m, scores.max(1))
        at = jnp.where(top == -math.inf, 0, top)
        p, shrink = jnp.exp(scores - at[:, None]), jnp.exp(m - at)
        z = p * tiles.kept(0, i, j) if s.dropout else p
        new = (tiles.sum_of_rows(z, keep, 1, "value", 0, j, c) for c in chunks)
        o = tuple(x * shrink[:, None] + y for x, y in zip(o, new, strict=True))
        return top, total * shrink + p.sum(1), o

    m = jnp.full((s.rows,), -math.inf, s.sums)
    start = m, jnp.zeros_like(m), (jnp.zeros((s.rows, s.values), s.sums),) * len(chunks)
    low, high = tiles.take("low", 0, 0, t), tiles.take("high", 0, 0, t)
    m, total, o = loop(high, step, start, low)
    empty = total == 0
    total = jnp.where(empty, 1, total)
    for c, x in zip(chunks, o, strict=True):
        refs["output"][0, tiles.queries(i), s.chunk(c)] = jnp.where(
            empty[:, None], 0, x / total[:, None]
        )

    @pl.when(part == 0)
    def _() -> None:
        refs["lse"][0, 0, tiles.queries(i)] = jnp.where(empty, -math.inf, m + jnp.log(total))


def _weights(s: Layout, operands: Mapping[str, Array]) -> list[Array]:
    results = {"weights": (s.row_tiles * s.rows, s.column_tiles * s.columns)}
    grid = s.row_tiles, s.column_tiles
    (found,) = run_kernel(s, _weights_tile, grid, panels(s, operands), results)
    found = found[..., : s.queries, : s.keys]
    return [found.reshape(*s.lead, s.queries, s.keys)]


def _weights_tile(s: Layout, refs: dict[str, Any]) -> None:
    """One tile of the weights."""
    tiles = Tiles(s, refs)
    i, j = (pl.multiple_of(pl.program_id(1 + x) * n, n) for x, n in enumerate((s.rows, s.columns)))
    refs["weights"][0, tiles.queries(i), tiles.keys(j)] = pallas_backward.weights(tiles, 0, i, j)[0]


_KERNELS: dict[str, Callable[[Layout, Mapping[str, Array]], list[Array]]] = {
    "forward": _forward,
    "backward": pallas_backward.backward,
    "weights": _weights,
}
