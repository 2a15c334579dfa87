"""Calls reproduce results and promises of tutorials on attention scoring functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    Gaussian,
    ScaledDot,
    attention,
)
from anyscore.torch import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
    MLPAttention,
    masked_softmax,
)
from frameworks.torch.test_layers import score_of
from helpers.by_pair import by_pair
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

KEYS = torch.ones(2, 10, 2)
VALUES = torch.arange(40.0).reshape(1, 10, 4).repeat(2, 1, 1)
LENGTHS = torch.tensor([2, 6])
MEANS = torch.tensor([[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0, 13.0]]])


# Printed results: equal keys, valid lengths 2 and 6


@pytest.mark.parametrize(
    "layer",
    [
        DotProductAttention(dropout=0.5),
        MLPAttention(units=8, dropout=0.1),
        AdditiveAttention(num_hiddens=8, dropout=0.1),
        AdditiveAttention(key_size=2, query_size=2, num_hiddens=8, dropout=0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_equal_keys_average_the_valid_values(layer: Attention) -> None:
    layer.eval()
    output = layer(torch.ones(2, 1, 2), KEYS, VALUES, LENGTHS)
    torch.testing.assert_close(output, MEANS, rtol=0, atol=2e-6)
    weights = layer.attention_weights
    torch.testing.assert_close(weights[0, 0, :2], torch.full((2,), 1 / 2))
    torch.testing.assert_close(weights[1, 0, :6], torch.full((6,), 1 / 6))
    heatmap = weights.reshape(1, 1, 2, 10)
    assert (heatmap[0, 0, 0, 2:] == 0).all()
    assert (heatmap[0, 0, 1, 6:] == 0).all()


def test_equal_keys_in_numpy() -> None:
    output = attention(np.ones((2, 1, 2)), KEYS.double().numpy(), VALUES.double().numpy(),
                       valid_lens=np.array([2.0, 6.0]))  # fmt: skip
    np.testing.assert_allclose(output, MEANS.numpy(), rtol=1e-15)


@pytest.mark.parametrize("width", [2, 20])
def test_shapes_with_keys_of_width_2(width: int) -> None:
    layer = AdditiveAttention(num_hiddens=8, dropout=0.1).eval()
    queries, keys = torch.randn(2, 1, width), torch.randn(2, 10, 2)
    values = torch.randn(2, 10, 4)
    assert layer(queries, keys, values, LENGTHS).shape == (2, 1, 4)
    assert (layer.W_q.weight.shape, layer.W_k.weight.shape) == ((8, width), (8, 2))
    if width == 2:
        layer = DotProductAttention(dropout=0.5).eval()
        assert layer(queries, keys, values, LENGTHS).shape == (2, 1, 4)
    assert (layer.attention_weights[0, 0, 2:] == 0).all()
    assert (layer.attention_weights[1, 0, 6:] == 0).all()
    assert (layer.attention_weights[1, 0, :6] > 0).all()


# Printed results: the masked softmax

BY_BATCH = [
    [[[0.4448, 0.5552, 0.0, 0.0], [0.4032, 0.5968, 0.0, 0.0]],
     [[0.2795, 0.2805, 0.4400, 0.0], [0.2798, 0.3092, 0.4110, 0.0]]],
    [[[0.488994, 0.511006, 0.0, 0.0], [0.43654838, 0.56345165, 0.0, 0.0]],
     [[0.28817102, 0.3519408, 0.3598882, 0.0], [0.29034293, 0.25239873, 0.45725834, 0.0]]],
    [[[0.2914798, 0.7085202, 0.0, 0.0], [0.5130609, 0.48693904, 0.0, 0.0]],
     [[0.17453432, 0.4599773, 0.36548832, 0.0], [0.3574293, 0.3150612, 0.32750952, 0.0]]],
]  # fmt: skip
BY_QUERY = [
    [[[1.0, 0.0, 0.0, 0.0], [0.4109, 0.2794, 0.3097, 0.0]],
     [[0.3960, 0.6040, 0.0, 0.0], [0.2557, 0.1833, 0.2420, 0.3190]]],
    [[[1.0, 0.0, 0.0, 0.0], [0.35848376, 0.36588794, 0.2756283, 0.0]],
     [[0.54370314, 0.45629686, 0.0, 0.0], [0.19598779, 0.25580424, 0.19916737, 0.34904057]]],
    [[[1.0, 0.0, 0.0, 0.0], [0.31556115, 0.28214547, 0.40229338, 0.0]],
     [[0.5613054, 0.43869466, 0.0, 0.0], [0.29578257, 0.20095006, 0.2151548, 0.28811258]]],
]  # fmt: skip
PRINTED = [(x, [2, 3]) for x in BY_BATCH] + [(x, [[1, 3], [2, 4]]) for x in BY_QUERY]


@pytest.mark.parametrize(("printed", "lengths"), PRINTED)
@pytest.mark.parametrize("garbage", [0.0, 1e6, math.nan, math.inf, -math.inf])
def test_printed_masked_softmax(printed: Any, lengths: Any, garbage: float) -> None:
    """The softmax of the logarithms of printed weights gives the printed weights."""
    expected = torch.tensor(printed)
    x = torch.where(expected > 0, expected.log(), garbage)
    before = x.clone()
    weights = masked_softmax(x, torch.tensor(lengths))
    torch.testing.assert_close(weights, expected, rtol=0, atol=6e-5)
    assert ((weights == 0) == (expected == 0)).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2))
    assert torch.equal(x.nan_to_num(9.0), before.nan_to_num(9.0))
    numpy = attention(np.zeros((2, 2, 1)), np.zeros((2, 4, 1)), np.eye(4)[None],
                      score=lambda q, k: x.double().numpy(), valid_lens=lengths)  # fmt: skip
    np.testing.assert_allclose(numpy, expected, rtol=0, atol=6e-5)


def test_masked_softmax_is_right_where_large_negative_numbers_are_not() -> None:
    low = masked_softmax(torch.tensor([[[-3e6, -3e6, 0.0]]]), torch.tensor([2]))
    assert low.tolist() == [[[0.5, 0.5, 0.0]]]
    none = masked_softmax(torch.randn(1, 1, 3), torch.tensor([0]))
    assert none.tolist() == [[[0.0, 0.0, 0.0]]]
    half = masked_softmax(torch.zeros(1, 1, 4, dtype=torch.float16), torch.tensor([2]))
    assert half.dtype == torch.float16
    assert half.tolist() == [[[0.5, 0.5, 0.0, 0.0]]]
    x = torch.randn(2, 2, 4)
    torch.testing.assert_close(masked_softmax(x), x.softmax(-1))


# Formulas


def test_the_shape_of_a_batch_of_products() -> None:
    query, key = torch.ones(2, 3, 4), torch.ones(2, 4, 6).transpose(1, 2)
    assert attention(query, key, torch.ones(2, 6, 5), return_weights=True).weights.shape == (
        2,
        3,
        6,
    )
    lse = attention(query, key, torch.ones(2, 6, 5), score=Dot(), return_lse=True).lse
    torch.testing.assert_close(lse, torch.full((2, 3), 4 + math.log(6)))


def test_pooling_one_query_by_the_formulas() -> None:
    """f(q) = Σ α_i v_i, α_i = exp a(q, k_i) / Σ exp a(q, k_j)."""
    q, k, v = torch.randn(3).double(), torch.randn(5, 3).double(), torch.randn(5, 2).double()
    e = [math.exp(sum(x * y for x, y in zip(q, k_i, strict=True)) / math.sqrt(3)) for k_i in k]
    expected = sum(e_i / sum(e) * v_i for e_i, v_i in zip(e, v, strict=True))
    torch.testing.assert_close(attention(q[None], k, v)[0], expected)


def test_the_gaussian_kernel_is_a_dot_product_and_the_norms_of_the_keys() -> None:
    q, k, v = torch.randn(2, 3, 5).double(), torch.randn(2, 7, 5).double(), torch.randn(2, 7, 4)
    v = v.double()
    by_norms = attention(q, k, v, score=lambda q, k: q @ k.mT - 0.5 * k.square().sum(-1)[:, None])
    gaussian = attention(q, k, v, score=Gaussian(), return_weights=True)
    torch.testing.assert_close(by_norms, gaussian.output)
    kernel = torch.exp(-0.5 * torch.cdist(q, k) ** 2)
    torch.testing.assert_close(gaussian.weights, kernel / kernel.sum(-1, keepdim=True))
    normalised = torch.nn.functional.normalize(k, dim=-1)  # equal norms leave only the dot product
    torch.testing.assert_close(
        attention(q, normalised, v, score=Gaussian()), attention(q, normalised, v, score=Dot())
    )


def test_a_matrix_between_different_widths() -> None:
    q, k, M = torch.randn(2, 3, 5), torch.randn(2, 7, 4), torch.randn(5, 4)
    out = attention(q, k, k, score=Bilinear(M), return_weights=True)
    torch.testing.assert_close(out.weights, (q @ M @ k.mT).softmax(-1))
    scaled = attention(q, k, k, score=Bilinear(M, scale=1 / math.sqrt(5)))
    torch.testing.assert_close(scaled, (q @ M @ k.mT / math.sqrt(5)).softmax(-1) @ k)
    torch.testing.assert_close(
        attention(k, k, k, score=Bilinear(torch.eye(4))), attention(k, k, k, score=Dot())
    )


def test_scores_of_one_formula_are_equal() -> None:
    s, h = torch.randn(2, 3, 5), torch.randn(2, 7, 5)
    W, U, v = torch.randn(4, 5), torch.randn(4, 5), torch.randn(4)
    torch.testing.assert_close(
        attention(s, h, h, score=Additive(W, U, v)),
        attention(s, h, h, score=Concat(torch.cat([W, U], dim=1), v)),
    )
    unit_s, unit_h = (torch.nn.functional.normalize(x, dim=-1) for x in (s, h))
    torch.testing.assert_close(
        attention(s, h, h, score=Cosine()), attention(unit_s, unit_h, h, score=Dot())
    )


@pytest.mark.parametrize("d", [4, 64])
def test_the_variance_of_products(d: int) -> None:
    q, k = torch.randn(300, d), torch.randn(300, d)
    seen: dict[type, Tensor] = {}
    for score in (Dot(), ScaledDot()):
        # The log-sum-exp of a query with one key is the score of the key.
        lse = attention(q[:, None, None], k[None, :, None], k[None, :, None], score=score,
                        return_lse=True).lse  # fmt: skip
        assert lse.shape == (300, 300, 1)
        seen[type(score)] = lse
    assert seen[Dot].var().item() == pytest.approx(d, rel=0.2)
    assert seen[ScaledDot].var().item() == pytest.approx(1, rel=0.2)
    assert abs(seen[ScaledDot].mean().item()) < 0.1


@pytest.mark.slow
@by_pair(
    ("name", "variance"),
    [(name, row.variance) for name, row in TABLE.items() if row.variance is not None],
)
@pytest.mark.parametrize(("d", "hidden"), [(16, 16), (96, 16), (16, 96)])
def test_a_layer_starts_with_scores_of_variance_about_1(
    name: str, variance: float, d: int, hidden: int
) -> None:
    """The variance is over queries, keys and parameters, of 200 layers with 8 × 8 scores each."""
    scores, width = [], hidden if TABLE[name].hidden else None
    for _ in range(200):
        layer = Attention(name, hidden=width, d_q=d, d_k=d)
        q, k = torch.randn(8, 1, 1, d), torch.randn(1, 8, 1, d)
        with torch.no_grad():
            score = score_of(layer, name)
            scores.append(attention(q, k, k, score=score, return_lse=True).lse)
    assert torch.stack(scores).var().item() == pytest.approx(variance, rel=0.2)
