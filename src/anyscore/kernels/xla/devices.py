"""XLA calls batched by vmap, and partitioned over devices by leading dimensions.

A call has operands and results (*lead or 1, ...): a leading dimension is either the call's or
broadcast. With grouped heads the last one is divided by `groups` in the operands of keys and in
their gradients. Each device computes its part of the leading dimensions, without gathering.
Gradients of broadcast operands are summed over devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from anyscore.call.operands import GRAPH_OPERANDS, WITH_KEY_HEADS
from anyscore.kernels.xla.call import FfiCall, Shape
from anyscore.ops import Array


def run(call: FfiCall, *operands: Array) -> list[Array]:
    """Run a call on its operands: alone, batched by vmap, or partitioned over devices."""
    if any(varying(x) for x in operands):  # inside shard_map each device has its part
        spread: Any = call
    elif any(explicit_mesh(x) for x in operands):
        spread = partial(_spread_as_typed, call)
    else:
        spread = partial(_spread, call)
    batchable = custom_vmap(lambda *operands: spread(*operands))

    @batchable.def_vmap
    def batch(n: int, batched: Sequence[bool], *operands: Array) -> tuple[list[Array], list[bool]]:
        moving = {name for name, some in zip(call.operands, batched, strict=True) if some}
        if moving & GRAPH_OPERANDS:
            found = _one_by_one(call, batched, operands)
            return found, [True] * len(found)
        given = [x if some else x[None] for x, some in zip(operands, batched, strict=True)]
        shapes = [(n, *shape) for _, shape in call.results]  # of the whole batch
        return run(call.resized((n, *call.lead), shapes), *given), [True] * len(shapes)

    results: list[Array] = batchable(*operands)
    return results


def _one_by_one(call: FfiCall, batched: Sequence[bool], operands: Sequence[Array]) -> list[Array]:
    """Run one call for each graph in a batch of vmap."""
    moving = [x for x, some in zip(operands, batched, strict=True) if some]

    def of_one(moving: list[Array]) -> list[Array]:
        each = iter(moving)
        return run(call, *(next(each) if s else x for x, s in zip(operands, batched, strict=True)))

    found: list[Array] = jax.lax.map(of_one, moving)
    return found


def varying(x: Array) -> frozenset[Any]:
    """Return the mesh axes along which x differs between devices, by shard_map's types."""
    kind = jax.typeof(x)
    manual = getattr(kind, "manual_axis_type", None)
    return getattr(kind, "vma", None) or getattr(manual, "varying", None) or frozenset()


def explicit_mesh(x: Array) -> Any:
    """Return the mesh in the type of x; None if types have no explicit sharding."""
    mesh = getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None)
    kinds = () if mesh is None or mesh.empty else mesh.axis_types
    return mesh if any("explicit" in str(kind).lower() for kind in kinds) else None


def _spread_as_typed(call: FfiCall, *operands: Array) -> list[Array]:
    """Run a call partitioned over the devices in the types of its operands."""
    mesh = next(mesh for mesh in map(explicit_mesh, operands) if mesh)
    types = [jax.typeof(x) for x in operands]
    compute, of_operands, of_results = _partitioned(call, mesh, types, types)
    given = map(jax.sharding.reshard, operands, of_operands)
    specs = tuple(to.spec for to in of_operands), [to.spec for to in of_results]
    mapped = jax.shard_map(
        compute, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False
    )
    results: list[Array] = mapped(*given)
    return results


@partial(custom_partitioning, static_argnums=(0,))
def _spread(call: FfiCall, *operands: Array) -> list[Array]:
    return call(*operands)


def _rule(call: FfiCall, mesh: Any, operands: Any, results: Any) -> tuple[str, dict[str, int]]:
    """Return the Shardy rule of dimensions that are partitioned together, and sizes of factors."""
    fresh = iter(range(1000))

    def dimensions(name: str, shape: Shape) -> str:
        words = []
        for axis, n in enumerate(shape):
            last = axis == len(call.lead) - 1
            whole = axis < len(call.lead) and n != 1
            if whole and last and call.settings.groups > 1:
                words.append("heads" if name in WITH_KEY_HEADS else "(heads groups)")
            else:
                words.append(f"lead_{axis}" if whole else f"own_{next(fresh)}")
        return " ".join(words)

    sides = (call.operands, operands), ([name for name, _ in call.results], results)
    rule = " -> ".join(
        ", ".join(dimensions(name, tuple(x.shape)) for name, x in zip(names, types, strict=True))
        for names, types in sides
    )
    sizes, groups = {}, call.settings.groups
    if "groups" in rule:
        sizes = {"groups": groups}
        if "heads" not in rule.replace("(heads", ""):  # no dimension consists of heads alone
            sizes["heads"] = call.lead[-1] // groups
    return rule, sizes


def _infer(call: FfiCall, mesh: Any, operands: Any, results: Any) -> list[NamedSharding]:
    lead = _lead(call, mesh, operands)
    return [_sharding(mesh, lead, shape) for _, shape in call.results]


def _partition(call: FfiCall, mesh: Any, operands: Any, results: Any) -> Any:
    spread = [*results, *operands]
    compute, of_operands, of_results = _partitioned(call, mesh, operands, spread)
    return mesh, compute, of_results, tuple(of_operands)


def _partitioned(call: FfiCall, mesh: Any, operands: Any, spread: Sequence[Any]) -> Any:
    """Partition a call over devices like the arrays of `spread`.

    Return the function of each device, and the shardings of operands and results.
    """
    lead = _lead(call, mesh, spread)
    shapes = [shape for _, shape in call.results]
    of_results = [_sharding(mesh, lead, shape) for shape in shapes]
    of_operands = [_sharding(mesh, lead, x.shape) for x in operands]
    local = call.resized(
        tuple(n // _count(mesh, names) for n, names in zip(call.lead, lead, strict=True)),
        [to.shard_shape(shape) for to, shape in zip(of_results, shapes, strict=True)],
    )

    def compute(*operands: Array) -> list[Array]:
        results = local(*operands)
        for i, shape in enumerate(shapes):
            sizes = zip(lead, call.lead, shape, strict=False)
            names = [name for axes, n, m in sizes if m == 1 != n for name in axes]
            if names:  # a gradient of a broadcast operand
                results[i] = jax.lax.psum(results[i], names)  # type: ignore[no-untyped-call]
        return results

    return compute, of_operands, of_results


_spread.def_partition(  # type: ignore[no-untyped-call]
    _partition, infer_sharding_from_operands=_infer, sharding_rule=_rule, decode_shardings=True
)


def _lead(call: FfiCall, mesh: Any, arrays: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return the mesh axes over which each leading dimension is partitioned.

    The first array partitioned along a dimension decides, if all arrays can be split alike.
    """
    lead: list[tuple[str, ...]] = [()] * len(call.lead)
    for x in arrays:
        spec = getattr(x.sharding, "spec", ())
        for axis, names in enumerate(spec[: len(call.lead)]):
            names = (names,) if isinstance(names, str) else tuple(names or ())
            used = {name for names in lead for name in names}
            groups = call.settings.groups if axis == len(call.lead) - 1 else 1
            whole = x.shape[axis] != 1 and call.lead[axis] // groups % _count(mesh, names) == 0
            if whole and not lead[axis] and not used & set(names):
                lead[axis] = names
    return lead


def _count(mesh: Any, names: Sequence[str]) -> int:
    """Return the number of devices along some axes of a mesh."""
    return math.prod(mesh.shape[name] for name in names)


def _sharding(mesh: Any, lead: list[tuple[str, ...]], shape: Shape) -> NamedSharding:
    """Return the sharding of an array (*lead or 1, ...); dimensions of 1 are replicated."""
    spec = [names if n != 1 and names else None for names, n in zip(lead, shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*spec))  # type: ignore[no-untyped-call]
