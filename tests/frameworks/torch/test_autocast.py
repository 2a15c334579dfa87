"""Under autocast, calls have the dtypes of SDPA, and sums are still in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyscore import Cosine, Gaussian, Lengths, attention, plan
from anyscore.torch import Attention
from helpers.by_pair import by_pair
from helpers.samples import NAMES, PAIRS, leaves, make_score, normal

pytestmark = pytest.mark.sample

SCORES = by_pair("name", NAMES)
ONE_OF_EACH_PAIR = pytest.mark.parametrize("name", PAIRS)
LOW = [torch.bfloat16, torch.float16]


def single(name: str, *arrays: np.ndarray) -> tuple[Any, list[torch.Tensor]]:
    score = make_score(name).map(lambda x: x.astype("float32"))
    return leaves(score, *(x.astype("float32") for x in arrays))


def arrays() -> list[np.ndarray]:
    return [normal(2, 3, 5), normal(2, 7, 5), normal(2, 7, 5)]


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("valid_lens", [None, [0, 4]])
@SCORES
def test_output_is_as_sdpa_s(name: str, valid_lens: Any, low: torch.dtype) -> None:
    score, inputs = single(name, *arrays())
    with torch.autocast("cpu", dtype=low):
        expected = F.scaled_dot_product_attention(*inputs[:3]).dtype
        out = attention(
            *inputs[:3], score=score, valid_lens=valid_lens, return_weights=True, return_lse=True
        )
    assert out.output.dtype == expected == low
    assert out.weights.dtype == low
    assert out.lse.dtype == torch.float32
    gradients = torch.autograd.grad(out.output.float().sum(), inputs, materialize_grads=True)
    assert all(g.dtype == torch.float32 for g in gradients)
    assert all(torch.isfinite(g).all() for g in gradients)


@ONE_OF_EACH_PAIR
def test_float64_is_left_alone(name: str) -> None:
    score, inputs = leaves(make_score(name), *arrays())
    expected = attention(*inputs[:3], score=score, valid_lens=[3, 4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention(*inputs[:3], score=score, valid_lens=[3, 4])
    assert found.dtype == torch.float64
    assert torch.equal(found, expected)


def test_dtypes_that_differ_are_made_alike() -> None:
    """Dtypes become one, as in SDPA, for a float32 query beside bfloat16 from another layer."""
    q, k, v = map(torch.tensor, arrays())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q.float(), k.bfloat16(), v.half(), mask=Lengths([3, 4]))
    assert out.dtype == torch.bfloat16


def test_disabled_autocast_changes_nothing() -> None:
    q, k, v = (torch.tensor(x).float() for x in arrays())
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert attention(q, k, v).dtype == torch.float32


@pytest.mark.parametrize("low", LOW)
@SCORES
def test_equals_the_call_on_rounded_inputs(name: str, low: torch.dtype) -> None:
    """Autocast rounds inputs; no operation inside has less precision than without autocast."""
    score, inputs = single(name, *arrays())
    with torch.autocast("cpu", dtype=low):
        found = attention(*inputs[:3], score=score, valid_lens=[3, 4], return_lse=True)
    rounded = [x.detach().to(low) for x in inputs[:3]]
    expected = attention(
        *rounded,
        score=score.map(lambda x: x.detach().to(low if x.ndim else x.dtype)),
        valid_lens=[3, 4],
        return_lse=True,
    )
    assert torch.equal(found.output, expected.output)
    assert torch.equal(found.lse, expected.lse)


@SCORES
def test_close_to_float32(name: str) -> None:
    score, inputs = single(name, *arrays())
    expected = attention(*inputs[:3], score=score)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention(*inputs[:3], score=score)
    assert (found - expected).abs().max() < 0.1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["Dot", "Trilinear", "Gaussian", "Additive"])
def test_sums_are_in_float32(name: str, masked: bool) -> None:
    """A score is right to float32's precision if bfloat16 holds the inputs exactly.

    A sum over 1,031 keys in bfloat16 would err by per cents.
    """
    keys = 1031
    rng = np.random.default_rng(0)
    q, k = (rng.integers(-3, 4, (1, t, 5)).astype("float32") / 4 for t in (3, keys))
    v = np.ones((1, keys, 5), "float32")
    score = make_score(name, h=3).map(lambda x: np.round(x * 4).astype("float32") / 4)
    given = score.map(torch.tensor)
    mask = Lengths(keys - 1) if masked else None
    tensors = [torch.tensor(x) for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(*tensors, score=given, mask=mask, return_lse=True)
    wide = score.map(lambda x: x.astype("float64"))
    exact = attention(
        *(x.astype("float64") for x in (q, k, v)), score=wide, mask=mask, return_lse=True
    )
    # As in any layer, the factors (projections, products with w_p) are rounded to bfloat16.
    np.testing.assert_allclose(out.lse.numpy(), exact.lse, atol={"Dot": 2e-6}.get(name, 2e-2))
    assert (out.output == 1).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["ScaledDot", "Gaussian", "Additive"])
def test_gradients_are_in_float32_within_too(name: str, masked: bool) -> None:
    """Gradients are the same if the backward runs inside the context or after it."""
    mask = normal(3, 7) > -1 if masked else None
    found = []
    for inside in (False, True):
        score, inputs = single(name, *arrays())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = attention(*inputs[:3], score=score, mask=mask).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        found.append([x.grad for x in inputs])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_plan_sees_what_autocast_makes_of_the_call() -> None:
    q, k, v = (torch.tensor(x).float() for x in arrays())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plan(q, k, v).route == "sdpa"
        assert plan(q, k, v, valid_lens=[3, 4]).route == "cpu"


def test_a_callable_with_parameters_under_autocast() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return self.linear(q) @ k.mT

    layer, x = Attention(Score()), torch.randn(2, 3, 4)
    expected = layer(x, x)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("score", [Gaussian, Cosine])
def test_autocast_does_not_round_scales(score: Any) -> None:
    x = torch.randn(2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        number = attention(x, x, x, score=score(3.0199), return_lse=True).lse
        tensor = attention(x, x, x, score=score(torch.tensor(3.0199)), return_lse=True).lse
    torch.testing.assert_close(number, tensor)


def test_integers_are_refused_under_autocast_too() -> None:
    x = torch.ones(2, 3, 4, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="query is int64"):
        attention(x, x, x)
