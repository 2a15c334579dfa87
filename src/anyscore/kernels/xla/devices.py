"""XLA calls batched by vmap, and spread over devices by their leading dimensions without gathering.

A call has operands and results (*lead or 1, …): a leading dimension is either that of the call or
broadcast. With grouped heads the last one is divided by `groups` in those `of_keys`. Each device
computes its part of the leading dimensions; a gradient of what is broadcast is summed over devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from anyscore.ops import Array

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A call without its operands: plain data, as JAX keeps them.

    operands_of_keys, results_of_keys: whether heads are those of keys, of each.
    """

    target: str
    told: tuple[tuple[str, Any], ...]
    lead: Shape
    groups: int
    results: tuple[tuple[Shape, Any], ...]
    operands_of_keys: tuple[bool, ...]
    results_of_keys: tuple[bool, ...]

    def __call__(self, *operands: Array) -> list[Array]:
        shapes = [jax.ShapeDtypeStruct(*result) for result in self.results]  # type: ignore[no-untyped-call]
        return list(jax.ffi.ffi_call(self.target, shapes)(*operands, **dict(self.told)))

    def batched(self, n: int) -> Call:
        """With one more leading dimension, of results whatever the operands have."""
        results = tuple(((n, *shape), dtype) for shape, dtype in self.results)
        return replace(self, lead=(n, *self.lead), results=results)


def run(call: Call, *operands: Array) -> list[Array]:
    """The results of a call, whatever JAX does around it."""
    if any(varying(x) for x in operands):  # inside shard_map, which leaves each device its part
        spread: Any = call
    elif any(explicit_mesh(x) for x in operands):
        spread = partial(_spread_as_typed, call)
    else:
        spread = partial(_spread, call)
    batchable = custom_vmap(lambda *operands: spread(*operands))

    @batchable.def_vmap
    def batch(n: int, batched: Sequence[bool], *operands: Array) -> tuple[list[Array], list[bool]]:
        given = [x if some else x[None] for x, some in zip(operands, batched, strict=True)]
        return run(call.batched(n), *given), [True] * len(call.results)

    found: list[Array] = batchable(*operands)
    return found


def varying(x: Array) -> frozenset[Any]:
    """The axes of a mesh along which x differs between devices, as shard_map's types say."""
    kind = jax.typeof(x)
    manual = getattr(kind, "manual_axis_type", None)
    return getattr(kind, "vma", None) or getattr(manual, "varying", None) or frozenset()


def explicit_mesh(x: Array) -> Any:
    """The mesh that x is spread over as its type says; None if types say nothing of devices."""
    mesh = getattr(getattr(jax.typeof(x), "sharding", None), "mesh", None)
    kinds = () if mesh is None or mesh.empty else mesh.axis_types
    return mesh if any("explicit" in str(kind).lower() for kind in kinds) else None


def _spread_as_typed(call: Call, *operands: Array) -> list[Array]:
    """Spread as the types of the operands are."""
    mesh = next(mesh for mesh in map(explicit_mesh, operands) if mesh)
    types = [jax.typeof(x) for x in operands]
    compute, of_operands, of_results = _parts(call, mesh, types, types)
    given = map(jax.sharding.reshard, operands, of_operands)
    specs = tuple(to.spec for to in of_operands), [to.spec for to in of_results]
    mapped = jax.shard_map(
        compute, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False
    )
    found: list[Array] = mapped(*given)
    return found


@partial(custom_partitioning, static_argnums=(0,))
def _spread(call: Call, *operands: Array) -> list[Array]:
    return call(*operands)


def _rule(call: Call, mesh: Any, operands: Any, results: Any) -> tuple[str, dict[str, int]]:
    """Which dimensions go together, in the words of Shardy."""
    fresh = iter(range(1000))

    def dimensions(type_: Any, of_keys: bool) -> str:
        shape, names = tuple(type_.shape), []
        for axis, n in enumerate(shape):
            last = axis == len(call.lead) - 1
            whole = axis < len(call.lead) and n != 1
            if whole and last and call.groups > 1:
                names.append("heads" if of_keys else "(heads groups)")
            else:
                names.append(f"lead_{axis}" if whole else f"own_{next(fresh)}")
        return " ".join(names)

    sides = [
        ", ".join(dimensions(x, of_keys) for x, of_keys in zip(types, which, strict=True))
        for types, which in ((operands, call.operands_of_keys), (results, call.results_of_keys))
    ]
    rule, sizes = " -> ".join(sides), {}
    if "groups" in rule:
        sizes = {"groups": call.groups}
        if "heads" not in rule.replace("(heads", ""):  # not the whole of any dimension
            sizes["heads"] = call.lead[-1] // call.groups
    return rule, sizes


def _infer(call: Call, mesh: Any, operands: Any, results: Any) -> list[NamedSharding]:
    lead = _lead(call, mesh, operands)
    return [_sharding(call, mesh, lead, shape) for shape, _ in call.results]


def _partition(call: Call, mesh: Any, operands: Any, results: Any) -> Any:
    compute, of_operands, of_results = _parts(call, mesh, operands, [*results, *operands])
    return mesh, compute, of_results, tuple(of_operands)


def _parts(call: Call, mesh: Any, operands: Any, spread: Sequence[Any]) -> Any:
    """What each device computes, and how operands and results are spread, going by some arrays."""
    lead = _lead(call, mesh, spread)
    of_results = [_sharding(call, mesh, lead, shape) for shape, _ in call.results]
    of_operands = [_sharding(call, mesh, lead, x.shape) for x in operands]
    sizes = zip(of_results, call.results, strict=True)
    local = replace(
        call,
        lead=tuple(n // _count(mesh, names) for n, names in zip(call.lead, lead, strict=True)),
        results=tuple((to.shard_shape(shape), dtype) for to, (shape, dtype) in sizes),
    )

    def compute(*operands: Array) -> list[Array]:
        found = local(*operands)
        for i, (shape, _) in enumerate(call.results):
            sizes = zip(lead, call.lead, shape, strict=False)
            names = [name for axes, n, m in sizes if m == 1 != n for name in axes]
            found[i] = jax.lax.psum(found[i], names) if names else found[i]  # type: ignore[no-untyped-call]
        return found

    return compute, of_operands, of_results


_spread.def_partition(  # type: ignore[no-untyped-call]
    _partition, infer_sharding_from_operands=_infer, sharding_rule=_rule, decode_shardings=True
)


def _lead(call: Call, mesh: Any, arrays: Sequence[Any]) -> list[tuple[str, ...]]:
    """The axes of the mesh that each leading dimension is spread over.

    Those of the first array that is spread there, where all can be cut alike.
    """
    found: list[tuple[str, ...]] = [()] * len(call.lead)
    for x in arrays:
        spec = getattr(x.sharding, "spec", ())
        for axis, names in enumerate(spec[: len(call.lead)]):
            names = (names,) if isinstance(names, str) else tuple(names or ())
            used = {name for names in found for name in names}
            size = call.lead[axis] // (call.groups if axis == len(call.lead) - 1 else 1)
            whole = x.shape[axis] != 1 and size % _count(mesh, names) == 0
            if whole and not found[axis] and not used & set(names):
                found[axis] = names
    return found


def _count(mesh: Any, names: Sequence[str]) -> int:
    """The devices along some axes."""
    return math.prod(mesh.shape[name] for name in names)


def _sharding(call: Call, mesh: Any, lead: list[tuple[str, ...]], shape: Shape) -> NamedSharding:
    spec = [names if n != 1 and names else None for names, n in zip(lead, shape, strict=False)]
    return NamedSharding(mesh, PartitionSpec(*spec))  # type: ignore[no-untyped-call]
