"""A block of a longer call drops its entries: operators, their transforms, and the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from anyscore.backends.record import run_reference
from anyscore.backends.torch import autograd
from anyscore.call.operands import Operands, Results, Settings
from anyscore.ops import load
from frameworks.torch.fused_calls import MARKS
from helpers.dropout_blocks import ORIGINS, QUERIES, SEED, SETTINGS, Block, assert_drops, block

pytestmark = [pytest.mark.sample, *MARKS]
S = SETTINGS._replace(lead=list(SETTINGS.lead))
ORIGIN = pytest.mark.parametrize("origin", ORIGINS)


def by_operators(x: Operands, s: Settings) -> Results:
    return autograd.forward(x, s)


def by_reference(x: Operands, s: Settings) -> Results:
    return run_reference(load("torch"), x, s._replace(lead=tuple(s.lead)))


def record(a: Tensor, b: Tensor, value: Tensor, origin: Tensor | None) -> Operands:
    return Operands(a, b, value=value, seed=torch.tensor(SEED), origin=origin)


def output(run: Callable[..., Any], *args: Any) -> Tensor:
    """Return the output of a block as a function of its tensors and its origin."""
    return run(record(*args), S).output


def with_gradients(
    run: Callable[..., Tensor], x: Block, origin: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Return the output of a function as `output`, and the gradients of a, b and value."""
    *xs, d_output = map(torch.tensor, x)
    found = run(*(y.requires_grad_() for y in xs), torch.tensor(origin))
    gradients = torch.autograd.grad(found, xs, d_output)
    named = zip(("output", "d_a", "d_b", "d_value"), (found.detach(), *gradients), strict=True)
    return {name: y.numpy() for name, y in named}


@pytest.mark.parametrize("run", [by_operators, by_reference])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", QUERIES)
@ORIGIN
def test_values_and_gradients(
    origin: tuple[int, int], queries: int, dtype: str, run: Callable[..., Any]
) -> None:
    x = block(queries, dtype)
    assert_drops(with_gradients(partial(output, run), x, origin), x, origin)


def test_second_derivatives() -> None:
    found = []
    for run in (by_operators, by_reference):
        xs = [torch.tensor(y).requires_grad_() for y in block(3, "float64")[:3]]
        loss = output(run, *xs, torch.tensor([37, 52])).square().sum()
        first = torch.autograd.grad(loss, xs, create_graph=True)
        found.append(torch.autograd.grad(sum(y.square().sum() for y in first), xs))
    for y, z in zip(*found, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_compiled_once_for_all_origins() -> None:
    """The origin is a tensor: other numbers need no other graph."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(partial(output, by_operators), fullgraph=True, backend=counter)
    x = block(3, "float64")
    for origin in ORIGINS:
        assert_drops(with_gradients(compiled, x, origin), x, origin)
    assert counter.frame_count == 1


def test_vmap_over_origins() -> None:
    """Each entry of the batch is a block with an origin of its own, under the same seed."""
    *xs, d_output = map(torch.tensor, block(3, "float64"))
    origins = torch.tensor(ORIGINS)

    def gradients(origin: Tensor) -> tuple[Tensor, ...]:
        found, back = torch.func.vjp(lambda *xs: output(by_operators, *xs, origin), *xs)
        return found, *back(d_output)

    batched = torch.func.vmap(gradients)(origins)
    for i, origin in enumerate(origins):
        for y, z in zip(batched, gradients(origin), strict=True):
            torch.testing.assert_close(y[i], z)


@pytest.mark.parametrize("run", [by_operators, by_reference])
def test_edges_have_no_origin(run: Callable[..., Any]) -> None:
    x = record(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 2), torch.tensor([0, 4]))
    x = x._replace(rowptr=torch.tensor([0, 1, 3]), col=torch.tensor([0, 1, 3]))
    s = Settings("product", 1.0, 1, 0.4, 1, [])
    with pytest.raises(ValueError, match="origin"):
        run(x, s)
