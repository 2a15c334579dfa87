"""Fused attention in JAX: gradients by a fused backward, other derivatives by the reference.

Forward mode and higher orders are the other derivatives. JAX chooses a platform when it lowers a
call: the C++ core for the CPU, the Pallas kernels for CUDA, the reference for `jax.export`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from anyscore.backends.record import keeps_scores, run_reference
from anyscore.backends.ring import upstream_of_block
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels import cpu, tried
from anyscore.kernels.pallas import attention as pallas
from anyscore.kernels.pallas.attention import StaticArgs
from anyscore.kernels.xla import attention as xla
from anyscore.kernels.xla.devices import explicit_mesh, varying
from anyscore.ops import Array, acc_dtype, load
from anyscore.ops.jax_primitives import Named, linear, moved, unless_exported
from anyscore.score.pairs import Pair

_xp = load("jax")


def targets() -> tuple[str, ...]:
    """Return the platforms of calls; CUDA only if this machine has such a device."""
    if pallas.INTERPRET:
        return ("interpret",)
    return ("cpu", "cuda") if pallas.has_device() else ("cpu",)


def static_args(s: Settings, pair: Pair) -> StaticArgs:
    """Return the static arguments of a call."""
    return StaticArgs(s, pair, targets(), tried.is_switched_on())


@partial(jax.jit, static_argnums=1, inline=True)
def attend(x: Operands, s: StaticArgs) -> Results:
    """Return differentiable attention, in the dtype of sums.

    x: of full rank; seed (..., 2), counter (...) and origin (..., 2), see `kernels.xla.attention`.
    """
    results: Results = _attend(_alike(x), s)
    return results


@partial(jax.jit, static_argnums=0)
def prepare_keys(pair: str, b: Array) -> Array:
    """Return packed keys (*lead, T_k + 1, h), an operand of `attend`, of b (*lead, T_k, h)."""

    def by_core(b: Array) -> Array:
        return vary_like(xla.prepare_keys(pair, b), b)

    packed: Array = unless_exported(by_core, _as_wide, b)
    return packed


@partial(jax.jit, static_argnums=(0, 4))
def append_keys(pair: str, b: Array, packed: Array, start: Array, count: int) -> Array:
    """Return `packed` with `count` new rows of b, from row `start` () on, modulo T_k."""

    def by_core(operands: tuple[Array, ...]) -> Array:
        b, packed, start = operands
        return vary_like(xla.append_keys(pair, b, packed, start, count), operands)

    def defined(operands: tuple[Array, ...]) -> Array:
        return _as_wide(operands[0])

    found: Array = unless_exported(by_core, defined, (b, packed, start))
    return found


def _as_wide(b: Array) -> Array:
    """Return b in the packed format, with every feature marked wide: a row of ½, then b."""
    b = b.astype(acc_dtype(_xp, b))
    return jnp.concatenate([jnp.full_like(b[..., :1, :], 0.5), b], axis=-2)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _attend(x: Operands, s: StaticArgs) -> Results:
    results: Results = compute("forward", s, True, x)
    return results


def _attend_jvp(s: StaticArgs, primals: Any, tangents: Any) -> tuple[Results, Results]:
    """Return the tangent by the reference; its transpose is the backward of the kernels."""
    keeps = s.targets == ("cpu",) and keeps_scores(primals[0], s.settings)
    given = s.settings._replace(scores=s.settings.scores or keeps)
    found = _attend(*primals, s._replace(settings=given))
    results = found if s.settings.scores else found._replace(scores=None)
    kept = found._replace(output=None) if keeps else found._replace(scores=None)
    x: Operands = primals[0]._replace(packed=None)

    def ahead(residuals: tuple[Operands, Results], along: Named) -> list[Array]:
        x, _ = residuals

        def run(moving: Named) -> list[Array]:
            return list(_define("forward", s, _with(x, moving)).present().values())

        moving = {name: getattr(x, name) for name in along}
        tangents: list[Array] = jax.jvp(run, (moving,), (along,))[1]
        return tangents

    def back(residuals: tuple[Operands, Results], upstream: list[Array]) -> Named:
        x, kept = residuals
        gradients: Operands = _gradients(x, s, kept, x.results_from(s.settings, upstream))
        return gradients._asdict()

    along = tangents[0].factors.present()
    moved = linear(ahead, back, (x, kept), along, list(results.present().values()))
    return results, x.results_from(s.settings, moved)


_attend.defjvp(_attend_jvp, symbolic_zeros=True)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _gradients(x: Operands, s: StaticArgs, results: Results, upstream: Results) -> Operands:
    """Return the gradients of the factors of x, each of the type of its operand."""
    gradients = compute("backward", s, True, x, results, upstream).present()
    likes = {name: getattr(x, name) for name in gradients}
    return Operands(**{n: _typed(y.astype(likes[n].dtype), likes[n]) for n, y in gradients.items()})


def _gradients_jvp(s: StaticArgs, primals: Any, tangents: Any) -> tuple[Operands, Operands]:
    """Return the tangent of the reference's gradients, which recompute output and log-sum-exp."""
    x, results, upstream = primals
    along = moved(tangents[0].factors.present() | tangents[2].present())

    def gradients(moving: Named) -> Operands:
        found = _define("backward", s, _with(x, moving), results, _with(upstream, moving)).present()
        return Operands(**{n: y.astype(getattr(x, n).dtype) for n, y in found.items()})

    moving = {n: y for n, y in (x.present() | upstream.present()).items() if n in along}
    return _gradients(x, s, results, upstream), jax.jvp(gradients, (moving,), (along,))[1]


_gradients.defjvp(_gradients_jvp, symbolic_zeros=True)


def _with(record: Any, moving: Named) -> Any:
    """Return a record with the fields in `moving` replaced."""
    return record._replace(**{n: y for n, y in moving.items() if n in record._fields})


@partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def compute(function: str, s: StaticArgs, by_kernels: bool, *args: Any) -> Any:
    """Run "forward", "backward" or "backward_block" by the implementation of the platform.

    "backward_block" takes the results of a whole of which x has a part of the keys. by_kernels:
    whether kernels may run, not the reference alone. args, result: as in `kernels.xla.attention`,
    without the settings.
    """
    kernel = function.removesuffix("_block")

    def by_core(args: Any) -> Any:
        return vary_like(getattr(xla, kernel)(args[0], s.settings, *args[1:]), args)

    def by_pallas(args: Any) -> Any:
        return vary_like(getattr(pallas, kernel)(args[0], s, *args[1:]), args)

    def defined(args: Any) -> Any:
        return vary_like(_define(function, s, *args), args)

    empty = any(x.size == 0 for x in jax.tree.leaves(args))
    is_double = acc_dtype(_xp, *args[0][:N_DIFFERENTIABLE]) == "float64"
    formulas = s.pair.key, s.settings.outer
    known = all(cpu.has(x, is_double) for x in formulas) and xla.problem() is None
    on_cpu = by_core if known else defined
    has_kernels = args[0].rowptr is None
    on_cuda = by_pallas if has_kernels and not empty else defined

    def fused(args: Any) -> Any:
        if "interpret" in s.targets:
            return on_cuda(args)
        if "cuda" not in s.targets:
            return on_cpu(args)
        return jax.lax.platform_dependent(args, cpu=on_cpu, cuda=on_cuda)

    return unless_exported(fused, defined, args) if by_kernels else defined(args)


def _define(function: str, s: StaticArgs, x: Operands, *rest: Any) -> Any:
    """Run a function of `compute` by the reference, in the dtype of sums."""
    dtype = acc_dtype(_xp, *x[:N_DIFFERENTIABLE])
    if x.seed is not None:
        x = x._replace(seed=x.seed.reshape(2))
    if x.origin is not None:
        x = x._replace(origin=x.origin.reshape(2))
    if x.rowptr is not None:
        x = x._replace(rowptr=x.rowptr.reshape(-1), col=x.col.reshape(-1))
    if function == "forward":
        return run_reference(_xp, x, s.settings)

    whole, upstream = rest
    if function == "backward_block":
        block = run_reference(_xp, x, s.settings)
        upstream = upstream_of_block(_xp, s.settings, block, whole, upstream)
    reached = upstream.present()

    def run(*factors: Array) -> Named:
        results = run_reference(_xp, Operands(*factors, *x[N_DIFFERENTIABLE:]), s.settings)
        return {name: getattr(results, name) for name in reached}

    return Operands(*jax.vjp(run, *x[:N_DIFFERENTIABLE])[1](reached)).map(lambda y: y.astype(dtype))


# The type of an array may name mesh axes along which it varies. Inside shard_map the operands of a
# call must vary along the same axes, and results of XLA's calls have no such axes.


def _alike(tree: Any) -> Any:
    """Return a tree whose arrays all vary along the same mesh axes."""
    return vary_like(tree, tree)


def vary_like(tree: Any, like: Any) -> Any:
    """Return a tree whose arrays vary along every mesh axis of an array in `like`."""
    axes = frozenset().union(*map(varying, jax.tree.leaves(like)))
    return jax.tree.map(lambda x: _vary(x, axes), tree) if axes else tree


def _vary(x: Array, axes: frozenset[Any]) -> Array:
    missing = tuple(axes - varying(x))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing)  # type: ignore[attr-defined]  # until JAX 0.8


def _typed(gradient: Array, x: Array) -> Array:
    """Return a gradient with the sharding in the type of x, if types have shardings."""
    if explicit_mesh(x):
        sharding = jax.typeof(x).sharding
    elif mesh := explicit_mesh(gradient):
        sharding = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    else:
        return gradient
    return jax.sharding.reshard(gradient, sharding)  # type: ignore[no-untyped-call]
