"""Half precision is accumulated in float32 and rounded in each tensor of the input's dtype.

Errors are against the oracle on the rounded inputs, in units of the dtype's eps times the largest
entry. One rounding is half an eps. Measured:

    largest error of                 weights   log-sum-exp   gradients
    scores that round the result        0.47          0.47        0.47
    scores that round a projection      1.4           0.6         2.7
    the plain callable                  1.4           1.2         1.6

The plain callable squares in half precision.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Cosine, Dot, Gaussian, Laplace, ScaledDot, Score, attention
from anyscore.functional.attention import plan
from helpers import oracle
from helpers.budget import EPS, assert_near, dtype_of, size
from helpers.by_pair import by_pair
from helpers.cases import OPTIONS, SCORES, case
from helpers.oracle_gradients import gradients

pytestmark = pytest.mark.sample

HALVES = ["torch.float16", "torch.bfloat16", "numpy.float16"]
if find_spec("ml_dtypes"):  # ml_dtypes gives NumPy a bfloat16
    HALVES.append("numpy.bfloat16")
EXACT_UNTIL_ROUNDED = {
    "dot", "scaled_dot", "scaled_dot_number", "scaled_dot_tensor", "scaled_dot_each", "gaussian",
    "gaussian_each", "laplace", "laplace_tensor", "additive_projected", "gatv2_projected",
}  # fmt: skip
ROWS = [
    (shape, mask)
    for shape in ("heads", "grouped_6_2", "broadcast", "rank_2")
    for mask in ("none", "four", "lengths_full")
]


def maker(half: str) -> Any:
    """Return a function that converts an array to the framework and dtype of `half`."""
    framework, dtype = half.split(".")
    if framework == "torch":
        return lambda x: torch.as_tensor(x).to(getattr(torch, dtype))
    if dtype == "bfloat16":
        return lambda x: np.asarray(x).astype(import_module("ml_dtypes").bfloat16)
    return lambda x: np.asarray(x).astype(dtype)


def allowance(score: str, what: str, half: str, exact: np.ndarray) -> float:
    eps = EPS[half.split(".")[1]]
    if score in EXACT_UNTIL_ROUNDED:
        roundings = 32 * EPS["float32"] if what == "lse" else 0.5 * eps + 32 * EPS["float32"]
    else:
        roundings = {"lse": 1.5, "output": 2.0, "weights": 2.0, "gradient": 4.0}[what] * eps
    return roundings * size(exact)


@pytest.mark.parametrize("half", HALVES)
@by_pair("score", [*SCORES, *OPTIONS])
def test_values(score: str, half: str) -> None:
    to = maker(half)
    for shape, mask in ROWS:
        c = case(score, shape, mask)
        tensors, built = [to(x) for x in (c.query, c.key, c.value)], c.score.build(c.parameters, to)
        # The numbers of a mask are in half precision too.
        masking = c.masking(lambda x: to(x) if x.dtype.kind == "f" else x)
        exact = oracle.attend(*tensors, built, **masking)
        found = attention(*tensors, score=built, **masking, return_weights=True, return_lse=True)
        for what, actual, expected in zip(found._fields, found, exact, strict=True):
            near = allowance(score, what, half, expected)
            dtype = "float32" if what == "lse" else half.split(".")[1]
            assert_near(actual, expected, near, f"{what}, {shape}, {mask}", dtype)


@cache
def projections(shape: str) -> tuple[torch.Tensor, torch.Tensor]:
    c = case("dot", shape, "none")
    generator = torch.Generator().manual_seed(3)
    lead = (*c.shape.lead, c.shape.queries)
    d_output = torch.randn(*lead, c.value.shape[-1], generator=generator)
    return d_output.bfloat16().half(), torch.randn(lead, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@by_pair("score", SCORES)
def test_gradients(score: str, dtype: Any) -> None:
    """Every score has an exact gradient of the values. GATv2 with projections has no other to
    check: its slope jumps at 0, and rounding may change the sign of a projection.
    """

    def leaf(x: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(x).to(dtype).requires_grad_()

    for shape, mask in ROWS[:6]:
        c, masking = case(score, shape, mask), case(score, shape, mask).masking(np.asarray)
        built = c.score.build(c.parameters, leaf)
        inputs = {name: leaf(getattr(c, name)) for name in ("query", "key", "value")}
        d_output, d_lse = projections(shape)
        expected = gradients(
            **inputs, score=built, d_output=oracle.numbers(d_output), d_lse=oracle.numbers(d_lse),
            **masking,
        )  # fmt: skip
        found = attention(**inputs, score=built, **masking, return_lse=True)
        inputs |= built.tensors() if isinstance(built, Score) else {}
        actual = torch.autograd.grad(
            [found.output, found.lse], list(inputs.values()), [d_output.to(dtype), d_lse]
        )
        for name, x in zip(inputs, actual, strict=True):
            assert dtype_of(x) == str(dtype)[6:]
            if score != "gatv2" or name == "value":
                near = allowance(score, "gradient", str(dtype), expected[name])
                assert_near(x, expected[name], near, f"gradient of {name}, {shape}, {mask}")


@pytest.mark.parametrize("score", [Dot(), ScaledDot(scale=1), Gaussian(0.5), Laplace(0.05)])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("lengths", [None, [2, 5]])
def test_scores_beyond_float16(score: Any, framework: str, lengths: Any) -> None:
    """Scores and log-sum-exp are float32: float16 is infinite above 65504."""
    to = maker(f"{framework}.float16")
    sign = 1 if isinstance(score, Dot | ScaledDot) else -1
    query, key = np.full((2, 3, 64), 100.0), np.full((2, 5, 64), sign * 100.0)
    key[:, 1] *= 0.5
    value = np.random.default_rng(0).standard_normal((2, 5, 64))
    tensors = to(query), to(key), to(value)
    exact = oracle.attend(*tensors, score, valid_lens=lengths)
    assert np.abs(exact.lse).min() > 65504
    found = attention(
        *tensors, score=score, valid_lens=lengths, return_weights=True, return_lse=True
    )
    for what, actual, expected in zip(found._fields, found, exact, strict=True):
        near = (EPS["float32"] if what == "lse" else EPS["float16"]) * size(expected)
        assert_near(actual, expected, near, what)
    alone = attention(*tensors, score=score, valid_lens=lengths)
    assert_near(alone, exact.output, EPS["float16"] * size(exact.output), dtype="float16")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("score", [Dot(), ScaledDot(), Cosine(0.5)])
def test_sdpa_in_half_precision(score: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        torch.tensor(rng.standard_normal((2, 3, n, 13))).to(dtype) for n in (5, 7, 7)
    )  # fmt: skip
    assert plan(q, k, v, score=score).route == "sdpa"
    exact = oracle.attend(q, k, v, score).output
    near = 1.5 * EPS[str(dtype)[6:]] * size(exact)
    assert_near(attention(q, k, v, score=score), exact, near, dtype=str(dtype)[6:])


def test_weights_of_many_keys_sum_in_float32() -> None:
    """Weights of many keys sum to 1. A sum of ones stops at 2048 in float16, at 256 in bfloat16."""
    for half in HALVES:
        to = maker(half)
        n = 5003
        query, key, value = to(np.zeros((1, 2))), to(np.zeros((n, 2))), to(np.ones((n, 1)))
        for lengths in (None, n, 3001):
            found = attention(query, key, value, valid_lens=lengths, return_lse=True)
            assert oracle.numbers(found.output).item() == pytest.approx(1.0, abs=1e-6), half
            assert oracle.numbers(found.lse).item() == pytest.approx(np.log(lengths or n), rel=1e-6)


@pytest.mark.parametrize("half", HALVES)
def test_the_allowance_can_be_exceeded(half: str) -> None:
    """A second rounding of half an eps fails where only the result may be rounded."""
    exact = np.array([[1.0, 0.5, -0.25]])
    near = allowance("dot", "output", half, exact)
    assert_near(exact, exact, near)
    with pytest.raises(AssertionError):
        assert_near(exact + np.array([[0, 0, 0.51 * EPS[half.split(".")[1]]]]), exact, near)
