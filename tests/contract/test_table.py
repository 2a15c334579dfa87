"""Values by table in NumPy and PyTorch, and in PyTorch's own attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import attention
from anyscore.functional.attention import plan
from helpers import oracle, plain
from helpers.budget import assert_within_budget
from helpers.cases import SCORES, SHAPES, case
from helpers.table_rows import check, dealt, modes_and_scores

pytestmark = pytest.mark.sample

SDPA_KINDS = ("Dot", "ScaledDot", "Bilinear", "Cosine")


def recorded(x: np.ndarray) -> torch.Tensor:
    return torch.tensor(x).requires_grad_()


MODES: dict[str, tuple[Any, Any, dict[str, str]]] = {
    "numpy float64": (np, partial(np.asarray, dtype=np.float64), {}),
    "numpy float32": (np, partial(np.asarray, dtype=np.float32), {}),
    "torch by definition": (
        torch, partial(torch.as_tensor, dtype=torch.float64), {"impl": "reference"}
    ),
    "torch": (torch, partial(torch.as_tensor, dtype=torch.float32), {}),
    "torch recorded": (torch, recorded, {}),
}  # fmt: skip
HANDS = dealt(list(MODES))


@pytest.mark.parametrize(("mode", "score"), modes_and_scores(HANDS))
def test_values(mode: str, score: str) -> None:
    xp, to, options = MODES[mode]
    for row in HANDS[mode]:
        if row[0] == score:
            check(xp, to, case(*row), row, **options)


PRODUCTS = sorted({score for score, case_ in SCORES.items() if case_.kind in SDPA_KINDS})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sdpa(shape: str, dtype: Any, no_core: None) -> None:
    """PyTorch's own attention runs calls without a mask and with d_v = d_k, rightly."""
    for score in PRODUCTS:
        c = case(score, shape, "none")
        tensors = [torch.as_tensor(x, dtype=dtype) for x in (c.query, c.key, c.value)]
        tensors[2] = tensors[2][..., : c.key.shape[-1]]
        built = c.score.build(c.parameters, partial(torch.as_tensor, dtype=dtype))
        expected = oracle.attend(*tensors, built)
        same = plain.attend(torch, *tensors, built)
        route = plan(*tensors, score=built).route
        assert (route == "sdpa") == (0 not in (*c.query.shape, *c.key.shape)), score
        found = attention(*tensors, score=built, return_weights=True)
        found = [attention(*tensors, score=built), found.output, found.weights]
        names = "output alone", "output", "weights"
        exact, simple = ((x.output, x.output, x.weights) for x in (expected, oracle.Result(*same)))
        for name, *three in zip(names, found, exact, simple, strict=True):
            assert_within_budget(*three, f"{name} of {score}", str(dtype)[6:])
