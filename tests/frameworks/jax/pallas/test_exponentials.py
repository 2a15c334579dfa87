"""tanh by exponentials of tokens agrees with the literal formula, on each way through a tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from anyscore.kernels import tried
from anyscore.kernels.pallas.exponentials import FREE, SMALL, WIDE, exponentials
from frameworks.jax.pallas.pallas_calls import Call, check, draw, literal, run
from helpers.budget import error

pytestmark = pytest.mark.weekly

QUERIES, KEYS, WIDTH = 67, 75, 6
"""Two tiles of queries, three tiles of keys; features are padded to 8."""
OF_A_FOURTH, OF_A_HALF, BY_TANH = "a reciprocal for four", "a reciprocal for two", "tanh"


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tried.SWITCH, "1")


def call_of(a: Any, b: Any, weight: Any = None, **options: Any) -> Call:
    """Return a call of one problem with a (T_q, h), b (T_k, h), and weight (h,), 1/4 … by default.

    options: of `draw`.
    """
    given = {"key_bias": None, "dropout": 0.0, "outer": "", "lead": (1,), "scale": 0.5, "width": 3}
    sizes = {"queries": len(a), "keys": len(b), "hidden": a.shape[1]}
    call = draw(np.random.default_rng(2), "tanh", "none", "float32", **given | sizes | options)
    if weight is None:
        weight = np.where(np.arange(a.shape[1]) % 2, -1, 1) * np.linspace(0.25, 1, a.shape[1])
    a, b, weight = (np.asarray(x, np.float32)[None] for x in (a, b, weight))
    return replace(call, a=a, b=b, weight=weight)


def normals(spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a (67, 6) and b (75, 6) of a standard deviation."""
    rng = np.random.default_rng(seed)
    return tuple(spread * rng.standard_normal((n, WIDTH)) for n in (QUERIES, KEYS))  # type: ignore[return-value]


def ways(call: Call) -> set[str]:
    """Return the ways that tokens of the first tile of queries and of each tile of keys take."""
    given = {"a": call.a, "b": call.b, "weight": call.weight}
    made = exponentials({name: jnp.asarray(x) for name, x in given.items()}, call.groups)
    a, a_size = made.a_bounds[0, :, :64].max(-1)
    found = set()
    for first in range(0, call.keys, 32):
        b, b_size = made.b_bounds[0, :, first : first + 32].max(-1)
        far = b_size > WIDE or a_size == np.inf
        found.add(BY_TANH if far else OF_A_FOURTH if a + b <= FREE else OF_A_HALF)
    return found


@pytest.mark.parametrize(
    ("spread", "way"),
    [(0.05, OF_A_FOURTH), (1.0, OF_A_FOURTH), (3.0, OF_A_HALF), (20.0, BY_TANH)],
)
def test_each_way(spread: float, way: str) -> None:
    call = call_of(*normals(spread))
    assert ways(call) == {way}
    check(call)


def test_tiles_of_one_call_take_different_ways() -> None:
    """One query meets keys of each way; lengths, dropout and a cap do not change the ways."""
    a, b = normals(1.0)
    b[32:64] *= 4
    b[64:] = np.where(np.arange(64, KEYS) % 2, -30, 30)[:, None]  # their middle is 0
    options = {"outer": "tanh", "outer_scale": 2.0, "dropout": 0.3}
    for given in ({}, options):
        call = call_of(a, b, **given)
        assert ways(call) == {OF_A_FOURTH, OF_A_HALF, BY_TANH}
        check(replace(call, stop=np.where(np.arange(QUERIES) % 2, 70, 40)[None]))


@pytest.mark.parametrize("offset", [3.0, 40.0, -1e4])
def test_keys_far_from_0(offset: float) -> None:
    """Keys around a large number are as exact as keys around 0, and padded keys add nothing."""
    a, b = normals(4.0)
    a, b = (np.float32(x).astype(np.float64) for x in (a, b))
    call = call_of(a - offset, b[:65] + offset)
    assert ways(call) == {OF_A_HALF}
    check(call)


def test_saturated_numbers() -> None:
    """A feature beyond every exponent has tanh ±1 and no gradient, and spares its neighbour."""
    a, b = normals(1.0)
    a[::3, ::2], a[1::3, ::2] = 1e3, -1e3
    b[:, ::2] = np.linspace(-20, 20, KEYS)[:, None]
    call = call_of(a, b)
    assert ways(call) == {OF_A_HALF}
    d_a = check(call)["d_a"][0]
    assert not d_a[::3, ::2].any()
    assert d_a[::3, 1::2].all()


def test_no_tile_is_clamped_on_both_sides() -> None:
    """Keys at both ends: the product of a clamped A and a clamped B would be 1, and tanh is −1."""
    b = np.where(np.arange(KEYS) < 32, 0.0, 200.0)[:, None]
    call = call_of(np.linspace(-50, 10, QUERIES)[:, None], b, [1.0])
    assert ways(call) == {BY_TANH}
    check(call)


WEIGHTS = {
    "none": None,
    "zeros": np.zeros(WIDTH),
    "some zeros": np.array([0, 1, -2, 0, 0.5, -0.0]),
    "beyond the largest C": np.array([1e-12, -1, 1e-9, -1e-30, 0.3, 1e-38]),
    "large": np.array([1e30, -1e30, 2e30, 1e28, -1e25, 1]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str) -> None:
    call = call_of(*normals(1.0), WEIGHTS[name])
    call = replace(call, weight=None) if name == "none" else call
    check(replace(call, scale=1e-30) if name == "large" else call)


def test_weights_of_heads() -> None:
    """Query heads of one key head have weights of different signs."""
    rng, shapes = np.random.default_rng(4), {"a": (2, 4, 67, 6), "b": (1, 2, 40, 6)}
    call = draw(
        rng, "tanh", "causal", "float32", lead=(2, 4), groups=2, queries=67, keys=40, hidden=6
    )
    made = {n: rng.standard_normal(shape).astype("f") for n, shape in shapes.items()}
    weight = rng.standard_normal((1, 4, 6)).astype("f")
    weight[0, 1] = -weight[0, 0]
    check(replace(call, **made, weight=weight))


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_masked_keys_are_not_read(spread: float) -> None:
    """NaN, ±∞ and large numbers in masked keys change no result; their tiles take tanh itself."""
    a, b = normals(spread)
    stop = np.full((1, QUERIES), 20)
    clean = run(replace(call_of(a, b), stop=stop))
    for fill in (np.nan, np.inf, -1e30):
        b[20:] = fill
        call = replace(call_of(a, b), stop=stop)
        assert BY_TANH in ways(call)
        found = check(call)
        for name in ("output", "lse", "d_a", "d_weight"):
            np.testing.assert_allclose(found[name], clean[name], 2e-5, 2e-6, err_msg=name)


def test_small_numbers_and_the_weight() -> None:
    """A gradient of the weight is exact relative to itself, below `SMALL` and right above it."""
    for spread in (1e-6, SMALL / 20, SMALL / 4):
        call = call_of(*normals(spread))
        found, exact = run(call)["d_weight"], literal.run(call, np.float64)["d_weight"]
        assert error(found, exact) <= 1e-5 * np.abs(exact).max()
