"""Normalizers and their gradients, and the sigmoid, in each instruction set of the core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from anyscore import Causal, attention
from anyscore.modifiers.normalizers import sparse
from anyscore.ops import load
from core.raw import core

pytestmark = pytest.mark.sample

XP = load("numpy")
POWERS = pytest.mark.parametrize("power", [1, 2])
ISAS = pytest.mark.parametrize("isa", core.isas())


def rows(kind: str, keys: int, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(keys)
    if kind == "geometric":  # each Newton step drops few keys
        made = -np.broadcast_to(2.0 ** np.arange(-keys, 0), (5, keys)) * [[2**e] for e in range(5)]
    else:
        size = {"normal": 2.0, "equal": 0.0, "narrow": 1e-4, "wide": 1e4}[kind]
        made = 3 + size * rng.standard_normal((5, keys))
        made[1, rng.random(keys) < 0.5] = -math.inf
        made[2] = -math.inf
    return np.ascontiguousarray(made, dtype)


def weights(power: int, s: np.ndarray, threads: int = 1) -> np.ndarray:
    made = np.full_like(s, math.nan)
    core.sparse(power, s, made, threads)
    return made


@pytest.mark.sanitize
@ISAS
@POWERS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["normal", "equal", "narrow", "wide", "geometric"])
def test_weights(power: int, dtype: str, isa: str, kind: str) -> None:
    core.use(isa)
    near = 64 * np.finfo(dtype).eps
    for keys in (1, 2, 3, 15, 16, 17, 64, 100, 1000):
        s = rows(kind, keys, dtype)
        with np.errstate(all="ignore"):
            exact = sparse(XP, s.astype("float64"), power)
        found = weights(power, s)
        np.testing.assert_allclose(found, exact, rtol=0, atol=near)
        assert not found[s == -math.inf].any()
        sums = found[np.isfinite(s).any(-1)].sum(-1, dtype="float64")
        np.testing.assert_allclose(sums, 1, rtol=0, atol=near * math.sqrt(keys))


@pytest.mark.sanitize
@ISAS
@POWERS
def test_gradients(power: int, isa: str) -> None:
    core.use(isa)
    rng = np.random.default_rng(0)
    for keys in (1, 5, 40):
        s, upstream = rows("normal", keys, "float64"), rng.standard_normal((5, keys))
        found = np.full_like(s, math.nan)
        upstream[1, s[1] == -math.inf] = math.nan  # a key of weight 0
        core.sparse_backward(power, weights(power, s), upstream, found, 1)
        for at in np.ndindex(*s.shape):
            both = []
            for step in (1e-6, -1e-6):
                moved = s.copy()
                moved[at] += step
                w = weights(power, moved)[at[0]]
                both.append((w * np.where(w > 0, upstream[at[0]], 0)).sum())
            assert math.isclose(found[at], (both[0] - both[1]) / 2e-6, abs_tol=2e-6)


@pytest.mark.sanitize
@POWERS
def test_what_is_not_finite(power: int) -> None:
    s = np.zeros((4, 20), "float32")
    s[1, 3], s[2, 4] = math.nan, math.inf
    s[:, :2] = -math.inf
    found = weights(power, s)
    assert np.isnan(found[1:3, 2:]).all()
    assert not found[:, :2].any()
    np.testing.assert_allclose(found[[0, 3], 2:], 1 / 18, rtol=1e-6)
    slopes = np.empty_like(s)
    core.sparse_backward(power, found, np.ones_like(s), slopes, 1)
    assert np.isnan(slopes[1:3, 2:]).all()
    assert not slopes[:, :2].any()


@POWERS
def test_threads_change_no_bit(power: int) -> None:
    s = np.random.default_rng(0).standard_normal((300, 100)).astype("float32")
    assert np.array_equal(weights(power, s), weights(power, s, threads=3))


@pytest.mark.sanitize
@ISAS
def test_the_sigmoid(isa: str) -> None:
    core.use(isa)
    rng = np.random.default_rng(0)
    for queries, keys in ((1, 5), (2, 70), (70, 65)):
        xs = [rng.standard_normal((2, n, 9)) for n in (queries, keys, keys)]
        for mask in (None, Causal("end"), rng.random((1, queries, keys)) < 0.5):
            given: dict[str, Any] = {"mask": mask, "normalizer": "sigmoid"}
            found, exact = (attention(*xs, impl=impl, **given) for impl in ("fused", "reference"))
            np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-13)


S, W = np.zeros((2, 3), "float32"), np.zeros((2, 3), "float32")
WRONG: list[tuple[tuple[Any, ...], str]] = [
    ((3, S, W), "power must be 1 or 2"),
    ((1, S.astype("float64"), W), "s must have the type"),
    ((1, S[:1], W), "s "),
    ((1, S, W.astype("float16")), "float32 or float64"),
    ((1, S, W.T), "the result"),
]


@pytest.mark.parametrize(("args", "message"), WRONG)
def test_wrong_calls(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        core.sparse(*args, 1)
