"""Arrays may spread over four devices: each device computes its part and gathers nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from anyscore import Additive, attention
from helpers.samples import normal

B, H, T, D, D_V = 4, 4, 6, 5, 7
SPREAD = PartitionSpec("batch", "heads")
MESH = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
PARAMETERS = tuple(jnp.asarray(normal(*shape)) for shape in ((8, D), (8, D), (8,)))
MASKS = {
    "lengths": jnp.array([0, 2, T, 3]),
    "padding": jnp.ones((B, 1, 1, T), bool).at[1, ..., 2].set(False),
}


def arrays(kv_heads: int) -> tuple[jax.Array, ...]:
    shapes = (B, H, T, D), (B, kv_heads, T, D), (B, kv_heads, T, D_V)
    return tuple(jnp.asarray(normal(*shape)) for shape in shapes)


def call(*args: jax.Array, **options: Any) -> jax.Array:
    q, k, v, mask, *parameters = args
    masked = {"mask": mask} if mask.dtype == bool else {"valid_lens": mask}
    return attention(q, k, v, score=Additive(*parameters), impl="fused", **masked, **options)


def gradients(function: Callable[..., jax.Array], *args: jax.Array, **options: Any) -> Any:
    def total(*args: jax.Array) -> jax.Array:
        return (function(*args, **options) ** 2).sum()

    return jax.grad(total, (0, 1, 2, 4, 5, 6))(*args)


DROPOUT = {"dropout": 0.4, "dropout_seed": 3}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "output": call,
    "dropout": partial(call, **DROPOUT),
    "gradients": partial(gradients, call),
    "dropout_gradients": partial(gradients, partial(call, **DROPOUT)),
}


@pytest.mark.parametrize(
    ("name", "mask", "kv_heads"),
    [(name, "lengths", 2) for name in FUNCTIONS]
    + [
        ("gradients", "lengths", 1),
        ("gradients", "lengths", H),
        ("dropout_gradients", "padding", H),
    ],
)
def test_automatic(name: str, mask: str, kv_heads: int) -> None:
    function = FUNCTIONS[name]
    q, k, v = arrays(kv_heads)

    def spread(x: jax.Array) -> jax.Array:
        spec = [
            name if n != 1 else None
            for name, n in zip(("batch", "heads"), x.shape[:2], strict=False)
        ]
        return jax.device_put(x, NamedSharding(MESH, PartitionSpec(*spec)))

    masked = jax.device_put(MASKS[mask], NamedSharding(MESH, PartitionSpec("batch")))
    args = [spread(q), spread(k), spread(v), masked, *PARAMETERS]
    compiled = jax.jit(function).lower(*args).compile()
    assert not re.findall(r"all-gather|all-to-all|collective-permute", compiled.as_text())
    found, exact = compiled(*args), function(q, k, v, MASKS[mask], *PARAMETERS)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)
    assert jax.tree.leaves(found)[0].sharding.spec == SPREAD


@pytest.mark.parametrize("checked", [True, False])
def test_shard_map(checked: bool) -> None:
    """An operand that is the same on all devices has one gradient: the sum over devices."""
    args = (*arrays(2), MASKS["lengths"], *PARAMETERS)
    specs = (SPREAD,) * 3 + (PartitionSpec("batch"),) + (PartitionSpec(),) * 3
    mapped = jax.shard_map(call, mesh=MESH, in_specs=specs, out_specs=SPREAD, check_vma=checked)
    np.testing.assert_allclose(jax.jit(mapped)(*args), call(*args), rtol=1e-11, atol=1e-12)
    found, exact = jax.jit(partial(gradients, mapped))(*args), gradients(call, *args)
    for x, y in zip(found, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def test_a_batch_that_does_not_divide_is_right() -> None:
    q, k, v = (x[:3] for x in arrays(H))
    spread = jax.device_put(q, NamedSharding(MESH, PartitionSpec(None, "heads")))
    args = k, v, MASKS["lengths"][:3], *PARAMETERS
    np.testing.assert_allclose(jax.jit(call)(spread, *args), call(q, *args), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kv_heads", [2, H])
def test_devices_in_types(kv_heads: int, compiled: bool) -> None:
    """With a mesh of explicit axes, results and gradients have the expected types."""
    typed = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Explicit,) * 2)
    args = (*arrays(kv_heads), MASKS["lengths"], *PARAMETERS)
    exact = call(*args, **DROPOUT), *gradients(partial(call, **DROPOUT), *args)
    specs = (SPREAD,) * 2 + (PartitionSpec(), PartitionSpec("batch")) + (PartitionSpec(),) * 3
    wrap = jax.jit if compiled else lambda function: function
    with jax.set_mesh(typed):
        given = [
            jax.device_put(x, NamedSharding(typed, spec))
            for x, spec in zip(args, specs, strict=True)
        ]
        output = wrap(partial(call, **DROPOUT))(*given)
        found = wrap(partial(gradients, partial(call, **DROPOUT)))(*given)
    for x, y in zip((output, *found), exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)
    assert tuple(jax.typeof(output).sharding.spec[:2]) == tuple(SPREAD)
    for x, like in zip(found, [*given[:3], *given[4:]], strict=True):
        assert jax.typeof(x) == jax.typeof(like)
