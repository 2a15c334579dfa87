"""Fused attention in JAX: gradients by its own backward; forward mode and higher orders by the
definition.

What computes is chosen where JAX chooses a platform, when a call is lowered: the C++ core for the
CPU, the Pallas kernels for CUDA, the definition for `jax.export`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from anyscore import definition
from anyscore.backends.common import Settings, by_definition, settings, task_of
from anyscore.factors import Factors, Pair
from anyscore.intervals import LoweredMask
from anyscore.kernels import cpu
from anyscore.kernels.pallas import attention as pallas
from anyscore.kernels.xla import attention as xla
from anyscore.kernels.xla.devices import explicit_mesh, varying
from anyscore.ops import Array, load
from anyscore.ops.jax_primitives import Named, linear, moved, unless_exported
from anyscore.task import Task

_xp = load("jax")

FACTORS = "a", "b", "weight", "key_bias", "value"
"""The operands that have gradients."""


@dataclass(frozen=True)
class Told:
    """What a call is told beside arrays.

    targets: the platforms that it may be lowered for; or "interpret", by Pallas' interpreter.
    """

    settings: Settings
    pair: Pair
    targets: tuple[str, ...]


def told(task: Task, dropout: float) -> Told:
    """What calls are told of a task that has factors."""
    return Told(settings(task, dropout), cast(Factors, task.score).pair, targets())


def targets() -> tuple[str, ...]:
    """The platforms that calls are made for: CUDA only where there is such a device."""
    if pallas.INTERPRET:
        return ("interpret",)
    return ("cpu", "cuda") if pallas.has_device() else ("cpu",)


@partial(jax.jit, static_argnums=0, inline=True)
def attend(s: Told, factors: Named, others: Named) -> tuple[Array, Array]:
    """Output, in the dtype of sums, and log-sum-exp."""
    factors, others = _alike(factors, others)
    output, lse = _attend(s, factors, others)
    return output, lse


@partial(jax.jit, static_argnums=0, inline=True)
def weights(s: Told, operands: Named) -> Array:
    """The weights (*lead, T_q, T_k) before dropout, in the dtype of lse."""
    (operands,) = _alike(operands)
    found = _computed(s, "weights", operands)
    total = found.sum(axis=-1, keepdims=True)  # 1 but for the rounding of a large lse
    return found / jnp.where(total == 0, 1, total)


@partial(jax.jit, static_argnums=0)
def prepare_keys(pair: str, b: Array) -> Array:
    def by_core(b: Array) -> Array:
        return _varying(xla.prepare_keys(pair, b), b)

    def defined(b: Array) -> Array:  # a valid form that says of no feature that it is narrow
        b = b.astype(jnp.result_type(jnp.float32, b))
        return jnp.concatenate([jnp.full_like(b[..., :1, :], 0.5), b], axis=-2)

    packed: Array = unless_exported(by_core, defined, b)
    return packed


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(s: Told, factors: Named, others: Named) -> list[Array]:
    results: list[Array] = _computed(s, "forward", factors | others)
    return results


def _attend_ahead(s: Told, given: Any, tangents: Any) -> tuple[list[Array], list[Array]]:
    results = _attend(s, *given)
    factors, others = given
    others = {name: x for name, x in others.items() if name != "packed"}

    def ahead(told: Any, along: Named) -> list[Array]:
        operands = told[0] | told[1]

        def run(moving: Named) -> list[Array]:
            found: list[Array] = _defined(s, "forward", operands | moving)
            return found

        moving = {name: operands[name] for name in along}
        tangents: list[Array] = jax.jvp(run, (moving,), (along,))[1]
        return tangents

    def back(told: Any, upstream: list[Array]) -> Named:
        found: Named = _gradients(s, *told, upstream)
        return found

    told = factors, others, results
    return results, linear(ahead, back, told, tangents[0], results)


_attend.defjvp(_attend_ahead, symbolic_zeros=True)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gradients(
    s: Told, factors: Named, others: Named, results: list[Array], upstream: list[Array]
) -> Named:
    names = "output", "lse", "d_output", "d_lse"
    operands = factors | others | dict(zip(names, (*results, *upstream), strict=True))
    found = _computed(s, "backward", operands)
    return {name: _typed(x.astype(factors[name].dtype), factors[name]) for name, x in found.items()}


def _gradients_ahead(s: Told, given: Any, tangents: Any) -> tuple[Named, Named]:
    """The derivative of the definition's: log-sum-exp and output are recomputed there."""
    factors, others, _, upstream = given
    names = "d_output", "d_lse"
    operands = factors | others | dict(zip(names, upstream, strict=True))
    ahead = moved(tangents[0] | dict(zip(names, tangents[3], strict=True)))

    def gradients(moving: Named) -> Named:
        found: Named = _defined(s, "backward", operands | moving)
        return {name: x.astype(factors[name].dtype) for name, x in found.items()}

    moving = {name: operands[name] for name in ahead}
    return _gradients(s, *given), jax.jvp(gradients, (moving,), (ahead,))[1]


_gradients.defjvp(_gradients_ahead, symbolic_zeros=True)


@partial(jax.jit, static_argnums=(0, 1), inline=True)
def _computed(s: Told, what: str, operands: Named) -> Any:
    """Results of "forward", "backward" or "weights", wherever they are computed."""

    def by_core(operands: Named) -> Any:
        told = {"pair": s.pair.name, "scale": s.settings.scale, "groups": s.settings.groups}
        told |= {} if what == "weights" else {"dropout": s.settings.dropout}
        return _varying(getattr(xla, what)(operands, s.settings.lead, **told), operands)

    def by_kernels(operands: Named) -> Any:
        target = "interpret" if "interpret" in s.targets else "cuda"
        told = {"scale": s.settings.scale, "groups": s.settings.groups, "target": target}
        told |= {"pair": s.pair, "dropout": s.settings.dropout}
        return _varying(getattr(pallas, what)(operands, s.settings.lead, **told), operands)

    def defined(operands: Named) -> Any:
        return _varying(_defined(s, what, operands), operands)

    nothing = any(x.size == 0 for x in operands.values())
    on_cpu = by_core if s.pair in cpu.PAIRS and xla.problem() is None else defined
    on_cuda = defined if nothing else by_kernels

    def fused(operands: Named) -> Any:
        if "interpret" in s.targets:
            return on_cuda(operands)
        if "cuda" not in s.targets:
            return on_cpu(operands)
        return jax.lax.platform_dependent(operands, cpu=on_cpu, cuda=on_cuda)

    return unless_exported(fused, defined, operands)


def _defined(s: Told, what: str, operands: Named) -> Any:
    """The same by the definition, in the dtype of sums."""
    given = {name: operands[name] for name in FACTORS if name in operands}
    mask = LoweredMask(*(operands.get(name) for name in ("start", "stop", "keep")))
    seed = operands["seed"].reshape(2) if "seed" in operands else None
    sums = str(jnp.result_type(jnp.float32, *(x for x in given.values() if x.dtype == jnp.float64)))

    def forward(given: Named) -> list[Array]:
        inputs = [given.get(name) for name in FACTORS]
        return list(by_definition(_xp, s.settings, inputs, mask, seed, sums))

    if what == "weights":
        inputs = [given.get(name) for name in FACTORS]
        return definition.weights(_xp, task_of(_xp, s.settings, inputs, mask, sums))
    if what == "forward":
        return forward(given)
    found: Named = jax.vjp(forward, given)[1]([operands["d_output"], operands["d_lse"]])[0]
    return {name: x.astype(sums) for name, x in found.items()}


# Where an array is on the devices may be part of its type. Inside shard_map the operands of a call
# must be alike in that, and XLA's calls do not say that their results are as the operands.


def _alike(*trees: Any) -> Any:
    axes = _axes(trees)
    return jax.tree.map(lambda x: _vary(x, axes), trees)


def _varying(results: Any, like: Any) -> Any:
    axes = _axes(like)
    return jax.tree.map(lambda x: _vary(x, axes), results)


def _axes(tree: Any) -> frozenset[Any]:
    return frozenset().union(*map(varying, jax.tree.leaves(tree)))


def _typed(gradient: Array, x: Array) -> Array:
    """A gradient spread over devices as the type of x is, if types say so."""
    if explicit_mesh(x):
        sharding = jax.typeof(x).sharding
    elif mesh := explicit_mesh(gradient):
        sharding = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    else:
        return gradient
    return jax.sharding.reshard(gradient, sharding)  # type: ignore[no-untyped-call]


def _vary(x: Array, axes: frozenset[Any]) -> Array:
    missing = tuple(axes - varying(x))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing)  # type: ignore[attr-defined]  # until JAX 0.8
