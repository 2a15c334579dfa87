"""docs/separable.md states the measured errors of impl="separable"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anyscore import attention
from anyscore.functional import separable
from anyscore.kernels import cpu
from helpers.samples import normal
from helpers.separable_calls import bare, inputs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built"),
]

PAGE = Path(__file__).parents[2] / "docs" / "separable.md"
SIZES = {"h": 64, "t_q": 256, "t_k": 256}


def stated(*key: str) -> dict[str, str]:
    """Return the row of the page that starts with the cells `key`, by the head of its table."""
    head: list[str] = []
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        head = head if cells and head else cells
        if cells[: len(key)] == list(key):
            found.append(dict(zip(head[len(key) :], cells[len(key) :], strict=True)))
    (row,) = found
    return row


def compare(page: dict[str, str], measured: dict[str, Any]) -> None:
    numbers = {name: float(torch.as_tensor(x).detach()) for name, x in measured.items()}
    print(*(f"{x:.1e}" for x in numbers.values()), sep=" | ")
    for name, x in numbers.items():
        assert 0.5 * float(page[name]) < x < 1.1 * float(page[name]), name


def call(xs: list[torch.Tensor], impl: str) -> Any:
    score = bare(xs[3])
    return attention(*xs[:3], score=score, impl=impl, return_weights=True, return_lse=True)


def tensors(limit: float) -> list[torch.Tensor]:
    arrays, score = inputs(limit, **SIZES)
    return [torch.tensor(x) for x in (*arrays, score.w_v)]


def largest(error: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return error.abs().max() / exact.abs().max()


@pytest.mark.parametrize("limit", [2, 4])
@pytest.mark.parametrize("features", ["float32", "float16"])
def test_results(limit: float, features: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page states the errors of results; float16 features are those of a GPU."""
    monkeypatch.setattr(separable, "_accelerated", lambda x: features == "float16")
    page, xs = stated(f"{limit:g}", features), tensors(limit)
    exact, found = call(xs, "reference"), call([x.float() for x in xs], "separable")
    ratio, table = found.weights / exact.weights - 1, separable.table_for(limit)
    measured = {
        "tanh": table.error,
        "weights, rms": ratio.square().mean().sqrt(),
        "weights": ratio.abs().max(),
        "output": largest(found.output - exact.output, exact.output),
        "log-sum-exp": (found.lse - exact.lse).abs().max(),
    }
    assert table.rank == int(page["rank"])
    assert measured["weights, rms"] < 1e-3
    compare(page, measured)


@pytest.mark.parametrize("limit", [2, 4])
@pytest.mark.parametrize("by", ["rank + 4", "rank + 4, bfloat16"])
def test_gradients(limit: float, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(separable, "_accelerated", lambda x: "bfloat16" in by)
    dtype = torch.bfloat16 if "bfloat16" in by else torch.float32
    xs, upstream = [x.to(dtype) for x in tensors(limit)], torch.tensor(normal(2, 256, 3)).to(dtype)
    exact = slopes([x.double() for x in xs], upstream.double(), "reference")
    found = slopes(xs, upstream, "separable")
    names = "dquery", "dkey", "dvalue", "dw"
    measured = zip(names, found, exact, strict=True)
    compare(stated(f"{limit:g}", by), {name: largest(x - y, y) for name, x, y in measured})


def slopes(xs: list[torch.Tensor], upstream: torch.Tensor, impl: str) -> Any:
    leaves = [x.detach().requires_grad_() for x in xs]
    return torch.autograd.grad(call(leaves, impl).output, leaves, upstream)
