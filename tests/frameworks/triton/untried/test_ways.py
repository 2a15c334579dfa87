"""The ways of the kernels to one score agree: by norms, by absolute values, and by the pair itself.

The definition in float64 judges, on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import (
    Causal,
    Euclidean,
    GATv2,
    Gaussian,
    Lengths,
    StudentT,
    attention,
    scores,
)
from anyscore.kernels.triton import call
from helpers.samples import normal

pytestmark = pytest.mark.weekly

TOKENS = 131
HALF = torch.bfloat16, torch.float16
INFINITIES = torch.inf, -torch.inf


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(normal(*shape)).to(dtype)


def exact(query: Tensor, key: Tensor, score: Any) -> Tensor:
    wide = score.map(lambda x: x.double())
    return scores(query.double(), key.double(), score=wide, impl="reference")


DISTANCES: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: Gaussian(2.0),
    "learned": lambda: Gaussian(torch.tensor([1.5, 3.0])),
    "student": lambda: StudentT(1.5),
    "euclidean": Euclidean,
}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize(("offset", "width"), [(0.0, 7), (40.0, 7), (3.0, 131)])
def test_squared_distances(name: str, dtype: torch.dtype, offset: float, width: int) -> None:
    """Tokens far from 0, equal tokens and wide tokens have scores that are off by 2^−13."""
    query = drawn(1, 2, 70, width, dtype=dtype) + offset
    key = drawn(1, 1, TOKENS, width, dtype=dtype) + offset
    key[0, 0, :35] = query[0, 0, :35]
    score = DISTANCES[name]()
    found, expected = scores(query, key, score=score, impl="fused"), exact(query, key, score)
    rounding = torch.finfo(found.dtype).eps * expected.abs()
    assert ((found.double() - expected).abs() <= 2**-13 + rounding).all()
    assert (found <= 0).all()


@pytest.mark.parametrize("name", DISTANCES)
def test_gradients_of_squared_distances(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums by products agree with the definition, in bands of problems and of keys too."""
    tensors = [drawn(*shape) for shape in ((3, 2, 70, 7), (3, 1, TOKENS, 7), (3, 1, TOKENS, 2))]
    rounded = [x.bfloat16() for x in tensors]
    score, side = DISTANCES[name](), drawn(3, 2, 70, 2)

    def gradients(impl: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in rounded]
        own = score.map(lambda x: x.to(torch.promote_types(dtype, x.dtype)).requires_grad_())
        output = attention(*leaves, score=own, mask=Causal("end"), impl=impl)
        leaves += own.tensors().values()
        return list(torch.autograd.grad((output * side.to(dtype)).sum(), leaves))

    truth = gradients("reference", torch.float64)
    for limits in ({}, {"BAND_BYTES": 70 * 128 * 4, "LEAST_BAND": 64, "PROGRAMS": 1}):
        for limit, number in limits.items():
            monkeypatch.setattr(call, limit, number)
        for one, other in zip(gradients("fused", torch.bfloat16), truth, strict=True):
            assert (one.double() - other).abs().max() <= 2**-6 * other.abs().max()


@pytest.mark.parametrize("name", ["gaussian", "euclidean", "leaky_relu"])
def test_what_nobody_reads_changes_no_bit(name: str) -> None:
    """Padding may send a tile another way, and its other scores keep their way."""
    dtype = torch.float32 if name == "leaky_relu" else torch.bfloat16
    score = GATv2(None, None, drawn(7)) if name == "leaky_relu" else DISTANCES[name]()
    query, key, value = (drawn(1, 1, n, 7, dtype=dtype) for n in (5, 70, 70))
    options = {"score": score, "mask": Lengths([60]), "return_lse": True, "impl": "fused"}
    expected = attention(query, key, value, **options)
    for fill in (torch.nan, *INFINITIES, 1e30):
        key[..., 60:, 3:5] = fill
        found = attention(query, key, value, **options)
        assert torch.equal(found.output, expected.output), fill
        assert torch.equal(found.lse, expected.lse), fill


WEIGHTS = {
    "both signs": [0.5, -1.0, 2.0, 0.0, -0.25, 1.0, 0.125, 3.0, -2.0, 1.0, 0.5],
    "negative": [-1.0] * 9,
    "positive": [0.5] * 16,
    "one": [-2.0],
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("fill", [None, *INFINITIES, torch.nan])
def test_leaky_relu(name: str, fill: float | None) -> None:
    """Any signs of weights give the definition's scores, and infinities too."""
    w = torch.tensor(WEIGHTS[name])
    query, key = drawn(2, 2, 5, len(w)), drawn(2, 1, TOKENS, len(w))
    if fill is not None:
        key[0, 0, 40, 0] = query[1, 1, 2, -1] = fill
    heads = torch.stack([w, -2 * w.flip(0)])
    score = GATv2(None, None, heads)
    found, expected = scores(query, key, score=score, impl="fused"), exact(query, key, score)
    close = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(found.double(), expected, **close)
