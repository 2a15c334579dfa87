"""A length n of any type and value attends the keys j < n."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from anyscore import Causal, Interval, Keys, Lengths, attention
from helpers.samples import allowed, normal, where
from helpers.transformed import WARNINGS

B, H, T_Q, T_K, D = 2, 3, 5, 7, 2
FRAMEWORKS = ["numpy", "torch"]

pytestmark = [pytest.mark.sample, *WARNINGS]


FULL = normal(B, T_Q, T_K) > 0
KEYS = np.array([[1, 0, 1, 1, 0, 0, 1], [0, 1, 1, 0, 1, 1, 0]], bool)


@pytest.mark.parametrize(
    "dtype",
    [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    + [f"float{bits}" for bits in (16, 32, 64)],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_lengths_of_any_type(dtype: str, framework: str) -> None:
    """Lengths of every dtype are exact, also where T_k exceeds the dtype's largest number."""
    n = np.array([3, 100]).astype(dtype)
    given = torch.tensor(n) if framework == "torch" else n
    for keys in (T_K, 307):
        expected = where(lambda b, i, j: j < (3, 100)[b], (B,), T_Q, keys)
        assert (allowed(Lengths(given), framework, (B,), T_Q, keys) == expected).all()
        assert (allowed(Lengths(n), framework, (B,), T_Q, keys) == expected).all()


def test_lengths_of_bfloat16() -> None:
    expected = where(lambda b, i, j: j < (3, 256)[b], (B,), T_Q, 307)
    n = torch.tensor([3, 256], dtype=torch.bfloat16)
    assert (allowed(Lengths(n), "torch", (B,), T_Q, 307) == expected).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint8", "int8", "float16", "float64"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_lengths_at_the_limits_of_their_type(dtype: str, framework: str) -> None:
    limits = np.finfo(dtype) if "float" in dtype else np.iinfo(dtype)
    n = np.array([limits.min, limits.max], dtype)
    given = torch.tensor(n) if framework == "torch" else n
    kept = allowed(Lengths(given), framework)
    assert not kept[0].any()
    assert kept[1].all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("n", "attended"),
    [
        (0, 0), (-1, 0), (1, 1), (T_K, T_K), (T_K + 1, T_K), (10**12, T_K), (-(10**12), 0),
        (0.0, 0), (3.0, 3), (1e30, T_K), (-1e30, 0), (math.inf, T_K), (-math.inf, 0),
    ],
)  # fmt: skip
def test_lengths_clamp(n: float, attended: int, framework: str) -> None:
    """Key j is attended if j < n; a negative length attends no key."""
    given = torch.tensor(n) if framework == "torch" else np.array(n)
    for x in (n, [n], given, given[None]):
        kept = allowed(Lengths(x), framework)
        assert (kept == where(lambda b, i, j: j < attended)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_valid_lens_are_lengths_intersected_with_the_mask(framework: str) -> None:
    q, k = normal(B, T_Q, D), normal(B, T_K, D)
    if framework == "torch":
        q, k = torch.tensor(q), torch.tensor(k)
    for mask in (FULL, Causal("end"), Keys(KEYS)):
        one = attention(q, k, k, mask=mask, valid_lens=[4, 6])
        other = attention(q, k, k, mask=Lengths([4, 6]) & mask)
        assert (np.asarray(one) == np.asarray(other)).all()
    one, other = attention(q, k, k, valid_lens=[4, 6]), attention(q, k, k, mask=Lengths([4, 6]))
    assert (np.asarray(one) == np.asarray(other)).all()


def test_lengths_beyond_64_bits() -> None:
    x = np.random.randn(2, 4, 3)
    np.testing.assert_array_equal(attention(x, x, x, valid_lens=2**70), attention(x, x, x))
    np.testing.assert_array_equal(attention(x, x, x, valid_lens=-(2**70)), 0 * x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [math.nan, 2.5, 0.5, -0.5])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_lengths_are_whole_numbers(framework: str, n: float, dtype: str) -> None:
    """A length with a fraction or NaN raises."""
    array = np.array([3, n], dtype)
    given = [array, [3, n]] + ([torch.tensor(array)] if framework == "torch" else [])
    for x in given:
        for mask, name in (
            (Lengths(x), "valid_lens"), (Interval(x, None), "start"), (Interval(stop=x), "stop"),
        ):  # fmt: skip
            with pytest.raises(ValueError, match=f"^{name} holds {n}, expected whole numbers: "):
                allowed(mask, framework)


@pytest.mark.slow
def test_lengths_that_are_not_known_are_rounded_up() -> None:
    """A compiled call rounds lengths up and takes NaN for 0, as a compiler sees no values."""
    q, k = torch.ones(2, T_Q, D), torch.tensor(normal(2, T_K, D), dtype=torch.float32)
    run = torch.compile(lambda n: attention(q, k, k, valid_lens=n), backend="eager")
    found = run(torch.tensor([2.5, math.nan]))
    torch.testing.assert_close(found[:1], attention(q[:1], k[:1], k[:1], valid_lens=[3]))
    assert (found[1] == 0).all()
