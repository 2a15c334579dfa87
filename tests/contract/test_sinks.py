"""A sink gives the results of a softmax with one more logit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from anyscore import (
    Additive,
    Dot,
    Gaussian,
    Lengths,
    Score,
    Trilinear,
    attention,
    log_sum_exp,
    log_weights,
    plan,
    scores,
)
from anyscore.call.task import Call, Options
from anyscore.functional.attention import attend, weights
from anyscore.layers.last_weights import snapshot
from anyscore.ops import load
from helpers import oracle
from helpers.budget import EPS, assert_near
from helpers.by_pair import by_pair
from helpers.cases import OPTIONS, SCORES, case
from helpers.table_rows import Row

pytestmark = pytest.mark.sample

ROWS = [(score, "heads", "four") for score in SCORES | OPTIONS]
ROWS += [("trilinear", "grouped_6_2", "four"), ("dot", "no_key", "none"), ("dot", "rank_3", "four")]


def with_logit(row: Row, sink: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return output, weights and log-sum-exp by loops in float64; sink: (heads,) or ()."""
    c = case(*row)
    s = oracle.scores(
        c.query, c.key, c.score.build(c.parameters, np.asarray), **c.masking(np.asarray)
    )
    value = oracle.numbers(c.value)
    lead = s.shape[:-2]
    found = (
        np.zeros((*lead, s.shape[-2], value.shape[-1])),
        np.zeros_like(s),
        np.zeros(s.shape[:-1]),
    )
    for at in np.ndindex(*s.shape[:-1]):
        logit = float(sink[at[-2]] if sink.ndim else sink)
        attended = np.flatnonzero(s[at] > -np.inf)
        w, lse = oracle.softmax([*s[at][attended].tolist(), logit])
        of_v = oracle.place(value.shape[:-2], at[:-1], lead)
        found[1][at][attended] = w[:-1]
        found[0][at] = np.array(w[:-1]) @ value[of_v][attended] if len(attended) else 0.0
        found[2][at] = lse
    return found


@by_pair("row", ROWS, ids="-".join)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_values(row: Row, impl: str) -> None:
    c = case(*row)
    heads = c.shape.lead[-1:] if len(c.shape.lead) > 1 else ()
    sink = np.random.default_rng(1).normal(size=heads) * 2
    exact = with_logit(row, sink)
    tensors = [x.astype(np.float64) for x in (c.query, c.key, c.value)]
    score = c.score.build(c.parameters, partial(np.asarray, dtype=np.float64))
    call = {"score": score, **c.masking(np.asarray), "impl": impl}
    for given in (sink, torch.tensor(sink)):
        if isinstance(given, Tensor):
            tensors = [torch.tensor(x) for x in tensors]
            call["score"] = c.score.build(c.parameters, partial(torch.tensor, dtype=torch.float64))
            call |= c.masking(torch.as_tensor)
        found = attention(*tensors, sink=given, return_weights=True, return_lse=True, **call)
        logs = (
            log_weights(*tensors[:2], sink=given, **call) if row[1] != "no_key" else found.weights
        )
        lse = log_sum_exp(*tensors[:2], sink=given, **call)
        near = 2000 * EPS["float64"]
        for name, x, expected in zip(("output", "weights", "lse"), found, exact, strict=True):
            assert_near(x, expected, near * max(1.0, np.abs(expected).max(initial=0)), name)
        with np.errstate(divide="ignore"):
            expected = np.log(exact[1])
        if row[1] != "no_key":
            logs = log_weights(*tensors[:2], sink=given, **call)
            assert_near(logs, expected, near * 10, "log_weights")
        assert_near(lse, exact[2], near * 10, "log_sum_exp")


def small(*, dtype: Any = torch.float64) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, dtype=dtype, generator=made)
    return [draw(*n).requires_grad_() for n in ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2), (2,))]


@pytest.mark.parametrize("impl", ["fused", "reference"])
@pytest.mark.parametrize("score", [Dot(), Gaussian(2.0)])
def test_gradients(score: Score, impl: str) -> None:
    """First and second derivatives, by the sink too, are right, with a query without keys."""

    def call(query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> Any:
        return tuple(attention(
            query, key, value, score=score, mask=Lengths([[0, 2, 5], [3, 1, 4]]), sink=sink,
            softcap=3.0, return_weights=True, return_lse=True, impl=impl,
        ))  # fmt: skip

    assert gradcheck(call, small(), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, small(), fast_mode=True)


def test_nothing_attended_leaves_all_to_the_sink() -> None:
    query, key, value, sink = small()
    found = attention(
        query, key, value, valid_lens=[0, 3], sink=sink, return_weights=True, return_lse=True
    )
    assert not found.output[0].any()
    assert not found.weights[0].any()
    assert torch.equal(found.lse[0], sink[:, None].expand(2, 3))
    found.output.sum().backward()
    assert all(x.grad.isfinite().all() for x in (query, key, value, sink))


def test_extreme_sinks() -> None:
    """A very low sink changes nothing, and a very high sink takes all the weight, without NaN."""
    query, key, value, _ = (x.detach() for x in small(dtype=torch.float32))
    without = attention(query, key, value)
    assert torch.equal(attention(query, key, value, sink=-1e30), without)
    assert torch.equal(attention(query, key, value, sink=torch.tensor(-math.inf)), without)
    for sink in (1e4, 1e30, torch.tensor([1e4, 3e38])):
        assert not attention(query, key, value, sink=sink).any()
    assert attention(query, key, value, sink=torch.tensor(math.nan)).isnan().all()
    shifted = attention(query, key, value, score=Gaussian(1e-2), sink=-3e4)
    assert shifted.isfinite().all()


def test_weights_of_a_layer_s_last_call() -> None:
    """The weights of a layer's last call use the sink at the time of the call."""
    query, key, value, sink = (x.detach() for x in small())
    score = Trilinear(*(torch.randn(4, dtype=torch.float64) for _ in range(3)))
    call = Call(query, key, value, score, sink=sink)
    result, task = attend(call, Options(return_scores=True))
    task = snapshot(load("torch"), task)
    sink += 1
    torch.testing.assert_close(weights(task), result.weights)


def test_half_precision() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        query, key, value, sink = (x.detach() for x in small(dtype=torch.float32))
        halves = [x.to(dtype) for x in (query, key, value)]
        found = attention(*halves, sink=sink)
        assert found.dtype == dtype
        exact = attention(*(x.float() for x in halves), sink=sink)
        torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=2**-7)


def test_scores_have_none() -> None:
    query, key, *_ = small()
    with pytest.raises(TypeError, match="sink"):
        scores(query, key, sink=1.0)  # type: ignore[call-arg]


def test_the_route(no_core: None) -> None:
    query, key, _, sink = (x.detach() for x in small())
    assert plan(query, key, key).route == "sdpa"
    assert plan(query, key, key, sink=sink).route == "reference"


WRONG: list[tuple[Any, type[Exception], str]] = [
    ("0", TypeError, "sink must be a number, or a tensor"),
    (True, TypeError, "sink must be a number"),
    ([1.0, 2.0], TypeError, "sink must be a number"),
    (math.nan, ValueError, "sink must be finite, got nan"),
    (math.inf, ValueError, "sink must be finite"),
    (10**400, ValueError, "sink must be finite in float64, got 10"),
    (torch.zeros(3), ValueError, r"sink has shape \(3,\), expected \(\) or \(2,\)"),
    (torch.zeros(3, 1), ValueError, r"or what broadcasts to \(2, 2\), the leading dimensions"),
    (torch.zeros(1, 2, 2), ValueError, r"sink has shape \(1, 2, 2\)"),
    (torch.zeros(2, dtype=torch.int64), TypeError, "sink is int64"),
    (np.zeros(2), TypeError, "sink is a NumPy tensor"),
]


@pytest.mark.parametrize(("sink", "kind", "message"), WRONG)
def test_errors(sink: Any, kind: type[Exception], message: str) -> None:
    query, key, value, _ = small()
    for function in (attention, plan, log_sum_exp, log_weights):
        given = (query, key, value) if function in (attention, plan) else (query, key)
        with pytest.raises(kind, match=message):
            function(*given, sink=sink)


def test_without_heads_it_is_one_number() -> None:
    query, key, value = (x[0].detach() for x in small()[:3])
    w = torch.ones(4, dtype=torch.float64)
    for sink in (0.5, torch.tensor(0.5)):
        assert attention(query, key, value, score=Additive(None, None, w), sink=sink).shape == (
            2,
            3,
            2,
        )
    with pytest.raises(ValueError, match=r"sink has shape \(3,\), expected \(\) or what broad"):
        attention(query, key, value, sink=torch.zeros(3))


def test_it_broadcasts_to_the_leading_dimensions() -> None:
    """A sink may be one for each example, for each head, or for both."""
    query, key, value, _ = (x.detach() for x in small())
    sinks = torch.tensor([[-1.0, 0.5], [2.0, -0.25]], dtype=torch.float64)
    for sink, of_each in ((sinks, sinks), (sinks[:, :1], sinks[:, :1].expand(2, 2))):
        found = attention(query, key, value, sink=sink)
        for i, j in np.ndindex(2, 2):
            exact = attention(query[i, j], key[i, j], value[i, j], sink=of_each[i, j])
            torch.testing.assert_close(found[i, j], exact)
    found = attention(query[:, 0], key[:, 0], value[:, 0], sink=sinks[0])  # without heads
    exact = attention(query[:, :1], key[:, :1], value[:, :1], sink=sinks[0][:, None])
    torch.testing.assert_close(found, exact[:, 0])
