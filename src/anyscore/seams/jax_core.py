"""The C++ core for JAX, differentiable in reverse mode: first order by its own backward, higher by
the definition. Forward mode raises, as of every function with derivatives of its own."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from anyscore.intervals import Attendable
from anyscore.kernels import xla
from anyscore.kernels.xla_devices import explicit_mesh, varying
from anyscore.ops import Array, load
from anyscore.seams.cpu import Settings, by_definition

_xp = load("jax")
Named: TypeAlias = dict[str, Array]

FACTORS = "a", "b", "weight", "key_bias", "value"
"""The operands that have gradients."""


@partial(jax.jit, static_argnums=0, inline=True)
def attend(s: Settings, factors: Named, others: Named) -> tuple[Array, Array]:
    """Output, in the dtype of sums, and log-sum-exp."""
    factors, others = _alike(factors, others)
    output, lse = _attend(s, factors, others)
    return output, lse


@partial(jax.jit, static_argnums=0, inline=True)
def weights(s: Settings, operands: Named) -> Array:
    """The weights (*lead, T_q, T_k) before dropout, in the dtype of lse."""
    (operands,) = _alike(operands)
    found = _varying(xla.weights(operands, s.lead, **_told(s, dropout=False)), operands)
    total = found.sum(axis=-1, keepdims=True)  # 1 but for the rounding of a large lse
    return found / jnp.where(total == 0, 1, total)


@partial(jax.jit, static_argnums=0)
def prepare_keys(pair: str, b: Array) -> Array:
    return _varying(xla.prepare_keys(pair, b), b)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(s: Settings, factors: Named, others: Named) -> list[Array]:
    operands = factors | others
    results: list[Array] = _varying(xla.forward(operands, s.lead, **_told(s)), operands)
    return results


def _attend_forward(s: Settings, factors: Named, others: Named) -> tuple[list[Array], Any]:
    results = _attend(s, factors, others)
    return results, (factors, others, *results)


def _attend_backward(s: Settings, saved: Any, upstream: list[Array]) -> tuple[Named, None]:
    factors, others, output, lse = saved
    others = {name: x for name, x in others.items() if name != "packed"}
    return _gradients(s, factors, others, [output, lse], list(upstream)), None


_attend.defvjp(_attend_forward, _attend_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(
    s: Settings, factors: Named, others: Named, results: list[Array], upstream: list[Array]
) -> Named:
    names = "output", "lse", "d_output", "d_lse"
    operands = factors | others | dict(zip(names, (*results, *upstream), strict=True))
    found = _varying(xla.backward(operands, s.lead, **_told(s)), operands)
    return {name: _typed(x.astype(factors[name].dtype), factors[name]) for name, x in found.items()}


def _gradients_forward(s: Settings, *args: Any) -> tuple[Named, Any]:
    factors, others, _, upstream = args
    return _gradients(s, *args), (factors, others, upstream)


def _gradients_backward(s: Settings, saved: Any, upstream: Named) -> tuple[Any, ...]:
    """The derivative of the definition's: log-sum-exp and output are recomputed there."""
    factors, others, before = saved
    mask = Attendable(*(others.get(name) for name in ("start", "stop", "keep")))
    seed = others["seed"].reshape(2) if "seed" in others else None

    def run(given: Named) -> list[Array]:
        inputs = [given.get(name) for name in FACTORS]
        dtype = str(before[1].dtype)
        return list(by_definition(_xp, s, inputs, mask, seed, dtype))

    def gradients(given: Named, before: list[Array]) -> Any:
        return jax.vjp(run, given)[1](before)[0]

    d_factors, d_before = jax.vjp(gradients, factors, before)[1](upstream)
    return d_factors, None, None, d_before


_gradients.defvjp(_gradients_forward, _gradients_backward)


def _told(s: Settings, dropout: bool = True) -> dict[str, Any]:
    told = {"pair": s.pair, "scale": s.scale, "groups": s.groups}
    return {**told, "dropout": s.dropout} if dropout else told


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
