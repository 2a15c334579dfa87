"""impl="separable" computes additive scores as products, within the errors in docs/separable.md."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyscore import Additive, Causal, Concat, Dot, GATv2, Keys, Lengths, attention, plan
from anyscore.call.task import Call, Options
from anyscore.functional import separable
from anyscore.functional.attention import lower
from anyscore.functional.cache.prepare import prepare_keys
from anyscore.kernels import cpu
from anyscore.ops import load
from helpers import oracle
from helpers.budget import assert_near
from helpers.cases import applicable, case
from helpers.samples import gradients, leaves, make_score, normal
from helpers.separable_calls import bare, inputs
from helpers.table_shapes import SHAPES
from helpers.transformed import WARNINGS

pytestmark = WARNINGS
needs_core = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")
FRAMEWORK = pytest.mark.parametrize("to", [np.asarray, torch.tensor], ids=["numpy", "torch"])
ERROR = 6.5e-4
"""Largest error of one tanh, from docs/separable.md."""
run = partial(attention, impl="separable")


# ------------------------------------------------------------------------------ the functions


@given(st.floats(0, 4), st.floats(-1, 1), st.floats(-1, 1), st.booleans())
def test_tanh(reach: float, a: float, b: float, differentiable: bool) -> None:
    table, xp = separable.table_for(reach, differentiable), load("numpy")
    assert table.limit >= reach
    assert table.rank == 4 * table.limit + 4 * differentiable
    assert table.error < (2.3e-5 if differentiable else ERROR)
    x, y = np.array([a * reach]), np.array([b * reach])
    (even_a, odd_a), (even_b, odd_b) = (separable.features(xp, z, table) for z in (x, y))
    assert max(np.abs(z).max() for z in (even_a, odd_a, even_b, odd_b)) < 1.2  # float16 holds it
    found = even_a @ odd_b.T + odd_a @ even_b.T
    assert abs(found.item() - np.tanh(x + y).item()) < 1.01 * table.error


# ------------------------------------------------------------------------------- the contract


@FRAMEWORK
@pytest.mark.parametrize("mask", ["none", "lengths_list", "causal_end", "boolean"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("score", ["additive_bias", "additive_each", "concat"])
@needs_core
def test_table(score: str, shape: str, mask: str, to: Any) -> None:
    if not applicable(shape, mask):
        return
    c = case(score, shape, mask)
    parameters = {name: x / 2 for name, x in c.parameters.items()}
    exact = oracle.attend(c.query, c.key, c.value, c.score.build(parameters, np.asarray),
                          **c.masking(np.asarray))  # fmt: skip
    found = run(*map(to, (c.query, c.key, c.value)), score=c.score.build(parameters, to),
                return_weights=True, return_lse=True, **c.masking(to))  # fmt: skip
    bound = ERROR * np.abs(parameters["w_v"]).sum(-1).max()
    assert_near(found.lse, exact.lse, bound, dtype="float32")
    assert_near(found.weights, exact.weights, np.expm1(2 * bound), dtype="float32")
    largest = np.abs(c.value).max(initial=0.0)
    assert_near(found.output, exact.output, np.expm1(2 * bound) * largest, dtype="float32")


@FRAMEWORK
@needs_core
def test_large_weights_are_bounded(to: Any) -> None:
    arrays, score = inputs(2.0)
    score = bare(20 * score.w_v)
    found, exact = (
        np.asarray(
            attention(*map(to, arrays), score=score.map(to), impl=impl, return_weights=True)[1]
        )
        for impl in ("separable", "reference")
    )
    bound = separable.table_for(2.0).error * np.abs(score.w_v).sum()
    assert np.abs(np.log(found / exact)).max() < 2 * bound


@needs_core
@pytest.mark.parametrize("mask", [None, Lengths([4, 0]), Causal("end") & Lengths([7, 5])])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients(mask: Any, dropout: float) -> None:
    score, xs = leaves(make_score("Additive"), *(x / 3 for x in inputs(h=5)[0]))
    found = []
    for impl in ("separable", "reference"):
        out = attention(
            *xs[:3], score=score, mask=mask, dropout=dropout, dropout_seed=3, impl=impl,
            return_lse=True,
        )  # fmt: skip
        lse = torch.where(torch.isfinite(out.lse), out.lse, 0.0)
        loss = out.output.square().sum() + lse.sin().sum()
        first = torch.autograd.grad(loss, xs, create_graph=True)
        found.append((first, gradients(first, xs)))
    for one, other, error in zip(*found, (3e-4, 5e-3), strict=True):
        for x, y in zip(one, other, strict=True):
            assert (x - y).abs().max() <= error * max(float(y.detach().abs().max()), 0.1)


@FRAMEWORK
@needs_core
def test_what_nobody_reads_has_no_say(to: Any) -> None:
    """Masked tokens, NaN included, change neither the range nor a result. A hidden bias of 50 that
    the queries cancel does not enlarge the range.
    """
    (q, k, v), w = inputs(1.0)[0], inputs()[1].w_v
    score = Additive(np.eye(8), np.eye(8), w, np.full(8, 50.0))
    keep = np.array([[True] * 4 + [False] * 3, [False] * 7])
    q = q - 50
    exact = attention(q, k, v, score=score, mask=Keys(keep), impl="reference")
    q[1], k[0, 4:], k[1], v[0, 4:], v[1] = np.nan, np.inf, 1e6, np.nan, np.inf
    made = [to(x) for x in (q, k, v)]
    options: dict[str, Any] = {"score": score.map(to), "mask": Keys(to(keep))}
    np.testing.assert_allclose(run(*made, **options), exact, atol=3e-3)
    assert "rank 6," in plan(*made, **options, impl="separable").reason
    if to is torch.tensor:
        for x in made:
            x.requires_grad_()
        for x in torch.autograd.grad(run(*made, **options).sum(), made):
            assert torch.isfinite(x).all()
            assert not x[1].any()


@FRAMEWORK
@needs_core
def test_nan_that_is_read_reaches_who_reads_it(to: Any) -> None:
    (q, k, v), score = inputs()
    q[0, 2, 3] = k[1, 5, 0] = np.nan
    lens = [[7] * 5, [5, 5, 6, 7, 0]]
    out = np.asarray(run(*map(to, (q, k, v)), score=score.map(to), valid_lens=lens))
    expected = np.zeros((2, 5), bool)
    expected[0, 2] = expected[1, 2:4] = True
    np.testing.assert_array_equal(np.isnan(out).all(-1), expected)
    np.testing.assert_array_equal(np.isnan(out).any(-1), expected)


@FRAMEWORK
@needs_core
def test_prepared_keys(to: Any) -> None:
    arrays, score = inputs()
    (q, k, v), score = map(to, arrays), score.map(to)
    prepared = prepare_keys(k, score)
    found = run(q, prepared, v, score=score, valid_lens=[3, 6])
    np.testing.assert_array_equal(found, run(q, k, v, score=score, valid_lens=[3, 6]))


@needs_core
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("accelerated", [True, False])
def test_dtypes(dtype: Any, accelerated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are float16 on accelerators, unless derivatives may be too small for float16."""
    monkeypatch.setattr(separable, "_accelerated", lambda x: accelerated)
    arrays, score = inputs()
    xs = [torch.tensor(x).to(dtype) for x in arrays]
    score = score.map(lambda x: torch.tensor(x).to(dtype))
    taken = []
    for differentiable in (False, True):
        xs[0].requires_grad_(differentiable)
        _, route, task = separable.choose_product(*_lowered(xs, score))
        taken.append(task.score.a.dtype)
        out = run(*xs, score=score)
        assert out.dtype == dtype
        assert route is not None
        exact = attention(*xs, score=score, impl="reference")
        torch.testing.assert_close(out, exact, atol=0.02 if "bf" in str(dtype) else 3e-3, rtol=0)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    narrow = [torch.float16, dtype] if dtype != torch.float64 else [sums, sums]
    assert taken == (narrow if accelerated else [sums, sums])


def _lowered(xs: list[Any], score: Any) -> tuple[Any, ...]:
    options = Options(return_lse=True, impl="separable")
    backend, _, task, _ = lower(Call(*xs, score), options)
    return backend, task, options


@needs_core
def test_autocast() -> None:
    arrays, score = inputs()
    xs, score = [torch.tensor(x).float() for x in arrays], score.map(torch.tensor)
    score = bare(score.w_v.float())
    with torch.autocast("cpu", torch.bfloat16):
        out = run(*xs, score=score)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), run(*xs, score=score), atol=0.03, rtol=0)


# ----------------------------------------------------------------------- plans and refusals


@FRAMEWORK
@needs_core
def test_plan(to: Any) -> None:
    (q, k, v), score = inputs()
    q[0, 0, 0], k[0, 0, 0], score = -1.25, 2.0, score.map(to)
    q, k = np.clip(q, -1.25, 1.25), np.clip(k, -2.0, 2.0)
    made = [to(x) for x in (q, k, v)]
    found = plan(*made, score=score, impl="separable")
    assert found.route == "separable"
    assert found.reason == (
        "rank 8, each tanh within 0.0004, as |a| ≤ 1.25 for queries and |b| ≤ 2 for keys; the "
        "product runs on cpu"
    )
    assert plan(*made, score=score).route == "cpu"  # only impl="separable" chooses it


def _refused(reason: str, *args: Any, **options: Any) -> None:
    for function in (attention, plan):
        with pytest.raises(NotImplementedError) as error:
            function(*args, impl="separable", **options)
        assert str(error.value) == f'impl="separable" cannot run: {reason}. Use impl="auto".'


@FRAMEWORK
def test_range(to: Any) -> None:
    (q, k, v), score = inputs()
    for worst in (np.nextafter(4.0, 5.0), 1e30, np.inf):
        for x, other in ((q, k), (k, q)):
            other[0, 0, 0], x[0, 0, 0] = 1.0, -worst
            reach = [f"{np.abs(y).max():.3g}" for y in (q, k)]
            _refused(
                f"it is for tanh(a + b) with |a|, |b| ≤ 4, and here |a| ≤ {reach[0]} for queries "
                f"and |b| ≤ {reach[1]} for keys: make what is projected, or the projections, "
                "smaller",
                *map(to, (q, k, v)), score=score.map(to),
            )  # fmt: skip
    q[0, 0, 0], k[0, 0, 0] = 4.0, -4.0
    if cpu.problem() is None:
        assert "rank 16" in plan(*map(to, (q, k, v)), score=score.map(to), impl="separable").reason


@FRAMEWORK
def test_other_scores(to: Any) -> None:
    x = to(normal(2, 3, 5))
    scores = (
        (Dot(), "the pair 'product'"),
        (GATv2(None, None, to(normal(5))), "the pair 'leaky_relu'"),
        (lambda q, k: q @ k.swapaxes(-1, -2), "a callable"),
    )
    for score, got in scores:
        reason = f"it is for the scores Additive and Concat, the score is {got}"
        _refused(reason, x, x, x, score=score)


def test_unknown_values() -> None:
    arrays, score = inputs()
    xs, score = [torch.tensor(x) for x in arrays], score.map(torch.tensor)
    call = partial(run, score=score)
    with pytest.raises(NotImplementedError, match="measured first"):
        torch.vmap(call)(*xs)
    with pytest.raises(NotImplementedError, match="measured first"):
        torch.compile(call, backend="eager")(*xs)
    with pytest.raises(NotImplementedError, match="measured first"):
        run(*(x.to("meta") for x in xs), score=score.map(lambda x: x.to("meta")))


@needs_core
def test_functional_gradients() -> None:
    arrays, score = inputs()
    xs, score = [torch.tensor(x) for x in arrays], score.map(torch.tensor)
    grad = torch.func.grad(lambda *xs: run(*xs, score=score).square().sum())(*xs)
    xs[0].requires_grad_()
    (exact,) = torch.autograd.grad(attention(*xs, score=score).square().sum(), xs[:1])
    torch.testing.assert_close(grad, exact, atol=3e-4 * float(exact.abs().max()), rtol=0)


def test_no_route(no_core: None) -> None:
    arrays, score = inputs()
    _refused("cpu: it is not there", *arrays, score=score)


@FRAMEWORK
@needs_core
def test_nothing_to_compute(to: Any) -> None:
    for t_q, t_k, h in ((0, 3, 5), (3, 0, 5), (3, 2, 0)):
        out = run(
            to(np.zeros((2, t_q, h))), to(np.zeros((2, t_k, h))), to(np.ones((2, t_k, 4))),
            score=Concat(to(np.zeros((h, 2 * h))), to(np.zeros(h))),
        )  # fmt: skip
        np.testing.assert_array_equal(out, np.full((2, t_q, 4), float(t_k > 0)))
