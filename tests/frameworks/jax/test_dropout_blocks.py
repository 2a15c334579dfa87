"""A block of a longer call drops its entries: XLA's calls, the Pallas kernels, the reference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from anyscore.backends.jax import autograd
from anyscore.call.operands import Operands, Results
from anyscore.kernels.pallas.attention import StaticArgs
from anyscore.kernels.xla import attention as xla
from anyscore.score.pairs import PRODUCT
from helpers.dropout_blocks import (
    LEAD,
    ORIGINS,
    QUERIES,
    SEED,
    SETTINGS,
    Block,
    assert_drops,
    block,
)

pytestmark = pytest.mark.skipif(xla.problem() is not None, reason="XLA cannot call the core")
ONES = (1,) * len(LEAD)
NAMES = "output", "d_a", "d_b", "d_value"
TARGETS = pytest.mark.parametrize("target", ["cpu", "interpret"])


def words(*numbers: Any) -> jax.Array:
    """Return 32-bit words as an operand without leading dimensions, (1, 1, n)."""
    return jnp.stack([jnp.asarray(n).astype(np.uint32) for n in numbers]).reshape(*ONES, -1)


def record(a: jax.Array, b: jax.Array, value: jax.Array, origin: tuple[Any, Any]) -> Operands:
    counter = jnp.arange(SETTINGS.dropout_period, dtype=np.uint32).reshape(LEAD)
    seed = words(SEED % 2**32, SEED >> 32)
    return Operands(a, b, value=value, seed=seed, counter=counter, origin=words(*origin))


def output(target: str, *args: Any) -> jax.Array:
    """Return the output of a block as a function of its arrays and its origin."""
    found: Results = autograd.attend(record(*args), StaticArgs(SETTINGS, PRODUCT, (target,)))
    return found.output


def with_gradients(target: str, x: Block, *origin: Any) -> tuple[jax.Array, ...]:
    """Return the output and the gradients of a, b and value."""
    *xs, d_output = map(jnp.asarray, x)
    found, back = jax.vjp(lambda *xs: output(target, *xs, origin), *xs)
    return found, *back(d_output)


def named(results: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(y) for name, y in zip(NAMES, results, strict=True)}


@TARGETS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", QUERIES)
def test_values_and_gradients(queries: int, dtype: str, target: str) -> None:
    """The origin is traced: one compiled function takes every block."""
    x = block(queries, dtype)
    with jax.enable_x64(dtype == "float64"):
        compiled = jax.jit(lambda *origin: with_gradients(target, x, *origin))
        for origin in ORIGINS:
            found = compiled(*(jnp.asarray(n, np.uint32) for n in origin))
            assert_drops(named(found), x, origin)


@pytest.mark.parametrize("wide", [False, True])
def test_forward_mode(wide: bool) -> None:
    """The tangent is the reference's, along the gradient of the output."""
    x = block(3, "float64" if wide else "float32")
    with jax.enable_x64(wide):
        *xs, d_output = map(jnp.asarray, x)
        for origin in ORIGINS:
            given = tuple(jnp.asarray(n, np.uint32) for n in origin)
            tangents = [jnp.ones_like(y) for y in xs]
            run = lambda *xs, given=given: output("cpu", *xs, given)  # noqa: E731
            _, along = jax.jvp(run, tuple(xs), tuple(tangents))
            _, *gradients = with_gradients("cpu", x, *given)
            ahead = (along * d_output).sum()
            back = sum((d * y).sum() for d, y in zip(gradients, tangents, strict=True))
            np.testing.assert_allclose(ahead, back, rtol=1e-10 if wide else 1e-3)


@TARGETS
def test_vmap_over_origins(target: str) -> None:
    """Each entry of the batch is a block with an origin of its own, under the same seed."""
    x, origins = block(3, "float64"), np.array(ORIGINS, np.uint32)
    found = jax.vmap(lambda origin: with_gradients(target, x, *origin))(jnp.asarray(origins))
    for i, origin in enumerate(ORIGINS):
        assert_drops(named(y[i] for y in found), x, origin)


@TARGETS
def test_shard_map(target: str) -> None:
    """Each device has a block of the queries; its index gives the block's origin."""
    mesh = jax.make_mesh((2,), ("blocks",), axis_types=(AxisType.Auto,))
    x, first = block(66, "float64"), (33, 52)
    spread, whole = PartitionSpec(None, None, "blocks"), PartitionSpec()

    def local(a: jax.Array, b: jax.Array, value: jax.Array) -> jax.Array:
        place = first[0] + jax.lax.axis_index("blocks") * a.shape[-2]
        return output(target, a, b, value, (place, first[1]))

    checked = target == "cpu"  # Pallas' interpreter drops the mesh axes of types
    specs = (spread, whole, whole), spread
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=checked
    )
    *xs, d_output = map(jnp.asarray, x)
    found, back = jax.vjp(jax.jit(mapped), *xs)
    assert_drops(named((found, *back(d_output))), x, first)


def test_edges_and_other_origins_are_refused() -> None:
    a, b, value, _ = map(jnp.asarray, block(1, "float32"))
    with pytest.raises(Exception, match="multiple of 4"):
        output("cpu", a, b, value, (0, 2)).block_until_ready()
    x = record(a, b, value, (0, 4))
    wide = x._replace(origin=x.origin.astype(np.int64))
    with pytest.raises(Exception, match="origin must be words of 32 bits"):
        autograd.attend(wide, StaticArgs(SETTINGS, PRODUCT, ("cpu",)))[0].block_until_ready()
    x = x._replace(rowptr=jnp.array([[[0, 2]]]), col=jnp.array([[[0, 1]]]))
    with pytest.raises(Exception, match="origin"):
        autograd.attend(x, StaticArgs(SETTINGS, PRODUCT, ("cpu",)))[0].block_until_ready()
