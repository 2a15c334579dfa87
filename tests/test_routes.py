"""What runs a call, and why: a plain value; nothing falls back in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyscore import (
    Dot,
    Plan,
    ScaledDot,
    attention,
    plan,
)
from samples import make_score, normal

B, T_Q, T_K, D, D_V = 2, 3, 7, 5, 11


def test_fused_where_the_contract_is_kept() -> None:
    q, k, v = (torch.tensor(normal(B, t, D)) for t in (T_Q, T_K, T_K))
    assert plan(q, k, v) == Plan("sdpa", "fused, and keeps the contract")
    assert plan(q, k, v, impl="fused").route == "sdpa"
    assert plan(q, k, v, impl="reference") == Plan("reference", "asked for")
    for score in (Dot(), ScaledDot(), ScaledDot(0.3), ScaledDot(torch.tensor(0.3).double())):
        assert plan(q, k, v, score=score).route == "sdpa"
        fused = attention(q, k, v, score=score, impl="fused")
        torch.testing.assert_close(fused, attention(q, k, v, score=score, impl="reference"))
    with torch.no_grad():
        assert plan(q.clone().requires_grad_(), k, v).route == "sdpa"


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("the score is not a product", {"score": make_score("Additive").map(torch.tensor)}),
        ("the score is not a product", {"score": lambda q, k: q @ k.mT}),
        ("the product has biases", {"score": make_score("Trilinear").map(torch.tensor)}),
        ("NaN in masked keys or values would reach the output", {"valid_lens": [3, 4]}),
        ("its dropout is not reproducible across devices", {"dropout": 0.1}),
        ("it gives no log-sum-exp", {"return_lse": True}),
        ("its second derivatives raise", {"query": "grad"}),
        ("its second derivatives raise", {"value": "grad"}),
        ("d_v ≠ d_k leaves its fused path", {"value": torch.zeros(B, T_K, D_V).double()}),
    ],
)
def test_the_reference_where_it_is_not(reason: str, change: dict[str, Any]) -> None:
    call: dict[str, Any] = {
        name: torch.tensor(normal(B, t, D))
        for name, t in (("query", T_Q), ("key", T_K), ("value", T_K))
    }
    for name, x in change.items():
        call[name] = call[name].requires_grad_() if x == "grad" else x
    assert plan(**call) == Plan("reference", f"sdpa: {reason}")
    with pytest.raises(RuntimeError) as error:
        attention(**call, impl="fused")
    assert str(error.value) == f'impl="fused" cannot run: sdpa: {reason}. Use impl="auto".'
    auto, reference = (attention(**call, dropout_seed=0, impl=i) for i in ("auto", "reference"))
    torch.testing.assert_close(auto, reference, rtol=0, atol=0)


def test_numpy_has_nothing_fused() -> None:
    arrays = [normal(B, t, D) for t in (T_Q, T_K, T_K)]
    assert plan(*arrays) == Plan("reference", "no fused implementation for this framework")
    with pytest.raises(RuntimeError, match="no fused implementation for this framework"):
        attention(*arrays, impl="fused")
