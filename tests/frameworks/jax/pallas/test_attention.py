"""In JAX's transformations, interpreted Pallas kernels agree with the definition to rounding."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from anyscore import (
    Additive,
    Causal,
    Score,
    Trilinear,
    attention,
    log_weights,
    plan,
    scores,
)
from anyscore.kernels import tried
from anyscore.kernels.pallas import attention as pallas
from anyscore.score.factors import Factors
from frameworks.jax.agreement import agree
from frameworks.jax.pallas.pallas_calls import SOFTSIGN, equations
from helpers import far_rows
from helpers.by_pair import by_pair
from helpers.samples import normal

pytestmark = pytest.mark.sample

B, H, T_Q, T_K, D, D_V = 2, 4, 5, 35, 3, 2
LENGTHS = jnp.array([0, 33])
SEEDS = {"dropout": 0.4, "dropout_seed": 7}


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", True)


def arrays(kv_heads: int = 2) -> tuple[jax.Array, ...]:
    shapes = (B, H, T_Q, D), (B, kv_heads, T_K, D), (B, kv_heads, T_K, D_V)
    return tuple(jnp.asarray(normal(*shape)) for shape in shapes)


@dataclass(frozen=True, eq=False)
class Softsign(Score):
    """A user's score with a pair of the user."""

    w: Any
    formula: ClassVar[str] = "w·softsign(q − k)"
    equal_widths: ClassVar[bool] = True

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, SOFTSIGN, weight=self.w, scale=0.5)


PARAMETERS = tuple(jnp.asarray(normal(*shape)) for shape in ((6, D), (6, D), (6,), (D,)))
SCORES: dict[str, Callable[..., Score]] = {
    "additive": lambda *p: Additive(*p[:3]),
    "own": lambda *p: Softsign(p[3]),
    "trilinear": lambda *p: Trilinear(p[3], p[3] * 2, p[3] + 1),
}


def total(impl: str, score: str = "additive", **options: Any) -> Callable[..., jax.Array]:
    """Return a function whose number depends on query, key, value and the parameters."""

    def of(query: jax.Array, key: jax.Array, value: jax.Array, *given: jax.Array) -> jax.Array:
        masked = {"valid_lens": LENGTHS, "return_lse": True, **options}
        built = SCORES[score](*(given or PARAMETERS))
        found = attention(query, key, value, score=built, impl=impl, **masked)
        lse = jnp.where(jnp.isfinite(found.lse), found.lse, 0.0)
        return (found.output**2).sum() + jnp.sin(lse).sum()

    return of


EVERYTHING = tuple(range(7))


@by_pair("score", SCORES)
def test_first_derivatives(score: str) -> None:
    """Compiled gradients agree under a mask of two kinds; a user's pair agrees with dropout too."""
    args = (*arrays(), *PARAMETERS)
    assert plan(*args[:3], score=SCORES[score](*PARAMETERS)).route == "pallas"
    mask = Causal("end") & (jnp.arange(T_K)[None] % 5 > 0)
    options = {"mask": mask, **(SEEDS if score == "own" else {})}
    agree(lambda impl: jax.jit(jax.grad(total(impl, score, **options), EVERYTHING))(*args))


def test_second_derivatives() -> None:
    """The definition differentiates first derivatives of the kernels."""
    args = (*arrays(), *PARAMETERS)

    def second(*args: jax.Array, impl: str) -> jax.Array:
        first = jax.grad(total(impl, "own"), EVERYTHING)(*args)
        return sum((x**3).sum() for x in first)

    compiled = jax.jit(jax.grad(second, EVERYTHING), static_argnames="impl")
    agree(lambda impl: compiled(*args, impl=impl), 1e-9)


def one(impl: str) -> Callable[..., jax.Array]:
    def of(q: jax.Array, k: jax.Array, v: jax.Array, n: Any, seed: Any = None) -> jax.Array:
        drop = {"dropout": 0.5, "dropout_seed": seed} if seed is not None else {}
        score = Additive(*PARAMETERS[:3])
        return attention(q, k, v, score=score, valid_lens=n, impl=impl, **drop)

    return of


@pytest.mark.slow
def test_vmap() -> None:
    """Each element of a batch has a seed; gradients batch twice, with shared operands."""
    q, k, v = arrays(H)
    seeds = jax.random.split(jax.random.key(0), B)
    agree(lambda impl: jax.jit(jax.vmap(one(impl)))(q, k, v, LENGTHS, seeds))

    def slopes(impl: str) -> Any:
        def squared(q: jax.Array, k: jax.Array, v: jax.Array, n: Any) -> jax.Array:
            return (one(impl)(q, k, v, n) ** 2).sum()

        inner = jax.vmap(jax.grad(squared, (0, 1, 2)), (0, 0, None, None))
        return jax.jit(jax.vmap(inner, (0, None, None, 0)))(q, k[0], v[0, 0], LENGTHS)

    agree(slopes)


@pytest.mark.slow
def test_scan_and_checkpoint() -> None:
    q, k, _ = arrays(H)
    score = Additive(*PARAMETERS[:3])

    def repeated(q: jax.Array, impl: str) -> jax.Array:
        @jax.checkpoint
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return attention(x, k, score=score, value=k, impl=impl), None

        return (jax.lax.scan(step, q, None, length=3)[0] ** 2).sum()

    agree(lambda impl: jax.jit(jax.grad(partial(repeated, impl=impl)))(q))


def test_weights_and_eager_calls() -> None:
    """Eager calls in bfloat16 agree, and weights come from a kernel of their own."""
    args = [x.astype(jnp.bfloat16) for x in arrays()]
    score = SCORES["own"](PARAMETERS[0], None, None, PARAMETERS[3].astype(jnp.bfloat16))
    call = partial(attention, *args, score=score, valid_lens=LENGTHS, return_weights=True)
    agree(lambda impl: [x.astype(np.float32) for x in call(impl=impl)[:2]], 1e-2)


@pytest.mark.parametrize("sizes", [(0, T_Q, T_K), (2, 0, T_K), (2, T_Q, 0)])
def test_nothing(sizes: tuple[int, int, int]) -> None:
    b, t_q, t_k = sizes
    query, key, value = jnp.ones((b, t_q, D)), jnp.ones((b, t_k, D)), jnp.ones((b, t_k, D_V))

    def call(key: jax.Array) -> jax.Array:
        return attention(query, key, value, score=Additive(*PARAMETERS[:3]), impl="fused")

    assert call(key).shape == (b, t_q, D_V)
    found = jax.grad(lambda key: call(key).sum())(key)
    assert found.shape == key.shape
    assert not found.any()


def test_memory() -> None:
    """Neither a forward nor a backward holds an array of queries × keys entries."""
    queries, keys = 1009, 2003
    q, k = jnp.ones((queries, D)), jnp.ones((keys, D))

    def largest(impl: str) -> int:
        def of(q: jax.Array, k: jax.Array) -> jax.Array:
            score = Softsign(PARAMETERS[3])
            return attention(q, k, k, mask=Causal("end"), score=score, impl=impl).sum()

        made = equations(jax.make_jaxpr(jax.grad(of, (0, 1)))(q, k).jaxpr)
        return max(getattr(x.aval, "size", 0) for equation in made for x in equation.outvars)

    assert largest("fused") < queries * keys / 20
    assert largest("reference") >= queries * keys * D


MESH = jax.make_mesh((2, 2), ("batch", "heads"), axis_types=(AxisType.Auto,) * 2)
SPREAD = PartitionSpec("batch", "heads")


@pytest.mark.slow
def test_spread_over_devices() -> None:
    """Each device computes its part, with dropout, and gathers nothing."""
    call = jax.jit(jax.grad(total("fused", **SEEDS), EVERYTHING))
    spread = [jax.device_put(x, NamedSharding(MESH, SPREAD)) for x in arrays()]
    compiled = call.lower(*spread, *PARAMETERS).compile()
    assert not re.findall(r"all-gather|all-to-all|collective-permute", compiled.as_text())
    reference = jax.jit(jax.grad(total("reference", **SEEDS), EVERYTHING))
    found, exact = compiled(*spread, *PARAMETERS), reference(*arrays(), *PARAMETERS)
    for x, y in zip(found, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)


def test_the_switch_allows_exponentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, kernels compute tanh of every element, as they did on a GPU."""
    args, score = [x.astype(jnp.float32) for x in arrays()], Additive(None, None, jnp.ones(D, "f4"))
    names, reasons = [], []
    for switch in ("0", "1"):
        monkeypatch.setenv(tried.SWITCH, switch)
        call = jax.make_jaxpr(lambda *xs: attention(*xs, score=score))(*args)
        names.append({x.primitive.name for x in equations(call.jaxpr)})
        reasons.append(plan(*args, score=score).reason)
    assert "tanh" in names[0]
    assert "exp" in names[1]
    way = "exponentials of each token, which no GPU has run"
    assert reasons[0].endswith(f"; ANYSCORE_UNTRIED=1 would allow {way}")
    assert reasons[0].startswith(reasons[1])


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    args = arrays()
    callable_ = plan(*args[:1] * 3, score=lambda q, k: q @ k.swapaxes(-1, -2))
    assert callable_.reason.startswith("pallas: the score is a callable; cpu:")
    monkeypatch.setattr(pallas, "INTERPRET", False)
    assert plan(*args).route == "cpu"
    assert plan(*args, score=Softsign(PARAMETERS[3])).reason == (
        "cpu: it does not know the pair 'softsign'; "
        "pallas: it runs on NVIDIA GPUs, Ampere or later, and the arrays are on the CPU"
    )


@pytest.mark.slow
def test_rows_far_from_0() -> None:
    """Rows of −1e9 and of finite minima are as exact as others."""
    q, k, value, bias, upstream = map(jnp.asarray, far_rows.example(T_K).values())

    @jax.jit
    def run(value: Any, bias: Any) -> tuple[Any, dict[str, Any]]:
        options = {"score": Additive(None, None, jnp.ones(4, jnp.float32)), "impl": "fused"}
        output, back = jax.vjp(lambda v, b: attention(q, k, v, bias=b, **options), value, bias)
        found = dict(zip(("output", "d_value", "d_bias"), (output, *back(upstream)), strict=True))
        found |= {"log_weights": log_weights(q, k, bias=bias, **options)}
        return scores(q, k, bias=bias, **options), found

    s, found = run(value, bias)
    found = {name: np.asarray(x) for name, x in found.items()}
    far_rows.check(*map(np.asarray, (s, value, upstream)), **found)
