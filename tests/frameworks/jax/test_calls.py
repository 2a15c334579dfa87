"""JAX may trace, batch and repeat calls, and calls take seeds, which JAX does not keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.sparse import BCOO

from anyscore import Additive, Causal, Lengths, Window, attention
from anyscore.modifiers.dropout import philox
from anyscore.ops import load
from helpers.samples import PAIRS as ONE_OF_EACH
from helpers.samples import make_score, normal

pytestmark = pytest.mark.sample

B, T_Q, T_K, D, D_V = 3, 4, 6, 5, 2
LENGTHS = np.array([0, 2, 6])
PAIRS = pytest.mark.parametrize("name", ["Cosine", "Gaussian", "Laplace", "Additive", "GATv2"])
"""One score of each pair, for slow tests; test_table.py has derivatives of all scores."""


def arrays(dtype: Any = np.float64) -> tuple[jax.Array, jax.Array, jax.Array]:
    shapes = (B, T_Q, D), (B, T_K, D), (B, T_K, D_V)
    return tuple(jnp.asarray(normal(*shape), dtype) for shape in shapes)


def jax_score(name: str) -> Any:
    return make_score(name).map(jnp.asarray)


def in_numpy(name: str, **options: Any) -> np.ndarray:
    given = (np.asarray(x) for x in arrays())
    return attention(*given, score=make_score(name), **options)


@contextmanager
def bits(wide: bool) -> Iterator[None]:
    """Use 64-bit numbers, or JAX's default of 32."""
    jax.config.update("jax_enable_x64", wide)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_traced_lengths_and_offsets(name: str) -> None:
    """One compilation serves all lengths and offsets."""
    traces = []

    @jax.jit
    def call(lengths: jax.Array, offset: jax.Array) -> jax.Array:
        traces.append(name)
        mask = Window(2, 1, offset=offset)
        return attention(*arrays(), score=jax_score(name), mask=mask, valid_lens=lengths)

    for lengths, offset in ((LENGTHS, 1), (LENGTHS[::-1].copy(), -2)):
        found = call(jnp.asarray(lengths), jnp.asarray(offset))
        exact = in_numpy(name, mask=Window(2, 1, offset=offset), valid_lens=lengths)
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-14)
    assert len(traces) == 1


@PAIRS
def test_vmap_scan_and_checkpoint(name: str) -> None:
    query, key, value = arrays()
    score = jax_score(name)

    def one(q: jax.Array, k: jax.Array, v: jax.Array, n: jax.Array) -> jax.Array:
        return attention(q, k, v, score=score, mask=Causal("end") & Lengths(n))

    expected = in_numpy(name, mask=Causal("end"), valid_lens=LENGTHS)
    lengths = jnp.asarray(LENGTHS)

    def total(call: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda *xs: (jax.vmap(call)(*xs, lengths) ** 2).sum()

    @jax.jit
    def compiled(*xs: jax.Array) -> Any:
        _, scanned = jax.lax.scan(lambda _, x: (None, one(*x)), None, (*xs, lengths))
        slopes = (jax.grad(total(f), argnums=(0, 1, 2))(*xs) for f in (one, jax.checkpoint(one)))
        return jax.vmap(one)(*xs, lengths), scanned, *slopes

    *results, plainly, again = compiled(query, key, value)
    for found in results:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
    for x, y in zip(plainly, again, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@PAIRS
def test_second_derivatives(name: str) -> None:
    """Reverse over reverse of a masked call agrees with differences of first derivatives."""
    query, key, value = arrays()
    score, direction = jax_score(name), jnp.asarray(normal(B, T_Q, D, seed=9))

    @jax.jit
    def slope(q: jax.Array) -> jax.Array:
        def total(q: jax.Array) -> jax.Array:
            mask = Causal("end") & Lengths(LENGTHS)
            return jnp.sin(attention(q, key, value, score=score, mask=mask)).sum()

        return (jax.grad(total)(q) * direction).sum()

    found = (jax.grad(slope)(query) * direction).sum()
    step = 1e-6 * direction
    differences = (slope(query + step) - slope(query - step)) / 2e-6
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("wide", [False, True])
def test_nan_in_padding_reaches_nothing(wide: bool) -> None:
    with bits(wide):
        query, key, value = arrays(np.float32)
        lengths = jnp.asarray([1, 2, 5])
        padding = jnp.arange(T_K)[:, None] >= lengths[:, None, None]
        key, value = (jnp.where(padding, jnp.nan, x) for x in (key, value))

        def total(*xs: jax.Array) -> jax.Array:
            return attention(*xs, valid_lens=lengths).sum()

        for call in (jax.grad(total, argnums=(0, 1, 2)), jax.jit(jax.grad(total, (0, 1, 2)))):
            for x in call(query, key, value):
                assert jnp.isfinite(x).all()
                assert x.dtype == np.float32


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2**32 + 1, 2**63 - 1, -1, -(2**63)])
def test_dropout_is_that_of_numpy(seed: int, wide: bool) -> None:
    expected = in_numpy("ScaledDot", dropout=0.3, dropout_seed=seed)
    with bits(wide):
        query, key, value = arrays(np.float32)
        found = attention(query, key, value, dropout=0.3, dropout_seed=seed)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wide", [False, True])
def test_known_answers_of_philox(wide: bool) -> None:
    """Philox gives the vector that Random123 publishes for philox4x32, 10 rounds."""
    with bits(wide):
        counter = [
            jnp.asarray(x, np.uint32) for x in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
        ]
        key = jnp.asarray(0xA4093822, np.uint32), jnp.asarray(0x299F31D0, np.uint32)
        found = [int(x) for x in philox(load("jax"), counter, key)]
    assert found == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_keys_as_seeds() -> None:
    """A typed key as seed drops the same weights, traced or not; another key drops others."""
    query, key, value = arrays()

    def call(seed: jax.Array) -> jax.Array:
        return attention(query, key, value, dropout=0.5, dropout_seed=seed)

    first, second = jax.random.split(jax.random.key(0))
    np.testing.assert_allclose(call(first), jax.jit(call)(first), rtol=1e-9, atol=1e-12)
    assert not np.array_equal(call(first), call(second))


def test_dropout_without_a_seed() -> None:
    with pytest.raises(ValueError, match=r"dropout_seed.*jax\.random\.key"):
        attention(*arrays(), dropout=0.5)


def test_lengths_beyond_32_bits() -> None:
    with bits(False):
        query, key, value = arrays(np.float32)
        everything = attention(query, key, value)
        for lengths in (2**40, [2**40] * B, np.full(B, 2**62)):
            found = attention(query, key, value, valid_lens=lengths)
            np.testing.assert_allclose(found, everything, rtol=1e-6)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_unsigned_lengths(make: Any, dtype: Any, wide: bool) -> None:
    """The largest length means all keys, not none."""
    with bits(wide):
        query, key, value = arrays(np.float32)
        lengths = make(np.full(B, np.iinfo(dtype).max if make is np.asarray else 2**32 - 1, dtype))
        found = attention(query, key, value, valid_lens=lengths)
        np.testing.assert_allclose(found, attention(query, key, value), rtol=1e-6)


@pytest.mark.parametrize("n", [math.nan, 2.5])
def test_lengths_are_whole_numbers(n: float) -> None:
    """Traced lengths cannot be refused: fractions are rounded up, NaN means no keys."""
    given = jnp.full(B, n)
    for lengths in (given, [n] * B):
        with pytest.raises(ValueError, match=f"valid_lens holds {n}, expected whole numbers"):
            attention(*arrays(), valid_lens=lengths)
    found = jax.jit(lambda lengths: attention(*arrays(), valid_lens=lengths))(given)
    expected = attention(*arrays(), valid_lens=[0 if n != n else 3] * B)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_devices_and_layouts() -> None:
    xp, x = load("jax"), jnp.eye(2)
    one, other = (jax.device_put(x, device) for device in jax.devices()[:2])
    assert xp.device(one) == str(jax.devices()[0]) != xp.device(other) != None  # noqa: E711
    assert xp.device(x) is None
    jax.jit(lambda x: [xp.device(x)] and x)(one)
    seen = []
    jax.jit(lambda x: seen.append((xp.device(x), xp.layout_problem(x))))(one)
    assert seen == [(None, None)]
    assert xp.layout_problem(x) is None
    assert xp.layout_problem(BCOO.fromdense(x)) == "a sparse BCOO array: pass x.todense()"


def test_kinds_are_not_mixed() -> None:
    query, key, value = arrays()
    with pytest.raises(TypeError, match=r"JAX.*NumPy"):
        attention(query, np.asarray(key), value)
    with pytest.raises(TypeError, match=r"JAX.*NumPy|NumPy.*JAX"):
        attention(query, key, value, score=Additive(None, None, np.ones(D)))
