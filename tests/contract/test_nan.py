"""Masked tokens are not read. NaN in an attended token reaches its queries and no others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore import Additive, Causal, Interval, Keys, Lengths, Window, attention
from anyscore.torch import MultiHeadAttention
from helpers.by_pair import by_pair
from helpers.samples import NAMES, PAIRS, WIDTH, gradients, leaves, make_score, normal

pytestmark = pytest.mark.sample

B, H, T_Q, T_K, D_V = 2, 4, 3, 7, 11
FILLS = [math.nan, math.inf, -math.inf]

SCORES = by_pair("name", NAMES)
ONE_OF_EACH_PAIR = pytest.mark.parametrize("name", PAIRS)
FILL = pytest.mark.parametrize("fill", FILLS)


def run(name: str, mask: Any, arrays: list[np.ndarray], **options: Any) -> tuple[Any, list[Any]]:
    """Return the AttentionOutput and all gradients, parameters' included."""
    score, inputs = leaves(make_score(name), *arrays)
    options = {"return_weights": True, "return_lse": True, **options}
    out = attention(*inputs[:3], score=score, mask=mask, **options)
    return out, gradients(out, inputs)


def attendable(mask: Any, lead: tuple[int, ...]) -> np.ndarray:
    """Return the attended pairs, boolean (*lead, T_q, T_k), from attention over zeros."""
    zeros = [np.zeros((*lead, t, WIDTH)) for t in (T_Q, T_K, T_K)]
    return attention(*zeros, mask=mask, return_weights=True).weights > 0


def same(found: Any, expected: Any) -> None:
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)


def run_unread(
    name: str, mask: Any, arrays: list[np.ndarray], unread: list[np.ndarray], fill: float
) -> tuple[Any, list[Any]]:
    """Fill the unread rows of the arrays; assert that no result and no gradient changes."""
    for array, rows in zip(arrays, unread, strict=True):
        array[rows] = 0
    expected, clean = run(name, mask, arrays)
    for array, rows in zip(arrays, unread, strict=True):
        array[rows] = fill
    found, gradient = run(name, mask, arrays)
    same(found, expected)
    same(gradient, clean)
    return found, gradient


GAPS = np.array([[1, 1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 1, 0, 1]], bool)
ROWS = normal(B, T_Q, T_K) > 0.3
ROWS[:, :, 5], ROWS[1, 2] = False, False
EACH_HEAD = normal(B, H, T_Q, T_K) > 0
EACH_HEAD[..., 5], EACH_HEAD[1, :, 2], EACH_HEAD[0, 3, 1] = False, False, False

UNREAD = {
    "lengths": Lengths([4, 6]),
    "an empty batch": Lengths([0, 5]),
    "keys": Keys(ROWS[:, 0]),
    "interval": Interval([2, 3], [5, 3]),
    "gaps": GAPS,
    "causal": Causal("start") & Lengths([2, 9]),
    "window": Window(0, 1, "start"),
    "boolean": ROWS,
    "nothing": np.zeros((1, 1), bool),
}


@FILL
@pytest.mark.parametrize("which", UNREAD)
@SCORES
def test_what_nobody_attends_is_not_read(name: str, which: str, fill: float) -> None:
    """Keys and values without queries, and queries without keys, are not read."""
    mask = UNREAD[which]
    keep = attendable(mask, (B,))
    arrays = [normal(B, T_Q, WIDTH), normal(B, T_K, WIDTH), normal(B, T_K, D_V)]
    unread = [~keep.any(2), ~keep.any(1), ~keep.any(1)]
    assert any(x.any() for x in unread)
    found, gradient = run_unread(name, mask, arrays, unread, fill)
    assert all(torch.isfinite(g).all() for g in gradient)
    for g, rows in zip(gradient, unread, strict=False):
        assert (g[torch.tensor(rows)] == 0).all()
    numpy = attention(
        *arrays, score=make_score(name), mask=mask, return_weights=True, return_lse=True
    )
    same(map(torch.tensor, numpy), [x.detach() for x in found])


@FILL
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@ONE_OF_EACH_PAIR
def test_heads_with_masks_of_their_own(name: str, kv_heads: int, fill: float) -> None:
    """A key is read only for the heads of its group that attend it."""
    mask, groups = EACH_HEAD, H // kv_heads
    arrays = [
        normal(B, H, T_Q, WIDTH),
        normal(B, kv_heads, T_K, WIDTH),
        normal(B, kv_heads, T_K, D_V),
    ]
    attended = mask.any(-2).reshape(B, kv_heads, groups, T_K).any(2)
    unread = [~mask.any(-1), ~attended, ~attended]
    assert all(x.any() for x in unread)
    run_unread(name, mask, arrays, unread, fill)


@FILL
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("which", ["query", "key", "value"])
@SCORES
def test_what_is_attended(name: str, which: str, groups: int, fill: float) -> None:
    """NaN in one token, or ∞ that becomes NaN, reaches its queries and the gradients of their keys.

    All other results are the same as without NaN.
    """
    mask = np.array([[1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]], bool)
    arrays = [normal(B, 2, T_Q, WIDTH), normal(B, 2 // groups, T_K, WIDTH)]
    arrays.append(normal(B, 2 // groups, T_K, D_V))
    at = (1, 0, {"query": 0, "key": 2, "value": 2}[which])
    expected, clean = run(name, mask, arrays)
    arrays[["query", "key", "value"].index(which)][at] = fill
    found, gradient = run(name, mask, arrays)

    touched = torch.zeros(B, 2, T_Q, dtype=torch.bool)  # query rows
    touched[1, :groups, 0 if which == "query" else slice(0, 2)] = True
    if which == "query":
        touched[1, 1] = False
    attended = torch.tensor(mask)[None, None] & touched[..., None]
    attended = attended.any(2).reshape(B, 2 // groups, groups, T_K).any(2)
    same([x[~touched] for x in found], [x[~touched] for x in expected])
    same([gradient[0][~touched]], [clean[0][~touched]])
    same([g[~attended] for g in gradient[1:3]], [g[~attended] for g in clean[1:3]])
    if math.isnan(fill):
        results = [found.output] if which == "value" else list(found)
        assert all(torch.isnan(x[touched]).all() for x in results)
        assert torch.isnan(gradient[0][touched]).all()
        assert torch.isnan(gradient[1][attended]).all()
        assert which == "value" or torch.isnan(gradient[2][attended]).all()
        keep = np.broadcast_to(mask, (B, 2, T_Q, T_K))
        assert (found.weights.detach().numpy()[~keep & ~touched.numpy()[..., None]] == 0).all()

    numpy = attention(
        *arrays, score=make_score(name), mask=mask, return_weights=True, return_lse=True
    )
    same([torch.tensor(x)[~touched] for x in numpy], [x[~touched].detach() for x in expected])
    assert not math.isnan(fill) or np.isnan(numpy.output[touched.numpy()]).all()


@SCORES
def test_without_a_mask_nan_stays_in_its_row(name: str) -> None:
    arrays = [normal(B, t, WIDTH) for t in (T_Q, T_K, T_K)]
    expected = attention(*arrays, score=make_score(name))
    arrays[0][1, 2] = math.nan
    for given in (arrays, list(map(torch.tensor, arrays))):
        score = make_score(name)
        score = score.map(torch.tensor) if given is not arrays else score
        found = np.asarray(attention(*given, score=score))
        assert np.isnan(found[1, 2]).all()
        found[1, 2] = expected[1, 2]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_masked_nan_beside_attended_infinity(framework: str) -> None:
    """A query that attends a value of ∞ gives ∞, also beside a masked NaN."""
    q, k, v = np.zeros((2, 1)), np.zeros((3, 1)), np.array([[math.inf], [math.nan], [1.0]])
    mask = np.array([[1, 0, 1], [0, 1, 1]], bool)
    given = map(torch.tensor, (q, k, v)) if framework == "torch" else (q, k, v)
    found = np.asarray(attention(*given, mask=mask))
    assert found[0, 0] == math.inf
    assert math.isnan(found[1, 0])


@FILL
@ONE_OF_EACH_PAIR
def test_a_query_shared_with_an_empty_batch(name: str, fill: float) -> None:
    """An example without keys does not read a query that another example uses."""
    arrays = [normal(1, T_Q, WIDTH), normal(B, T_K, WIDTH), normal(B, T_K, D_V)]
    arrays[0][0, 1] = fill
    found, _ = run(name, Lengths([0, 5]), arrays)
    assert (found.output[0] == 0).all()
    assert (found.weights[0] == 0).all()
    assert (found.lse[0] == -math.inf).all()
    assert torch.isfinite(found.output[1, [0, 2]]).all()


@FILL
@ONE_OF_EACH_PAIR
def test_keys_shared_by_batches_of_different_lengths(name: str, fill: float) -> None:
    arrays = [normal(B, T_Q, WIDTH), normal(1, T_K, WIDTH), normal(T_K, D_V)]
    expected, _ = run(name, Lengths([4, 6]), arrays)
    arrays[1][0, 4], arrays[2][5] = fill, fill
    found, gradient = run(name, Lengths([4, 6]), arrays)
    same([x[0] for x in found], [x[0] for x in expected])
    arrays[1][0, 6], arrays[2][6] = fill, fill
    again, gradient_again = run(name, Lengths([4, 6]), arrays)
    same([x[0] for x in again], [x[0] for x in expected])
    for g, h in zip(gradient, gradient_again, strict=True):
        torch.testing.assert_close(g, h, rtol=1e-12, atol=1e-13, equal_nan=True)


@FILL
@ONE_OF_EACH_PAIR
def test_with_dropout(name: str, fill: float) -> None:
    options = {"dropout": 0.4, "dropout_seed": 7}
    arrays = [normal(B, T_Q, WIDTH), normal(B, T_K, WIDTH), normal(B, T_K, D_V)]
    unread = ~ROWS.any(1)
    arrays[1][unread] = arrays[2][unread] = 0
    expected, clean = run(name, ROWS, arrays, **options)
    arrays[1][unread] = arrays[2][unread] = fill
    found, gradient = run(name, ROWS, arrays, **options)
    same(found, expected)
    same(gradient, clean)


@FILL
@SCORES
def test_second_derivatives_do_not_read_it_either(name: str, fill: float) -> None:
    def twice(arrays: list[np.ndarray]) -> list[torch.Tensor]:
        score, inputs = leaves(make_score(name), *arrays)
        out = attention(*inputs[:3], score=score, mask=ROWS)
        first = torch.autograd.grad((out**2).sum(), inputs, create_graph=True)
        second = sum((g**2).sum() for g in first)
        return list(torch.autograd.grad(second, inputs, materialize_grads=True))

    arrays = [normal(B, T_Q, WIDTH), normal(B, T_K, WIDTH), normal(B, T_K, D_V)]
    unread = [~ROWS.any(2), ~ROWS.any(1), ~ROWS.any(1)]
    for array, rows in zip(arrays, unread, strict=True):
        array[rows] = 0
    expected = twice(arrays)
    for array, rows in zip(arrays, unread, strict=True):
        array[rows] = fill
    same(twice(arrays), expected)


@FILL
def test_a_callable_is_not_given_what_nobody_attends(fill: float) -> None:
    def score(query: Any, key: Any) -> Any:
        return torch.tanh(query) @ key.mT

    arrays = [normal(B, T_Q, WIDTH), normal(B, T_K, WIDTH), normal(B, T_K, D_V)]
    results = []
    for x in (0.0, fill):
        arrays[1][:, 5] = arrays[2][:, 5] = arrays[0][1, 2] = x
        inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
        out = attention(*inputs, score=score, mask=ROWS)
        results.append([out, *torch.autograd.grad(out.sum(), inputs)])
    same(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_nan_in_padding_of_half_precision(dtype: torch.dtype, impl: str) -> None:
    """NaN in padding changes no result, though PyTorch's own products may multiply padding by 0."""
    key = torch.tensor(normal(4, 3, 31, 17)).to(dtype)
    key[:, :, 15:] = torch.nan
    lengths = torch.tensor([3, 2, 15, 14])
    parameters = (torch.tensor(normal(*shape)).to(dtype) for shape in ((11, 13), (11, 17), (11,)))
    query, value = (torch.tensor(normal(4, 3, *shape)).to(dtype) for shape in ((5, 13), (31, 5)))
    call = {"score": Additive(*parameters), "valid_lens": lengths, "impl": impl}
    assert attention(query, key, value, **call).isfinite().all()
    layer = MultiHeadAttention(22, 2, d_k=17, d_v=17).to(dtype).eval()
    with torch.no_grad():
        output = layer(torch.zeros(4, 5, 22, dtype=dtype), key[:, 0], key[:, 0], lengths)
    assert output.isfinite().all()


@FILL
@ONE_OF_EACH_PAIR
@pytest.mark.parametrize("masking", [{}, {"valid_lens": 3}, {"mask": Causal("end")}])
@pytest.mark.parametrize("sizes", [((2,), (2,), 0), ((0,), (0,), 3), ((0,), (1,), 3)])
def test_calls_without_queries_or_batch_read_no_keys(
    name: str, masking: dict[str, Any], sizes: tuple[Any, Any, int], fill: float
) -> None:
    """Calls without queries or examples read no keys, and gradients of parameters are 0."""
    of_query, of_key, queries = sizes
    q, k, v = normal(*of_query, queries, WIDTH), normal(*of_key, 6, WIDTH), normal(*of_key, 6, 2)
    k[:], v[:] = fill, fill
    score, inputs = leaves(make_score(name), q, k, v)
    for impl in ("auto", "reference"):
        out = attention(*inputs[:3], score=score, impl=impl, **masking)
        assert out.shape == (*of_query, queries, 2)
        for gradient in torch.autograd.grad(out.sum(), inputs, materialize_grads=True):
            assert (gradient == 0).all()


def test_padding_makes_no_nan_in_the_gradients_of_a_callable() -> None:
    p = torch.randn(5, 5, requires_grad=True)

    def cosine(q: Tensor, k: Tensor) -> Tensor:
        q, k = q @ p, k @ p
        return (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT

    x = torch.randn(2, 3, 5)
    attention(x, x, x, score=cosine, valid_lens=[2, 3]).square().sum().backward()
    assert p.grad is not None
    assert p.grad.isfinite().all()
