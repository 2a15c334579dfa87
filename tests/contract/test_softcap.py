"""Capped scores, s → c · tanh(s / c), of every score, in the definition and in the core."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Causal, Dot, Lengths, attention, plan
from helpers import machine, oracle
from helpers.by_pair import by_pair
from helpers.samples import NAMES, OUTER, make_score, normal

pytestmark = pytest.mark.sample

B, H, KV, T_Q, T_K, D, D_V = 2, 4, 2, 3, 7, 5, 2
CORE = pytest.param(
    "fused",
    marks=machine.needs_core,
)
IMPL = pytest.mark.parametrize("impl", ["reference", CORE])
ROWS = by_pair(
    ("name", "impl"),
    [(name, "reference") for name in NAMES]
    + [pytest.param(x, *CORE.values, marks=CORE.marks) for x in NAMES if x not in OUTER],
)


def inputs(scale: float = 2.0) -> list[np.ndarray]:
    return [scale * normal(B, H, T_Q, D), scale * normal(B, KV, T_K, D), normal(B, KV, T_K, D_V)]


@ROWS
@pytest.mark.parametrize("cap", [0.3, 30.0])
def test_values(name: str, cap: float, impl: str) -> None:
    """Output, weights and log-sum-exp are the formula's, with a query bias inside the cap."""
    xs, score, mask = inputs(), make_score(name), Causal("end") & Lengths([4, 0])
    exact = oracle.attend(*xs, score, mask, softcap=cap)
    found = attention(
        *xs, score=score, mask=mask, softcap=cap, return_weights=True, return_lse=True, impl=impl
    )
    for x, y in zip((found.output, found.weights, found.lse), exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-13)


@ROWS
def test_gradients(name: str, impl: str) -> None:
    """First and second derivatives, parameters' included, agree with finite differences."""
    made = make_score(name).map(torch.tensor)
    names, given = zip(*made.tensors().items(), strict=True) if made.tensors() else ((), ())
    xs = [torch.tensor(x) for x in inputs(1.0)] + list(given)
    xs = [x.double().requires_grad_() for x in xs]

    def run(*xs: torch.Tensor) -> Any:
        parameters = dict(zip(names, xs[3:], strict=True))
        score = type(made)(**{**vars(made), **parameters})
        out = attention(
            *xs[:3], score=score, mask=Causal("end"), softcap=0.7, dropout=0.3, dropout_seed=5,
            return_lse=True, impl=impl,
        )  # fmt: skip
        return out.output, out.lse

    assert torch.autograd.gradcheck(run, xs, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, xs, fast_mode=True)


@IMPL
def test_what_is_masked_is_not_capped_into_attention(impl: str) -> None:
    """Masked NaN and ∞ change no result; a query without keys has output 0 and log-sum-exp −∞."""
    q, k, v = (torch.tensor(x) for x in inputs())
    k[:, :, 4:], v[:, :, 4:] = math.nan, math.inf
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = attention(
        *leaves, valid_lens=[4, 0], softcap=0.5, return_weights=True, return_lse=True, impl=impl
    )
    assert (out.weights[0, ..., 4:] == 0).all()
    assert (out.output[1] == 0).all()
    assert (out.weights[1] == 0).all()
    assert (out.lse[1] == -math.inf).all()
    for gradient in torch.autograd.grad(out.output.sum() + out.lse[0].sum(), leaves):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


@IMPL
def test_a_large_cap_is_none(impl: str) -> None:
    xs = inputs()
    capped, plain = (attention(*xs, softcap=cap, impl=impl) for cap in (1e9, 0.0))
    np.testing.assert_allclose(capped, plain, rtol=1e-12)


@machine.needs_core
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("queries", [1, 2, 3])
def test_half_precision_and_decoding(dtype: Any, queries: int) -> None:
    """Fused results in half precision are the definition's on the same rounded inputs."""
    q, k, v = (torch.tensor(x).to(dtype) for x in inputs())
    options: dict[str, Any] = {"softcap": 1.5, "return_lse": True, "return_weights": True}
    score = make_score("Additive").map(lambda x: torch.tensor(x).to(dtype))
    for kind in (score, Dot()):
        fused, exact = (
            attention(q[..., :queries, :], k, v, score=kind, **options, impl=impl)
            for impl in ("fused", "reference")
        )
        for x, y in zip(fused, exact, strict=True):
            torch.testing.assert_close(x, y, rtol=2 * torch.finfo(dtype).eps, atol=2e-6)


@machine.needs_core
def test_plans() -> None:
    """A cap excludes PyTorch's own attention, which has none; the core takes a query bias."""
    q, k, v = (torch.tensor(x, dtype=torch.float16) for x in inputs())
    square = v[..., :1].expand(*v.shape[:-1], D)
    assert plan(q, k, square).route == "sdpa"
    assert plan(q, k, square, softcap=1.0).route == "cpu"
    score = make_score("Trilinear").map(lambda x: torch.tensor(x).half())
    assert plan(q, k, v, score=score, softcap=1.0).route == "cpu"


@by_pair("name", OUTER)
def test_a_second_outer_function_is_for_the_definition(name: str) -> None:
    assert plan(*inputs(), score=make_score(name)).route == "cpu"
    found = plan(*inputs(), score=make_score(name), softcap=2.0)
    assert found.route == "reference"
    assert "would be a second outer function" in found.reason


@pytest.mark.parametrize("wrong", [True, "1", None, [1.0]])
def test_a_cap_that_is_no_number(wrong: Any) -> None:
    with pytest.raises(TypeError, match="softcap must be a number"):
        attention(*inputs(), softcap=wrong)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, 1e-31, 1e31, 10**400])
def test_a_cap_that_cannot_be(wrong: float) -> None:
    with pytest.raises(ValueError, match="softcap must be"):
        attention(*inputs(), softcap=wrong)


@pytest.mark.parametrize("impl", ["fused", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cap", [1e-30, 1e30])
def test_the_least_and_the_largest_cap(cap: float, dtype: str, impl: str) -> None:
    """A tiny cap makes scores almost 0, and outputs means of values; a huge cap changes nothing."""
    q, k, v = (x.astype(dtype) for x in inputs())
    q[..., 0, :] = 0
    expected = attention(q, k, v, impl=impl)
    if cap < 1:
        means = v.mean(-2, keepdims=True).repeat(2, axis=1)  # one value head for two query heads
        expected = np.broadcast_to(means, expected.shape)
    found = attention(q, k, v, softcap=cap, impl=impl)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
