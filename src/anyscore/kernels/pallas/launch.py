"""One launch of a Pallas kernel over panels, which its body reads by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from anyscore.kernels.pallas.panels import NONFINITE, Layout, Panel, place
from anyscore.kernels.xla.call import Shape
from anyscore.ops import Array

problem: str | None = None
"""Why kernels cannot be launched, None if they can."""
_on_cuda: dict[str, Any] = {}
try:
    from jax.experimental.pallas import triton

    _on_cuda["compiler_params"] = triton.CompilerParams(num_warps=4, num_stages=1)
except (ImportError, AttributeError) as error:
    problem = f"Pallas cannot be loaded ({error}): it needs a newer JAX"

_SCALARS = (
    *("weight", "seed", "counter", "origin", "low", "high"),
    *("coefficients", "constants", "a_bounds", "b_bounds", *NONFINITE),
)
"""The operands that are read one number at a time; a TPU has separate memory for them."""


def run_kernel(
    s: Layout,
    body: Callable[[Layout, dict[str, Any]], None],
    grid: Shape,
    operands: Mapping[str, Panel],
    results: Mapping[str, Shape],
    shared: bool = False,
) -> list[Array]:
    """Run `body` for each problem and group and each index of the grid.

    body: takes the layout and its references by name, each (G or 1, own dimensions). results: the
    own dimensions of each. shared: run the body for all groups of a problem at once, which then
    have one result. Returns the results (M, G or 1, own dimensions) in the dtype of sums.
    """
    problems = math.prod(s.problems)
    groups = 1 if shared else s.settings.groups

    def spec(name: str, outer: Shape, size: int, own: Shape) -> pl.BlockSpec:
        def at(n: Any, *_: Any) -> tuple[Any, ...]:
            m, g = lax.div(n, np.int32(groups)), lax.rem(n, np.int32(groups))
            group = g if size > 1 and not shared else 0
            return (place(outer, s.problems, m), group, *(0 for _ in own))

        options: dict[str, Any] = {}
        if s.target == "tpu" and name in _SCALARS:
            from jax.experimental.pallas import tpu

            options["memory_space"] = tpu.SMEM
        return pl.BlockSpec((None, size if shared else 1, *own), at, **options)

    names = (*operands, *results)
    panels = [x.x for x in operands.values()]
    types = _on_devices(panels[0])
    arrays: list[Array] = pl.pallas_call(
        lambda *refs: body(s, dict(zip(names, refs, strict=True))),
        grid=(problems * groups, *grid),
        in_specs=[spec(n, x.outer, x.x.shape[1], x.x.shape[2:]) for n, x in operands.items()],
        out_specs=[spec(name, s.problems, groups, own) for name, own in results.items()],
        out_shape=[
            jax.ShapeDtypeStruct((problems, groups, *own), s.acc_dtype, **types)  # type: ignore[no-untyped-call]
            for own in results.values()
        ],
        interpret=s.target == "interpret",
        **(_on_cuda if s.target == "cuda" else {}),
    )(*panels)
    return arrays


def barrier(s: Layout) -> None:
    """Synchronise the threads of a program, so that each sees the others' writes."""
    if s.target == "cuda":
        triton.debug_barrier()


def reciprocal(s: Layout, x: Array) -> Array:
    """Return 1/x in float32; on NVIDIA GPUs one instruction, within one unit in the last place."""
    if s.target != "cuda":
        return 1 / x
    same = [jax.ShapeDtypeStruct(x.shape, x.dtype)]  # type: ignore[no-untyped-call]
    (found,) = triton.elementwise_inline_asm(
        "rcp.approx.ftz.f32 $0, $1;", args=[x], constraints="=f,f", pack=1, result_shape_dtypes=same
    )
    return found


def _on_devices(x: Array) -> dict[str, Any]:
    """Return the device arguments of a result's type, as in the type of x."""
    kind = jax.typeof(x)
    words = [name for name in ("manual_axis_type", "vma") if getattr(kind, name, None)]
    return {name: getattr(kind, name) for name in words[:1]}
