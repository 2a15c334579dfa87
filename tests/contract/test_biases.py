"""Values and gradients of biases: tensors of every shape, `Relative` and `ALiBi`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore import (
    ALiBi,
    Causal,
    Dot,
    Euclidean,
    Gaussian,
    Lengths,
    Relative,
    attention,
    log_sum_exp,
    log_weights,
    plan,
    prepare_keys,
    scores,
)
from anyscore.call.task import Call, Options
from anyscore.functional.attention import attend, weights
from anyscore.layers.last_weights import snapshot
from anyscore.modifiers.biases import default_slopes
from anyscore.ops import load
from helpers import oracle
from helpers.bias_objects import distance, objects, t5
from helpers.by_pair import by_pair
from helpers.samples import NAMES, OUTER, make_score, normal

pytestmark = pytest.mark.sample

B, H, KV, T_Q, T_K, D, D_V = 2, 4, 2, 5, 7, 5, 3
LEAD = (B, H)
SHAPES = ((B, H, T_Q, T_K), (H, T_Q, T_K), (T_Q, T_K), (T_K,), (B, 1, T_Q, 1), (1, 1, 1, 1), ())
IMPL = pytest.mark.parametrize("impl", ["fused", "reference"])
MASK = Causal("end") & Lengths([T_K, 4])


def inputs() -> list[np.ndarray]:
    return [normal(B, H, T_Q, D), normal(B, KV, T_K, D), normal(B, KV, T_K, D_V)]


def by_loops(
    score: Any, bias: np.ndarray, mask: Any, softcap: float = 0.0, after: bool = False
) -> tuple[np.ndarray, ...]:
    """Return output, weights, log-sum-exp and scores in float64; `bias` has the scores' shape."""
    query, key, value = inputs()
    s = oracle.scores(query, key, score, mask=mask)
    found = [np.zeros((*LEAD, T_Q, D_V)), np.zeros_like(s), np.zeros(s.shape[:-1]), s.copy()]
    for at in np.ndindex(*s.shape[:-1]):
        attended = np.flatnonzero(s[at] > -np.inf)
        x = s[at][attended]
        x = x if after else x + bias[at][attended]
        x = np.array([softcap * math.tanh(one / softcap) for one in x]) if softcap else x
        x = x + bias[at][attended] if after else x
        w, found[2][at] = oracle.softmax(x.tolist())
        found[1][at][attended], found[3][at][attended] = w, x
        found[0][at] = np.array(w) @ value[at[0], at[1] * KV // H][attended] if len(w) else 0.0
    return tuple(found)


@IMPL
@pytest.mark.parametrize("after", [False, True])
@by_pair("name", NAMES)
def test_values(name: str, after: bool, impl: str) -> None:
    """Every score takes a bias before its outer function and after it."""
    score, x = make_score(name), normal(H, T_Q, T_K)
    if name in OUTER and not after:  # sums of these scores may not be negative
        return
    exact = by_loops(score, np.broadcast_to(x, (*LEAD, T_Q, T_K)), MASK, after=after)
    given = {"score": score, "mask": MASK, "bias_after" if after else "bias": x, "impl": impl}
    found = attention(*inputs(), **given, return_weights=True, return_lse=True)
    matrix = scores(*inputs()[:2], **given)
    for one, other in zip((*found, matrix), exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@IMPL
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("softcap", "after"), [(0.0, False), (1.5, False), (1.5, True)])
def test_shapes(shape: tuple[int, ...], softcap: float, after: bool, impl: str) -> None:
    x, score = normal(*shape), Gaussian(1.5)
    exact = by_loops(score, np.broadcast_to(x, (*LEAD, T_Q, T_K)), MASK, softcap, after)
    given = {"bias_after" if after else "bias": x, "softcap": softcap, "impl": impl}
    found = attention(
        *inputs(), score=score, mask=MASK, return_weights=True, return_lse=True, **given
    )
    for one, other in zip(found, exact, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@IMPL
@pytest.mark.parametrize("kind", objects())
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_objects(kind: str, framework: str, impl: str) -> None:
    """Results and gradients of a bias object are those of the matrix of its formula."""
    x, make, entry = objects()[kind]
    bias = np.array([[[entry(h, i, j) for j in range(T_K)] for i in range(T_Q)] for h in range(H)])
    exact = by_loops(Dot(), np.broadcast_to(bias, (*LEAD, T_Q, T_K)), MASK)
    to: Any = torch.tensor if framework == "torch" else np.asarray
    found = attention(
        *map(to, inputs()), score=Dot(), mask=MASK, bias=make(to(x)), impl=impl,
        return_weights=True, return_lse=True,
    )  # fmt: skip
    for one, other in zip(found, exact, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_of_t5_by_its_formula(bidirectional: bool) -> None:
    """Buckets of keys at most 300 away follow T5's formula, at T5's sizes: 32 buckets, 128 keys."""
    table = np.arange(32.0)
    query, key = np.zeros((1, 1)), np.zeros((301, 1))
    for offset in (0, 300):
        bias = Relative(table, "t5", bidirectional, offset=offset)
        found = scores(query, key, score=Dot(), bias=bias)[0]
        by_formula = t5(table[None], bidirectional, 128)
        expected = [by_formula(0, 0, j - offset + T_K - T_Q) for j in range(301)]
        np.testing.assert_array_equal(found, expected)


def test_slopes_of_the_paper() -> None:
    assert default_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert default_slopes(6) == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    found = scores(*inputs()[:2], score=Dot(), bias=ALiBi(align="end"))
    plain = scores(*inputs()[:2], score=Dot())
    assert (found - plain)[0, 1, 0, 0] == pytest.approx(-(2.0**-4) * abs(distance(0, 0)))
    alone = scores(np.zeros((3, 1)), np.zeros((3, 1)), bias=ALiBi())
    assert alone[2, 0] == pytest.approx(-2 * 2**-8)


def leaves(bias: np.ndarray) -> list[Tensor]:
    return [torch.tensor(x, requires_grad=True) for x in (*inputs(), bias)]


@pytest.mark.slow
@IMPL
@pytest.mark.parametrize(("softcap", "after"), [(0.0, False), (1.5, False), (1.5, True)])
@pytest.mark.parametrize("kind", [*objects(), *map(str, SHAPES)])
def test_gradients(kind: str, softcap: float, after: bool, impl: str) -> None:
    """First and second derivatives of all results agree with finite differences."""
    if kind in objects():
        x, make, _ = objects()[kind]
    else:
        x, make = normal(*eval(kind)), lambda y: y
    if impl == "reference" and softcap:
        return

    def run(*xs: Tensor) -> Any:
        found = attention(
            *xs[:3], score=Gaussian(), mask=MASK, softcap=softcap, dropout=0.2, dropout_seed=3,
            return_weights=True, return_lse=True, impl=impl,
            **{"bias_after" if after else "bias": make(xs[3])},
        )  # fmt: skip
        return found.output, found.weights, found.lse

    assert torch.autograd.gradcheck(run, leaves(x), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves(x), fast_mode=True)


@IMPL
def test_what_is_masked_is_not_read(impl: str) -> None:
    """NaN and infinities in masked entries of a bias change no result and no gradient."""
    x = normal(H, T_Q, T_K)
    clean, dirty = leaves(x), leaves(x)
    keep = torch.tensor(normal(H, T_Q, T_K) > -0.5)
    keep[:, 1] = False
    with torch.no_grad():
        dirty[3][~keep] = math.nan
        dirty[3][0, 1, 2] = math.inf
    found = []
    for xs in (clean, dirty):
        out = attention(*xs[:3], mask=keep, bias=xs[3], softcap=2.0, return_weights=True, impl=impl)
        found.append(
            [*out[:2], *torch.autograd.grad((out.output**2).sum() + out.weights[0].sum(), xs)]
        )
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@IMPL
def test_a_bias_of_minus_infinity(impl: str) -> None:
    """A bias of −∞ gives a key the weight 0; the output of a query without other keys is 0."""
    bias = np.zeros((T_Q, T_K))
    bias[0, :3], bias[2] = -np.inf, -np.inf
    found = attention(*inputs(), bias=bias, return_weights=True, return_lse=True, impl=impl)
    assert (found.weights[..., 0, :3] == 0).all()
    np.testing.assert_allclose(found.weights[..., 0, :].sum(-1), 1)
    assert (found.output[..., 2, :] == 0).all()
    assert (found.lse[..., 2] == -np.inf).all()


@IMPL
def test_a_nan_that_is_attended(impl: str) -> None:
    bias = np.zeros((T_Q, T_K))
    bias[1, 2] = np.nan
    found = attention(*inputs(), bias=bias, impl=impl)
    assert np.isnan(found[..., 1, :]).all()
    assert np.isfinite(np.delete(found, 1, axis=-2)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("queries", [1, 2, T_Q])
def test_half_precision_and_decoding(dtype: Any, queries: int) -> None:
    """Gradients are float32 sums in the dtype of the bias, with prepared keys too."""
    q, k, v = (torch.tensor(x, dtype=dtype) for x in inputs())
    q = q[..., :queries, :]
    table = torch.tensor(normal(H, 9), dtype=dtype).requires_grad_()
    found = []
    for impl in ("fused", "reference"):
        for keys in (k, prepare_keys(k, Dot())):
            bias = Relative(table, align="end")
            out = attention(q, keys, v, score=Dot(), bias=bias, softcap=5.0, impl=impl)
            (slope,) = torch.autograd.grad(out.float().square().sum(), table)
            assert out.dtype == slope.dtype == dtype
            found.append((out, slope))
    eps = torch.finfo(dtype).eps
    for out, slope in found:
        torch.testing.assert_close(out, found[2][0], rtol=4 * eps, atol=4 * eps)
        torch.testing.assert_close(slope, found[2][1], rtol=8 * eps, atol=16 * eps)


@IMPL
def test_two_biases(impl: str) -> None:
    """Two biases add up. The reference adds biases of two kinds and biases around a function."""
    one, other = normal(H, T_Q, T_K), normal(T_K)
    both = attention(*inputs(), bias=one, bias_after=other, impl=impl)
    np.testing.assert_allclose(both, attention(*inputs(), bias=one + other), rtol=1e-12)
    q, k, v = inputs()
    capped = plan(q, k, v, bias=one, bias_after=other, softcap=2.0)
    mixed = plan(q, k, v, bias=one, bias_after=ALiBi(align="end"))
    for found in (capped, mixed):
        assert found.route == "reference"
        assert "it adds one bias" in found.reason
    expected = by_loops(Dot(), np.broadcast_to(one, (*LEAD, T_Q, T_K)), None)[3] + other
    summed = scores(q, k, score=Dot(), bias=one, bias_after=other)
    np.testing.assert_allclose(summed, expected, rtol=1e-12)


def test_other_functions() -> None:
    """`log_weights` and `log_sum_exp` take biases, and a layer's snapshot keeps them."""
    q, k, v = (torch.tensor(x) for x in inputs())
    bias, sink = torch.tensor(normal(H, T_Q, T_K)), 0.5
    given: dict[str, Any] = {"bias": bias, "mask": MASK, "sink": sink}
    whole = attention(q, k, v, **given, return_weights=True, return_lse=True)
    torch.testing.assert_close(log_weights(q, k, **given).exp(), whole.weights)
    torch.testing.assert_close(log_sum_exp(q, k, **given), whole.lse)
    call = Call(q, k, v, Euclidean(), MASK, sink=sink, bias_after=bias.requires_grad_())
    result, task = attend(call, Options(return_scores=True))
    torch.testing.assert_close(weights(snapshot(load("torch"), task)), result.weights)


def test_sums_are_the_same_for_any_number_of_threads() -> None:
    q, k, v = (torch.randn(3, 2, 130, 8) for _ in range(3))
    table, matrix = (
        torch.randn(2, 11, requires_grad=True),
        torch.randn(130, 130, requires_grad=True),
    )
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            out = attention(q, k, v, bias=matrix) + attention(q, k, v, bias=Relative(table))
            found.append(torch.autograd.grad(out.square().sum(), [table, matrix]))
    finally:
        torch.set_num_threads(before)
    for one in found[1:]:
        assert all(map(torch.equal, one, found[0]))


def test_no_matrix_is_made_of_an_object() -> None:
    """No matrix of 8,192 × 8,192 entries is made of a bias object: it would take 256 MiB a head."""
    import tracemalloc

    q = np.zeros((1, 4, 8192, 2), np.float32)
    tracemalloc.start()
    attention(q, q, q, mask=Causal(), bias=Relative(np.zeros((4, 65), np.float32)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20


def test_nothing_to_attend_to() -> None:
    for queries, keys in ((0, 3), (3, 0), (0, 0)):
        q, k = np.ones((2, queries, 4)), np.ones((2, keys, 4))
        for bias in (ALiBi(align="end"), np.zeros((queries, keys))):
            found = attention(q, k, k, bias=bias, return_lse=True)
            assert found.output.shape == (2, queries, 4)
            assert (found.output == 0).all()
            assert (found.lse == -np.inf).all()
