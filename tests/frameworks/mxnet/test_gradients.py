"""Gradients of all inputs in MXNet agree with float64 differences and between implementations."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from anyscore import Additive, Score, attention, log_weights, scores
from frameworks.mxnet.arrays import numbers, to
from helpers import far_rows
from helpers.cases import SCORES, case

MASKS = ("none", "four", "lengths", "boolean_full")


def inputs_of(row: tuple[str, str, str], dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row's arrays by name, and the row's masking."""
    c = case(*row)
    found = {"query": c.query, "key": c.key, "value": c.value}
    found |= {name: x for name, x in c.parameters.items() if isinstance(x, np.ndarray)}
    return {name: x.astype(dtype) for name, x in found.items()}, c.masking(np.asarray)


def call(row: tuple[str, str, str], given: dict[str, Any], **options: Any) -> Any:
    c = case(*row)
    fields = {**c.parameters, **{x: given[x] for x in given if x in c.parameters}}
    score = c.score.build(fields, lambda x: x)
    tensors = (given[name] for name in ("query", "key", "value"))
    return attention(*tensors, score=score, return_lse=True, **options)


def weights_of(found: Any) -> list[np.ndarray]:
    """Return random factors for the output and for finite log-sum-exps."""
    rng = np.random.default_rng(3)
    output, lse = (np.asarray(numbers(x)) for x in (found.output, found.lse))
    return [rng.standard_normal(output.shape), rng.standard_normal(lse.shape) * np.isfinite(lse)]


def gradients(
    row: tuple[str, str, str], dtype: str, impl: str, kind: str = "np"
) -> dict[str, np.ndarray]:
    arrays, masking = inputs_of(row, dtype)
    given = {name: to(x, kind=kind) for name, x in arrays.items()}
    for x in given.values():
        x.attach_grad()
    with autograd.record():
        found = call(row, given, **masking, impl=impl)
        times = [to(x, dtype, kind) for x in weights_of(found)]
        lse = found.lse.as_np_ndarray()
        lse = mx.np.where(mx.np.isfinite(lse), lse, mx.np.zeros_like(lse))
        parts = zip((found.output.as_np_ndarray(), lse), times, strict=True)
        heads = [x * g.as_np_ndarray() for x, g in parts]
    autograd.backward([x.as_nd_ndarray() for x in heads])
    return {name: numbers(x.grad) for name, x in given.items()}


@pytest.mark.usefixtures("np_mode")
@pytest.mark.parametrize("score", SCORES)
def test_both_ways(score: str) -> None:
    """Float64 gradients of the core agree with the definition's own; float32 gradients are near."""
    for mask in MASKS:
        row = (score, "heads", mask)
        exact = gradients(row, "float64", "reference")
        for dtype, allowed in (("float64", 1e-10), ("float32", 2e-4)):
            found = gradients(row, dtype, "auto")
            for name, x in exact.items():
                assert found[name].dtype == dtype
                size = np.abs(x).max()
                worst = np.abs(found[name] - x).max(initial=0)
                assert worst <= allowed * size, f"{name} of {row} in {dtype}: {worst} of {size}"


@pytest.mark.usefixtures("np_mode")
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("shape", ["heads", "grouped_6_2", "broadcast", "rank_2"])
@pytest.mark.parametrize("score", SCORES)
def test_against_differences(score: str, shape: str, impl: str) -> None:
    """Gradients of all inputs agree with NumPy's differences along one random direction."""
    if score == "callable" and shape in ("grouped_6_2", "broadcast"):
        return  # MXNet's own `@` has wrong derivatives if it broadcasts
    row = (score, shape, "four")
    arrays, masking = inputs_of(row, "float64")
    rng = np.random.default_rng(5)
    direction = {name: rng.standard_normal(x.shape) for name, x in arrays.items()}

    def total(step: float) -> float:
        moved = {name: x + step * direction[name] for name, x in arrays.items()}
        found = call(row, moved, **masking, impl="reference")
        rng = np.random.default_rng(3)
        times = rng.standard_normal(found.output.shape), rng.standard_normal(found.lse.shape)
        lse = np.where(np.isfinite(found.lse), found.lse, 0)
        return float((found.output * times[0]).sum() + (lse * times[1]).sum())

    expected = (total(1e-6) - total(-1e-6)) / 2e-6
    found = gradients(row, "float64", impl)
    slope = sum(float((found[name] * direction[name]).sum()) for name in arrays)
    assert slope == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("shape", ["rank_3", "heads", "grouped_6_2"])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "gatv2", "trilinear", "cosine"])
def test_both_kinds(score: str, shape: str, impl: str, kind: str) -> None:
    """Gradients equal those of the other kind of arrays, and backward needs no mode of MXNet."""
    row = (score, shape, "four")
    found = gradients(row, "float32", impl, kind)
    mx.npx.reset_np()
    same = gradients(row, "float32", impl)
    for name, x in same.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("request_", ["write", "add", "null"])
def test_what_is_requested(request_: str, impl: str, kind: str) -> None:
    """Two passes write a gradient once, add it twice, or give none; other gradients stay."""
    rng = np.random.default_rng(0)
    shapes = (2, 3, 5), (2, 7, 5), (2, 7, 4), (6, 5), (6, 5), (6,)
    once: list[np.ndarray] = []
    for how in ("write", request_):
        xs = [to(rng.standard_normal(s), "float64", kind) for s in shapes]
        rng = np.random.default_rng(0)
        xs = [to(rng.standard_normal(s), "float64", kind) for s in shapes]
        for i, x in enumerate(xs):
            x.attach_grad(grad_req=how if i in (0, 3) else "write")
        for _ in range(2):
            with autograd.record():
                y = attention(*xs[:3], score=Additive(*xs[3:]), valid_lens=[2, 6], impl=impl)
            y.backward()
        found = [None if x.grad is None else numbers(x.grad) for x in xs]
        if not once:
            once = found
            continue
        for i, x in enumerate(found):
            if i in (0, 3) and how == "null":
                assert x is None or not x.any()
            else:
                times = 2 if i in (0, 3) and how == "add" else 1
                np.testing.assert_allclose(x, times * once[i], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("score", SCORES)
def test_nan_in_padding_reaches_nothing(score: str, impl: str, kind: str) -> None:
    """NaN in padding reaches neither outputs nor gradients; rows without keys are 0."""
    if SCORES[score].kind in ("SquaredProduct",):  # a callable may read padding
        return
    row = (score, "rank_3", "none")
    arrays, _ = inputs_of(row, "float32")
    if kind == "nd" and any(x.shape == () for x in arrays.values()):
        return  # without its mode, MXNet has no arrays of shape ()
    arrays["query"][0] = np.nan
    arrays["key"][:, 4:] = arrays["value"][:, 4:] = np.nan
    arrays["key"][0] = arrays["value"][0] = np.inf
    given = {name: to(x, kind=kind) for name, x in arrays.items()}
    for x in given.values():
        x.attach_grad()
    lengths = to(np.float32([0, 2, 4]), kind=kind)
    with autograd.record():
        found = call(row, given, valid_lens=lengths, impl=impl)
    found.output.backward()
    output = numbers(found.output)
    assert np.isfinite(output).all()
    assert not output[0].any()
    assert (numbers(found.lse)[0] == -np.inf).all()
    for name, x in given.items():
        grad = numbers(x.grad)
        assert np.isfinite(grad).all(), name
        if name in ("query", "key", "value"):
            assert not grad[0].any(), name


def test_mixed_rows_keep_their_nan_to_themselves() -> None:
    """NaN in a key that some queries attend reaches no gradient of the other queries."""
    rng = np.random.default_rng(0)
    for impl in ("auto", "reference"):
        x, y = (rng.standard_normal((1, 3, 4)).astype("float32") for _ in range(2))
        y[0, 2] = np.nan
        query, key, value = to(x), to(y), to(y)
        for z in (query, key, value):
            z.attach_grad()
        mask = np.tril(np.ones((3, 3), bool))
        with autograd.record():
            output = attention(query, key, value, mask=mask, impl=impl)
            total = output[:, :2].sum()
        total.backward()
        assert np.isfinite(numbers(output)[:, :2]).all()
        assert np.isnan(numbers(output)[:, 2]).all()
        assert np.isfinite(numbers(query.grad)[:, :2]).all()


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_second_derivatives_raise(impl: str) -> None:
    """Second derivatives raise: MXNet has none for most operators. Nothing is silently wrong."""
    x = to(np.random.default_rng(0).standard_normal((1, 3, 4)), "float32")
    x.attach_grad()
    with autograd.record():
        total = attention(x, x, x, impl=impl).sum()
        (slope,) = autograd.grad(total, [x], create_graph=True, retain_graph=True)
        square = (slope * slope).sum()
    with pytest.raises(mx.MXNetError, match="non-differentiable"):
        square.backward()


@pytest.mark.usefixtures("np_mode")
@pytest.mark.parametrize("shape", [(0, 3, 7), (2, 0, 7), (2, 3, 0)])
@pytest.mark.parametrize("name", ["scaled_dot", "additive", "gaussian", "cosine", "trilinear"])
def test_nothing_to_attend(name: str, shape: tuple[int, int, int]) -> None:
    """Empty axes give zeros, and gradients of zero, while autograd records."""
    batch, queries, keys = shape
    case_ = SCORES[name]
    rng = np.random.default_rng(0)
    arrays = {
        "query": rng.standard_normal((batch, queries, case_.d_q)),
        "key": rng.standard_normal((batch, keys, case_.d_k)),
        "value": rng.standard_normal((batch, keys, 3)),
        **case_.make(rng, (), ()),
    }
    given = {n: to(x, "float32") if isinstance(x, np.ndarray) else x for n, x in arrays.items()}
    tensors = [x for x in given.values() if isinstance(x, mx.np.ndarray)]
    for x in tensors:
        x.attach_grad()
    fields = {x: given[x] for x in given if x not in ("query", "key", "value")}
    score = case_.build(fields, lambda x: x)
    assert isinstance(score, Score)
    with autograd.record():
        query, key, value = (given[n] for n in ("query", "key", "value"))
        output = attention(query, key, value, score=score)
        total = output.sum()
    total.backward()
    assert numbers(output).shape == (batch, queries, 3)
    assert not numbers(output).any()
    for x in tensors:
        assert not numbers(x.grad).any()


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.usefixtures("np_mode")
def test_rows_far_from_0(impl: str) -> None:
    """Rows of −1e9 and of finite minima are as exact as others."""
    q, k, value, bias, upstream = map(to, far_rows.example().values())
    options = {"bias": bias, "score": Additive(None, None, to(np.ones(4, np.float32)))}
    for x in (value, bias):
        x.attach_grad()
    with autograd.record():
        output = attention(q, k, value, impl=impl, **options)
    output.backward(upstream)
    found = {"output": output, "d_value": value.grad, "d_bias": bias.grad}
    found |= {"log_weights": log_weights(q, k, impl=impl, **options)}
    s = scores(q, k, impl=impl, **options)
    arrays = (np.asarray(numbers(x)) for x in (s, value, upstream))
    far_rows.check(*arrays, **{name: np.asarray(numbers(x)) for name, x in found.items()})
