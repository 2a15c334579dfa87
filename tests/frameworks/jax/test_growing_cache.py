"""Growing caches in JAX are differentiable, and one program runs all steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import ALiBi, Cache, Causal, GATv2, Score, Window, attention, make_cache
from anyscore.jax import MultiHeadAttention
from helpers import machine
from helpers.samples import PAIRS, make_score, normal

B, H, KV, T, D, D_V = 2, 4, 2, 7, 5, 3
WITH_A_BIAS = pytest.mark.parametrize("name", [*PAIRS, "Trilinear"])
"""One score of each pair, and a score whose keys have a bias."""
SOME = pytest.mark.parametrize("name", ["Additive", "GATv2", "Trilinear", "ScaledDot"])


def inputs(dtype: Any = "float64") -> list[jax.Array]:
    sizes = (H, D), (KV, D), (KV, D_V)
    made = (normal(B, n, T, width, seed=i) for i, (n, width) in enumerate(sizes))
    return [jnp.asarray(x, dtype) for x in made]


def score_of(name: str, dtype: Any = "float64") -> Score:
    return make_score(name).map(lambda x: jnp.asarray(x, dtype))


def fixed(score: Score) -> Score:
    """Return the score with a number as slope: a compiled function has a tracer as slope."""
    return GATv2(score.W_q, score.W_k, score.w_v) if isinstance(score, GATv2) else score


def step(cache: Cache, q: Any, k: Any, v: Any, score: Score, bias: Any = None) -> Any:
    score = fixed(score)
    cache = cache.append(k, v, score=score)
    return cache, cache.attend(q, score=score, bias=bias)


def same(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [None, 3])
@WITH_A_BIAS
def test_one_program_for_all_steps(name: str, window: int | None) -> None:
    (q, k, v), score, traces = inputs(), score_of(name), 0

    @partial(jax.jit, donate_argnums=0)
    def compiled(*args: Any) -> Any:
        nonlocal traces
        traces += 1
        return step(*args)

    capacity = T if window is None else window
    cache = make_cache(k[..., :0, :], v[..., :0, :], score, capacity=capacity, window=window)
    mask = Causal() if window is None else Window(window - 1, 0)
    expected = attention(q, k, v, score=score, mask=mask, bias=ALiBi())
    for t in range(T):
        one = (x[..., t : t + 1, :] for x in (q, k, v))
        cache, found = compiled(cache, *one, score, ALiBi())
        same(found, expected[..., t : t + 1, :])
    assert traces == 1
    assert int(cache.length) == T


@SOME
def test_chunks_without_a_compiler(name: str) -> None:
    (q, k, v), score = inputs(), score_of(name)
    cache = make_cache(k[..., :2, :], v[..., :2, :], score, capacity=9)
    expected = attention(q, k, v, score=score, mask=Causal())
    for part in (slice(2, 5), slice(5, 7)):
        before = cache
        cache, found = step(cache, *(x[..., part, :] for x in (q, k, v)), score)
        same(found, expected[..., part, :])
        assert int(before.length) == part.start  # a step changes no earlier cache


@SOME
def test_a_scan_and_its_gradients(name: str) -> None:
    """A scan over steps has the gradients of one call, for keys, values and parameters."""
    inputs_, score = inputs(), score_of(name)

    def by_steps(q: Any, k: Any, v: Any, score: Score) -> jax.Array:
        cache = make_cache(k[..., :0, :], v[..., :0, :], fixed(score), capacity=T + 2)
        tokens = [jnp.moveaxis(x, -2, 0)[..., None, :] for x in (q, k, v)]

        def body(cache: Cache, token: Any) -> Any:
            return step(cache, *token, score)

        found: jax.Array = jax.lax.scan(body, cache, tuple(tokens))[1]
        return jnp.moveaxis(found[..., 0, :], 0, -2)

    def at_once(q: Any, k: Any, v: Any, score: Score) -> jax.Array:
        found: jax.Array = attention(q, k, v, score=fixed(score), mask=Causal())
        return found

    found = []
    for run in (by_steps, at_once):

        def loss(*args: Any, run: Any = run) -> jax.Array:
            squares: jax.Array = run(*args) ** 2
            return squares.sum()

        slope = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
        found.append([run(*inputs_, score), *jax.tree.leaves(slope(*inputs_, score))])
    for x, y in zip(*found, strict=True):
        same(x, y, 1e-8)


def test_vmap() -> None:
    score, (q, *others) = score_of("Additive"), inputs()
    k, v = (jnp.repeat(x, H // KV, 1) for x in others)  # rank 3 has no heads to share

    def run(q: Any, k: Any, v: Any) -> Any:
        cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=T)
        return step(cache, q[..., 3:, :], k[..., 3:, :], v[..., 3:, :], score)[1]

    expected = attention(q, k, v, score=score, mask=Causal())[..., 3:, :]
    same(jax.jit(jax.vmap(run))(q, k, v), expected)
    caches = jax.vmap(lambda k, v: make_cache(k[:, :3], v[:, :3], score, capacity=T))(k, v)
    rest = (x[..., 3:, :] for x in (q, k, v))
    found = jax.jit(jax.vmap(lambda c, *x: step(c, *x, score)[1]))(caches, *rest)
    same(found, expected)


@SOME
def test_beams(name: str) -> None:
    (q, k, v), score = inputs(), score_of(name)
    cache = make_cache(k, v, score, capacity=T + 1)
    for beams in ([1, 0], [1, 1]):
        index = jnp.asarray(beams)
        expected = attention(q, k[index], v[index], score=score, mask=Causal())
        for run in (Cache.reorder, jax.jit(Cache.reorder)):
            same(run(cache, index).attend(q, score=score), expected)
    for wrong in (2, -1, -2):
        beyond = jax.jit(Cache.reorder)(cache, jnp.asarray([0, wrong])).attend(q, score=score)
        same(beyond[0], attention(q, k, v, score=score, mask=Causal())[0])
        assert jnp.isnan(beyond[1]).all()
    with pytest.raises(ValueError, match=r"beams\[1\] is 2, expected 0 ≤ beam < 2"):
        cache.reorder(jnp.asarray([0, 2]))


@SOME
def test_what_does_not_fit(name: str) -> None:
    (q, k, v), score = inputs(), score_of(name)
    cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=4)
    one = [x[..., :1, :] for x in (q, k, v)]
    compiled = jax.jit(step)
    cache, found = compiled(cache, *one, score)
    assert not jnp.isnan(found).any()
    with pytest.raises(ValueError, match="full: 4 of 4 tokens are there, got 1 more"):
        step(cache, *one, score)
    for _ in range(2):
        cache, found = compiled(cache, *one, score)
        assert jnp.isnan(found).all()


def test_a_number_that_becomes_a_tracer() -> None:
    (_, k, v), score = inputs(), score_of("GATv2")
    cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=9)
    with pytest.raises(ValueError, match="is an argument of a compiled function"):
        jax.jit(lambda cache, score: cache.append(k, v, score=score))(cache, score)
    jax.jit(lambda cache: cache.append(k[..., 3:, :], v[..., 3:, :], score=score))(cache)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    (q, k, v), score = inputs(dtype), score_of("Additive", dtype)
    cache = make_cache(k[..., :2, :], v[..., :2, :], score, capacity=9)
    found = jax.jit(step)(cache, *(x[..., 2:, :] for x in (q, k, v)), score)[1]
    expected = attention(q, k, v, score=score, mask=Causal())[..., 2:, :]
    assert found.dtype == dtype
    tolerance = 0.02 if dtype == "bfloat16" else 1e-5
    same(found.astype("float32"), expected.astype("float32"), tolerance)


def test_packed_keys_go_along_and_elsewhere() -> None:
    """Exports pack keys by the definition; a cache goes into an exported program and back."""
    (q, k, v), score = inputs("float32"), score_of("Additive", "float32")
    cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=T)
    if cache.packed is None:
        pytest.skip(machine.CORE)
    one = [x[..., 3:4, :] for x in (q, k, v)]
    exported = jax.export.export(jax.jit(step))(cache, *one, score)
    expected = attention(q, k, v, score=score, mask=Causal())
    again = jax.export.deserialize(exported.serialize())
    cache, found = again.call(cache, *one, score)
    same(found, expected[..., 3:4, :], 1e-5)
    cache, found = jax.jit(step)(cache, *(x[..., 4:5, :] for x in (q, k, v)), score)
    same(found, expected[..., 4:5, :], 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"score": "additive", "kv_heads": 2, "softcap": 2.0, "sink": True},
        {"score": "gaussian", "project_output": False, "bias": False},
    ],
)
def test_a_layer_step_by_step(options: dict[str, Any]) -> None:
    layer, x = MultiHeadAttention(16, 4, **options), jnp.asarray(normal(2, 7, 16), "float32")
    params = layer.init(jax.random.key(0), x)
    at_once = layer.apply(params, x, mask=Causal(), bias=ALiBi())
    cache, found = layer.make_cache(params, batch=2, capacity=9), []
    compiled = jax.jit(layer.step)
    for t in range(7):
        output, cache = compiled(params, x[:, t : t + 1], cache, bias=ALiBi())
        found.append(output)
    same(jnp.concatenate(found, 1), at_once, 1e-5)
