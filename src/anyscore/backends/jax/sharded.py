"""Attention over the ranks of an axis of a mesh, differentiable once, inside `jax.shard_map`."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from anyscore.backends import ring
from anyscore.backends.jax.autograd import compute, vary_like
from anyscore.backends.jax.exchange import AxisExchange
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.call.shards import Integer, Part, Scheme, Sharded, Shards
from anyscore.kernels.pallas.attention import StaticArgs
from anyscore.ops import Array, acc_dtype, load

_xp = load("jax")

Tensors = tuple[Operands, tuple["Array | None", ...]]


class _Call(NamedTuple):
    """A call across ranks without its arrays; hashable. fused: whether kernels compute blocks."""

    static: StaticArgs
    queries: Shards | None
    keys: Shards
    axis: str
    scheme: Scheme
    fused: bool

    def part(self, tensors: Tensors) -> tuple[Part, Sharded]:
        """Return the part of this rank with these arrays, and the shards."""
        x, biases = tensors
        sharded = Sharded(self.queries, self.keys, AxisExchange(self.axis))
        chunks = sharded.query_chunks(_xp, x.a.shape[-2])
        return Part(x, self.static.settings, chunks, biases), sharded


class _Kernels:
    """The core and the Pallas kernels, or the definition, as `ring.Kernels`."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def forward(self, x: Operands, s: Settings) -> Results:
        found: Results = compute("forward", self._static(s), self._call.fused, x)
        return found

    def backward(self, x: Operands, s: Settings, results: Results, upstream: Results) -> Operands:
        found: Operands = compute(
            "backward_block", self._static(s), self._call.fused, x, results, upstream
        )
        return found

    def add(self, to: Array, x: Array) -> Array:
        return to + x

    def scale(self, x: Array, by: Array) -> Array:
        return x * by

    def zeros(self, shape: tuple[int, ...], x: Operands) -> Array:
        return jnp.zeros(shape, acc_dtype(_xp, *x[:N_DIFFERENTIABLE]))

    def add_columns(self, to: Array, start: Integer, x: Array) -> Array:
        return to.at[..., start + jnp.arange(x.shape[-1])].add(x)

    def origin(self, query: Integer, key: Integer, x: Operands) -> Array:
        words = jnp.stack([jnp.asarray(i).astype(np.uint32) for i in (query, key)])
        return words.reshape(x.seed.shape)

    def _static(self, s: Settings) -> StaticArgs:
        return self._call.static._replace(settings=s)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, tensors: Tensors) -> Results:
    return _forward(call, tensors)[0]


def _forward(call: _Call, tensors: Tensors) -> tuple[Results, tuple[Tensors, Results]]:
    tensors = _once(tensors)
    part, sharded = call.part(tensors)
    found, kept = ring.forward(_xp, _Kernels(call), part, sharded, call.scheme)
    return found, (tensors, kept)


def _backward(
    call: _Call, residuals: tuple[Tensors, Results], upstream: Results
) -> tuple[tuple[Operands, tuple[Array | None, ...]]]:
    (tensors, kept), upstream = _once((residuals, upstream))
    part, sharded = call.part(tensors)
    exchange = cast(AxisExchange, sharded.exchange)
    if call.scheme == "stay" and not exchange.is_typed:  # each rank has a share
        upstream = jax.tree.map(lambda d: exchange.sum([d])[0], upstream)
    found = ring.backward(_xp, _Kernels(call), part, sharded, call.scheme, kept, upstream)

    def alike(d: Array | None, x: Array | None) -> Array | None:
        return None if d is None or x is None else vary_like(d.astype(x.dtype), x)

    x = Operands(*map(alike, found.x[:N_DIFFERENTIABLE], part.x[:N_DIFFERENTIABLE]))
    return ((x, tuple(map(alike, found.biases, part.biases))),)


_attend.defvjp(_forward, _backward)


@jax.custom_jvp
def _once(tree: Any) -> Any:
    """Return the tree, which has no derivatives."""
    return tree


@_once.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "attention across ranks has no second derivatives: compute them on one rank."
    )


def attend(
    static: StaticArgs, part: Part, sharded: Sharded, scheme: Scheme, fused: bool
) -> Results:
    """Return the results of this rank's part of a call, differentiable once.

    part: its operands are of full rank, see `autograd.attend`.
    """
    exchange = cast(AxisExchange, sharded.exchange)
    call = _Call(static, sharded.queries, sharded.keys, exchange.axis, scheme, fused)
    tensors = part.x, part.biases
    found: Results = _attend(call, vary_like(tensors, (tensors, exchange.rank)))
    return found
