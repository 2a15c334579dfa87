"""Calls with defects that random tests have found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anyscore import Gaussian, Lorentz, attention, log_sum_exp, scores
from helpers.samples import normal

pytestmark = pytest.mark.sample


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_biases_are_added_in_the_dtype_of_sums(dtype: torch.dtype) -> None:
    xs = [torch.tensor(normal(2, n, 3), dtype=dtype) for n in (4, 6, 6)]
    biases = [torch.tensor(30 * normal(4, 6, seed=i), dtype=dtype) for i in range(2)]
    given = {"bias": biases[0], "bias_after": biases[1]}
    found, right = (
        log_sum_exp(*xs[:2], score=Gaussian(), **given, impl=impl)
        for impl in ("fused", "reference")
    )
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)


def test_a_number_of_numpy_is_a_number() -> None:
    query, key = (normal(1, n, 3).astype(np.float32) for n in (2, 4))
    found = log_sum_exp(query, key, score=Lorentz(sigma=np.float64(2.0)))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, log_sum_exp(query, key, score=Lorentz(sigma=2.0)))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_nan_in_a_query_of_all_reaches_those_that_attend_alone(impl: str) -> None:
    query = torch.full((1, 1, 8), torch.nan)
    key, value = (torch.tensor(normal(3, 2, n), dtype=torch.float32) for n in (8, 2))
    sigma = torch.ones(3, requires_grad=True)
    output = attention(
        query, key, value, score=Gaussian(sigma), valid_lens=[[2], [0], [-1]], impl=impl
    )
    (slope,) = torch.autograd.grad(output.nansum() + output[1:].sum(), [sigma])
    assert output[0].isnan().all()
    assert (output[1:] == 0).all()
    assert (slope[1:] == 0).all()


def test_a_sink_that_float32_cannot_hold_is_refused() -> None:
    x = normal(1, 2, 3).astype(np.float32)
    with pytest.raises(ValueError, match=r"sink must be finite in float32, got 1e\+200"):
        attention(x, x, x, sink=1e200)


def test_an_array_is_no_normalizer() -> None:
    x = normal(1, 2, 3)
    with pytest.raises(TypeError, match=r"normalizer must be one of 'softmax', .*got array"):
        attention(x, x, x, normalizer=np.zeros(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [16, 65])
def test_squared_distances_of_tokens_with_an_offset_are_exact(width: int) -> None:
    """Distances of tokens with an offset have (a − b)²'s error, not 25 times it (a² + b² − 2ab)."""
    rng, eps = np.random.default_rng(0), 2.0**-23
    for _ in range(40):
        offset = rng.normal(size=width)
        query, key = (offset + 0.3 * rng.normal(size=(7, width)) for _ in range(2))
        query, key = query.astype(np.float32), key.astype(np.float32)
        distances = np.square(query[:, None].astype(np.float64) - key).sum(-1)
        largest_parts = sum(np.square(x, dtype=np.float64).sum(-1).max() for x in (query, key))
        sigma = np.float32(np.sqrt((largest_parts - distances.min()) / 23))  # 11.5 above the least
        if largest_parts > 4 * distances.max():
            exact = -distances / (2 * np.float64(sigma) ** 2)
            error = np.abs(scores(query, key, score=Gaussian(sigma)) - exact).max()
            assert error < 12 * eps


@pytest.mark.parametrize("number", [np.float16, np.float32, np.longdouble])
def test_numbers_of_numpy_do_not_warn(number: type[np.floating]) -> None:
    x = normal(1, 2, 3)
    for score in (Gaussian(sigma=number(2)), Lorentz(sigma=number(2), scale=number(1))):
        attention(x, x, x, score=score, softcap=number(3) if type(score) is Gaussian else 0.0)
