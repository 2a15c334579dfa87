"""Gradients of output and log-sum-exp by query, key, value and every parameter."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from anyscore import Lengths, Score, attention
from helpers import plain
from helpers.budget import assert_gradients_within_budget
from helpers.by_pair import by_pair
from helpers.cases import SCORES, Case, case
from helpers.gradient_rows import GRADIENT_ROWS, exact_gradients, projections, terms
from helpers.table_rows import keep
from helpers.table_scores import RANKS

pytestmark = pytest.mark.sample


def leaves(c: Case, dtype: Any) -> tuple[dict[str, Tensor], Any]:
    """Return (query, key, value and parameters by name, the score with these parameters)."""

    def leaf(x: np.ndarray) -> Tensor:
        return torch.tensor(x, dtype=dtype).requires_grad_()

    data = {"query": leaf(c.query), "key": leaf(c.key), "value": leaf(c.value)}
    score = c.score.build(c.parameters, leaf)
    return data | (score.tensors() if isinstance(score, Score) else {}), score


def backward(
    inputs: dict[str, Tensor], output: Tensor, lse: Tensor, row: tuple[str, str, str]
) -> dict[str, Tensor]:
    grads = [torch.as_tensor(g, dtype=output.dtype) for g in projections(row)]
    found = torch.autograd.grad([output, lse], list(inputs.values()), grads)
    return dict(zip(inputs, found, strict=True))


@by_pair("row", GRADIENT_ROWS, ids="-".join)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_gradients(row: tuple[str, str, str], dtype: Any) -> None:
    c = case(*row)
    inputs, score = leaves(c, dtype)
    tensors = [inputs[name] for name in ("query", "key", "value")]
    masking = c.masking(np.asarray)
    found = attention(*tensors, score=score, **masking, return_lse=True)
    actual = backward(inputs, found.output, found.lse, row)

    output, _, lse = plain.attend(torch, *tensors, score, torch.as_tensor(keep(*row[1:])))
    same = backward(inputs, output, lse, row) if c.shape.keys else actual

    assert actual.keys() == exact_gradients(row).keys()
    assert all(x.dtype == dtype for x in actual.values())
    assert_gradients_within_budget(actual, exact_gradients(row), same, partial(terms, row))
    for name, x in actual.items():
        what = f"gradient of {name}"
        if name in ("query", "key", "value"):
            unread = ~exact_gradients(row)[name].any(axis=-1)
            assert not x[torch.as_tensor(unread)].any(), f"{what} where nothing is attended"


def small(score: str) -> tuple[list[Tensor], Any]:
    """Return (float64 leaves of a tiny call, function from leaves to the three results)."""
    case_ = SCORES[score]
    rng = np.random.default_rng(5)
    cut = {11: 2, 13: 3, 17: 2, 30: 5}  # widths of the table → tiny ones

    def tiny(x: np.ndarray, own: int) -> Tensor:
        for axis in range(x.ndim - own, x.ndim):
            x = x.take(range(cut[x.shape[axis]]), axis=axis)
        return torch.tensor(x, dtype=torch.float64).requires_grad_()

    parameters = case_.make(rng, (2,), (2,))
    names = [name for name, x in parameters.items() if isinstance(x, np.ndarray)]
    tensors = [tiny(parameters[name], RANKS[name]) for name in names]
    shapes = (2, 2, cut[case_.d_q]), (2, 3, cut[case_.d_k]), (2, 3, 2)
    data = [torch.tensor(rng.standard_normal(shape)).requires_grad_() for shape in shapes]
    mask = Lengths([[0, 2], [3, 1]])

    def call(query: Tensor, key: Tensor, value: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        fields = {**parameters, **dict(zip(names, given, strict=True))}
        built = case_.build(fields, lambda x: x)
        found = attention(
            query, key, value, score=built, mask=mask, return_weights=True, return_lse=True
        )
        lse = torch.where(found.lse == -torch.inf, 0.0, found.lse)
        return found.output, found.weights, lse

    return [*data, *tensors], call


@pytest.mark.slow
@pytest.mark.parametrize("score", SCORES)
def test_gradcheck(score: str) -> None:
    """First and second derivatives agree with finite differences, with a query without keys."""
    inputs, call = small(score)
    assert gradcheck(call, inputs, fast_mode=True)
    assert gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("masking", [{}, {"valid_lens": [0, 3]}, {"mask": np.eye(5, 7) == 0}])
def test_query_term_of_trilinear(masking: dict[str, Any]) -> None:
    """The gradient of w_q is exactly 0 from the output, where w_q cancels, but not from the lse."""
    c = case("trilinear", "rank_3", "none")
    for dtype in (torch.float32, torch.float64):
        inputs, score = leaves(c, dtype)
        tensors = [inputs[name][:2] for name in ("query", "key", "value")]
        found = attention(*tensors, score=score, **masking, return_lse=True)
        of_output = partial(torch.autograd.grad, inputs=[score.w_q], retain_graph=True)
        (through_output,) = of_output(found.output.square().sum())
        assert torch.equal(through_output, torch.zeros_like(score.w_q))
        finite = torch.where(found.lse == -torch.inf, 0.0, found.lse)
        (through_lse,) = of_output(finite.sum())
        assert (through_lse.abs() > 0.1).any()
