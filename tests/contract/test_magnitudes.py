"""The budget holds for inputs from 1e-2 to 1e4, for opposites and for offsets.

The budget is twice the plain formula's error, plus `BAND` roundings of the largest entry, plus one
of the sum of a score's terms. With 1e9 in an exponent, no float32 is near.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Cosine, GATv2, Gaussian, Score, attention
from helpers import oracle, plain
from helpers.budget import (
    EPS,
    assert_gradients_within_budget,
    assert_near,
    assert_within_budget,
    size,
)
from helpers.by_pair import by_pair
from helpers.cases import SCORES, case
from helpers.oracle_gradients import gradients, largest_terms
from helpers.table_scores import row_of

pytestmark = pytest.mark.sample

Change = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]

CHANGES: dict[str, Change] = {
    "0.01": lambda q, k, v: (q * 1e-2, k * 1e-2, v * 1e-2),
    "1": lambda q, k, v: (q, k, v),
    "100": lambda q, k, v: (q * 1e2, k * 1e2, v * 1e2),
    "10000": lambda q, k, v: (q * 1e4, k * 1e4, v * 1e4),
    "mixed": lambda q, k, v: (q * 1e4, k * 1e-2, v),
    "opposite": lambda q, k, v: (q * 0.1 + 50, k * 0.1 - 50, v),
    "constant": lambda q, k, v: (q * 0 + 50, k * 0 - 50, v),
    "shifted": lambda q, k, v: (q + 1e3, k + 1e3, v + 1e3),
}
BAND = 32
"""Roundings of the largest entry; a scale for each head, folded in early, measured 23."""


def tensors_of(score: str, mask: str, change: str, dtype: str) -> tuple[list[np.ndarray], Any, Any]:
    """Return ([query, key, value] in `dtype` with float32's numbers, score, masking arguments)."""
    c = case(score, "heads", mask)
    data = [np.float32(x).astype(dtype) for x in CHANGES[change](c.query, c.key, c.value)]
    return (
        data,
        c.score.build(c.parameters, partial(np.asarray, dtype=dtype)),
        c.masking(np.asarray),
    )


def sum_of_terms(query: np.ndarray, key: np.ndarray, score: Any) -> float:
    """Return the largest sum of a score's |terms|, which bounds its rounding."""
    kind = type(score).__name__
    if kind == "Cosine":
        return float(np.max(1 / score.tau))
    if kind == "Lorentz":
        return _terms_of_lorentz(query, key, score)
    if row_of(score).pair not in ("squared", "absolute"):
        query, key = np.abs(query), np.abs(key)
        if isinstance(score, Score):
            score = score.map(np.abs)
    if kind == "Additive":
        score = GATv2(score.W_q, score.W_k, score.w_v)
    if kind == "Concat":
        W_q, W_k = score.W[..., : query.shape[-1]], score.W[..., query.shape[-1] :]
        score = GATv2(W_q, W_k, score.w_v)
    return size(plain.scores(np, query, key, score))


def _terms_of_lorentz(query: np.ndarray, key: np.ndarray, score: Any) -> float:
    """Return the largest sum of |terms| (squares, heights) times arcosh's slope."""
    sigma = np.asarray(score.sigma, float)[..., None, None]
    x, y = query / sigma, np.repeat(key, query.shape[-3] // key.shape[-3], -3) / sigma
    heights = [np.sqrt(1 + (z * z).sum(-1)) for z in (x, y)]
    apart = heights[0][..., :, None] - heights[1][..., None, :]
    square = ((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)
    u = np.maximum((square - apart**2) / 2, 1e-300)
    terms = square + apart**2 + 2 * np.abs(apart) * max(z.max() for z in heights)
    return float(score.scale * (terms / 2 / np.sqrt(u * (u + 2))).max())


@pytest.mark.parametrize("mask", ["none", "four"])
@pytest.mark.parametrize("change", CHANGES)
@by_pair("score", SCORES)
def test_values(score: str, change: str, mask: str) -> None:
    """Scores and weights may be off by an eps of the sum of a score's terms."""
    for dtype in ("float32", "float64"):
        data, built, masking = tensors_of(score, mask, change, dtype)
        exact = oracle.attend(*data, built, **masking)
        keep = oracle.allowed(masking["mask"], exact.lse.shape[:-1], *exact.weights.shape[-2:])
        terms = sum_of_terms(*data[:2], built)
        for xp, to in ((np, np.asarray), (torch, torch.as_tensor)):
            tensors = [to(x) for x in data]
            f = built.map(to) if isinstance(built, Score) else built
            same = plain.attend(xp, *tensors, f, to(keep))
            found = attention(*tensors, score=f, **masking, return_weights=True, return_lse=True)
            for what, actual, expected, simple in zip(
                found._fields, found, exact, same, strict=True
            ):
                band = BAND * size(expected) + terms * (size(data[2]) if what == "output" else 1)
                assert_within_budget(actual, expected, simple, what, dtype, band)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@by_pair("score", SCORES)
def test_gradients(score: str, change: str) -> None:
    """Gradients in float32 are within the budget, with a mask and queries without keys. Values have
    unit size: an offset of values cancels in the gradient of the weights in every formula.
    """
    data, built, masking = tensors_of(score, "four", change, "float32")
    data[2] = case(score, "heads", "four").value
    rng = np.random.default_rng(0)
    lead = (*data[0].shape[:-1],)
    d_output, d_lse = rng.standard_normal((*lead, data[2].shape[-1])), rng.standard_normal(lead)
    terms = sum_of_terms(*data[:2], built)
    expected = gradients(*data, built, d_output, d_lse, **masking)
    leaf = lambda x: torch.tensor(x).requires_grad_()  # noqa: E731
    f = built.map(leaf) if isinstance(built, Score) else built
    inputs = dict(zip(("query", "key", "value"), map(leaf, data), strict=True))
    inputs |= f.tensors() if isinstance(f, Score) else {}
    sides = [torch.tensor(x, dtype=torch.float32) for x in (d_output, d_lse)]
    tensors = [inputs[name] for name in ("query", "key", "value")]
    keep = oracle.allowed(masking["mask"], lead[:-1], lead[-1], data[1].shape[-2])
    found = attention(*tensors, score=f, **masking, return_lse=True)
    output, _, lse = plain.attend(torch, *tensors, f, torch.as_tensor(keep))
    actual = torch.autograd.grad([found.output, found.lse], list(inputs.values()), sides)
    same = torch.autograd.grad([output, lse], list(inputs.values()), sides)
    assert_gradients_within_budget(
        dict(zip(inputs, actual, strict=True)),
        expected,
        dict(zip(inputs, same, strict=True)),
        lambda: largest_terms(*data, built, d_output, d_lse, **masking),
        {name: (BAND + terms) * size(x) for name, x in expected.items()},
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cosine_of_zero_vectors(dtype: Any) -> None:
    """The cosine of a zero vector is 0, with a gradient of 0; other vectors keep their scores."""
    rng = np.random.default_rng(0)
    query, key, value = (
        torch.tensor(rng.standard_normal((2, n, 3)), dtype=dtype) for n in (3, 5, 5)
    )  # fmt: skip
    query[:, 1], key[:, 2] = 0, 0
    inputs = [x.requires_grad_() for x in (query, key, value)]
    found = attention(*inputs, score=Cosine(tau=0.5), return_weights=True, return_lse=True)
    exact = oracle.attend(*inputs, Cosine(tau=0.5))
    near = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(dtype, 1e-6)
    for what, actual, expected in zip(found._fields, found, exact, strict=True):
        assert_near(actual, expected, near * size(expected), what)
    assert_near(found.weights[:, 1], np.full((2, 5), 0.2), near)
    grads = torch.autograd.grad(found.output.square().sum() + found.lse.sum(), inputs)
    assert not grads[0][:, 1].any()
    assert not grads[1][:, 2].any()
    assert all(x.isfinite().all() and x.any() for x in grads)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-19, 1e19, 1e30])
def test_cosine_of_tiny_and_huge_vectors(magnitude: float, dtype: str) -> None:
    """Cosines and gradients are exact for vectors with squares beyond the range of float32."""
    rng = np.random.default_rng(0)
    query, key = (magnitude * rng.standard_normal((2, n, 3)) for n in (5, 7))
    data = [x.astype(dtype) for x in (query, key, rng.standard_normal((2, 7, 11)))]
    sides = np.ones((2, 5, 11)), np.ones((2, 5))
    lengths = [3, 7]
    exact = oracle.attend(*data, Cosine(0.5), valid_lens=lengths)
    slopes = gradients(*data, Cosine(0.5), *sides, valid_lens=lengths)
    inputs = {
        name: torch.tensor(x).requires_grad_()
        for name, x in zip(("query", "key", "value"), data, strict=True)
    }
    found = attention(**inputs, score=Cosine(0.5), valid_lens=lengths, return_lse=True)
    of_numpy = attention(*data, score=Cosine(0.5), valid_lens=lengths, return_lse=True)
    grads = torch.autograd.grad(found.output.sum() + found.lse.sum(), list(inputs.values()))
    for result in (found, of_numpy):
        assert_near(result.output, exact.output, 16 * EPS[dtype] * size(exact.output), "output")
        assert_near(result.lse, exact.lse, 16 * EPS[dtype] * size(exact.lse), "lse")
    for name, x in zip(inputs, grads, strict=True):
        assert_near(x, slopes[name], 32 * EPS[dtype] * size(slopes[name]), f"gradient of {name}")


@pytest.mark.parametrize("lengths", [None, [6, 7]])
@pytest.mark.parametrize("xp", [np, torch])
def test_gaussian_on_far_clusters(xp: Any, lengths: Any) -> None:
    """Squared distances at ±1e4 keep all digits; q² + k² − 2qk would lose all."""
    rng = np.random.default_rng(0)
    sign = rng.choice([-1.0, 1.0], (2, 5 + 7, 1))
    tokens = (1e4 * sign + rng.standard_normal((2, 5 + 7, 3))).astype(np.float32)
    query, key = tokens[:, :5], tokens[:, 5:]
    value = rng.standard_normal((2, 7, 11)).astype(np.float32)
    to = np.asarray if xp is np else torch.as_tensor
    tensors = [to(x) for x in (query, key, value)]
    exact = oracle.attend(query, key, value, Gaussian(1.5), valid_lens=lengths)
    found = attention(
        *tensors, score=Gaussian(1.5), valid_lens=lengths, return_weights=True, return_lse=True
    )
    for what, actual, expected in zip(found._fields, found, exact, strict=True):
        assert_near(actual, expected, 16 * EPS["float32"] * size(expected), what)
    assert ((exact.weights > 0.01) & (exact.weights < 0.99)).sum() > 10  # else nothing is tested
