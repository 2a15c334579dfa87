"""Formulas work in interpreted Triton; `test_compiled.py` compiles some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Causal, attention, scores
from anyscore.kernels import cpu
from anyscore.kernels.triton.formula import of_formula, source
from anyscore.score import PRODUCT, SQUARED, TANH, Outer
from anyscore.score.formula import formula_of
from anyscore.score.pairs import Pair
from helpers.own_scores import EVERY, FAR, FAR_KEYS, FAR_SLOPE, LEAKY, SOFTPLUS, WAVE, Own, draw


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("formula", [SOFTPLUS, LEAKY, EVERY])
def test_values_and_gradients(
    formula: str, dtype: torch.dtype, queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.from_formula("of this test", formula)
    monkeypatch.setattr(cpu, "PAIRS", (*cpu.PAIRS, pair))  # kernels run instead of the core
    arrays = draw(1, 2, queries=queries, keys=17, width=5)
    xs = [torch.tensor(x).to(dtype).requires_grad_() for x in arrays]

    def results(impl: Any) -> Any:
        options: dict[str, Any] = {"mask": Causal("end"), "impl": impl}
        output = attention(*xs[:3], score=Own(xs[3], pair), **options)
        return output, *torch.autograd.grad((output**2).sum(), xs)

    allowed = 1e-4 if dtype == torch.float32 else 1e-12
    for x, y in zip(results("fused"), results("reference"), strict=True):
        assert (x - y).abs().max() <= allowed * y.abs().max()


@pytest.mark.parametrize("queries", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("pair", [PRODUCT, TANH, SQUARED], ids=lambda pair: pair.name)
def test_outer_functions(pair: Pair, dtype: torch.dtype, queries: int) -> None:
    outer = Outer.from_formula("wave", WAVE)
    arrays = draw(1, 2, queries=queries, keys=17, width=5, scale=0.5)
    xs = [torch.tensor(x).to(dtype).requires_grad_() for x in arrays]

    def results(impl: Any, xs: list[torch.Tensor]) -> Any:
        options: dict[str, Any] = {"mask": Causal("end"), "impl": impl}
        output = attention(*xs[:3], score=Own(xs[3], pair, outer), **options)
        return output, *torch.autograd.grad((output**2).sum(), xs)

    exact = results("reference", [x.detach().double().requires_grad_() for x in xs])
    allowed = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    for x, y in zip(results("fused", xs), exact, strict=True):
        assert (x - y).abs().max() <= allowed * y.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("formula", FAR)
def test_a_choice_of_far_numbers(
    formula: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and slopes of both sides keep their sizes."""
    pair = Pair.from_formula("of this test", formula)
    monkeypatch.setattr(cpu, "PAIRS", (*cpu.PAIRS, pair))
    q, k, w = (torch.tensor(x, dtype=dtype) for x in ([[0.0]] * 3, FAR_KEYS, [1.0]))
    found = scores(q.requires_grad_(), k, score=Own(w, pair), impl="fused")
    np.testing.assert_allclose(found[0].detach(), FAR[formula], rtol=1e-6)
    if formula == FAR_SLOPE[0]:
        (slope,) = torch.autograd.grad(found.diagonal().sum(), q)
        np.testing.assert_allclose(slope[:, 0], FAR_SLOPE[1], rtol=1e-6)


def test_nan_makes_its_rows_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair.from_formula("of this test", "maximum(a, b)")
    monkeypatch.setattr(cpu, "PAIRS", (*cpu.PAIRS, pair))
    q, k, v, w = (torch.tensor(x) for x in draw(1, queries=4, keys=7, width=3))
    q[0, 1, 2] = np.nan
    found = attention(q, k, v, score=Own(w, pair), impl="fused")
    assert found.isnan().all(-1).tolist() == [[False, True, False, False]]


def test_one_text_for_one_formula() -> None:
    """Triton's cache goes by source, and the source names no place of this process."""
    first = formula_of(SOFTPLUS)
    assert of_formula(first) is of_formula(formula_of("softplus(a + b)"))
    assert "tl.exp" in source(first)
    assert "anyscore" not in source(first)
