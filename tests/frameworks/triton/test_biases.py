"""Biases in every interpreted Triton kernel agree with the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore.backends.record import run_reference
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels.triton import attention as triton
from anyscore.kernels.triton import call, pairs
from anyscore.ops import load
from helpers.budget import assert_within_budget
from helpers.by_pair import also_weekly
from helpers.oracle import numbers

BATCH, GROUPS, WIDTH, D_V = 2, 2, 5, 3
CASES = [
    ("squared", 4, 1, (2, 4, 1, 130), "", False, False),
    ("squared", 4, 1, (2, 4, 1, 130), "log1p", False, True),
    ("tanh", 4, 2, (4, 1, 131), "tanh", True, False),
    ("product", 4, 70, (70, 130), "tanh", False, False),
    ("product", 4, 70, (2, 4, 1, 199), "", True, True),
    ("leaky_relu", 2, 70, (2, 1, 70, 130), "", False, False),
    ("tanh", 2, 70, (2, 1, 199), "tanh", True, True),
    ("squared", 2, 70, (2, 1, 70, 130), "log1p", False, True),
    ("tanh", 2, 70, (2, 1, 199), "", True, False),
]
"""Pair, heads, queries, shape of the bias, outer function, diagonal bias, bias after the function.

If the interpreter takes long, the row has two heads, which share a key head.
"""


def made(
    heads: int, queries: int, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Operands, Results]:
    """Draw operands and gradients of all results; one query has no keys."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(queries)
    draw = lambda *n: torch.randn(*n, generator=generator).to(dtype)  # noqa: E731
    keys, lead, shared = 130, (BATCH, heads), (BATCH, heads // GROUPS)
    stop = torch.randint(0, keys + 1, (*lead, queries), generator=generator)
    stop[0, 1, 0] = 0
    x = Operands(
        draw(*lead, queries, WIDTH), draw(*shared, keys, WIDTH), draw(heads, WIDTH),
        draw(1, heads // GROUPS, keys), draw(*shared, keys, D_V), draw(*shape), stop=stop,
    )  # fmt: skip
    upstream = Results(*(draw(*lead, *n) for n in ((queries, D_V), (2, queries), (queries, keys))))
    return x, upstream


def defined(x: Operands, s: Settings, upstream: Results, dtype: str) -> list[Tensor]:
    """Return results and gradients of the factors by the definition."""
    kind = getattr(torch, dtype)
    to = lambda y: y.to(kind) if y.is_floating_point() else y  # noqa: E731
    x = x.map(to)
    leaves = [y.requires_grad_() for y in x[:N_DIFFERENTIABLE] if y is not None]
    found = run_reference(load("torch"), x, s)
    total = torch.zeros((), dtype=kind)
    for y, d in zip(found, upstream, strict=True):
        total = total + (torch.where(y.isfinite(), y, 0.0) * to(d)).sum()
    return [*(y.detach() for y in found), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("bands", [True, *also_weekly(False)])
@pytest.mark.parametrize(("name", "heads", "queries", "shape", "outer", "diagonal", "after"), CASES)
def test_values_and_gradients(
    name: str, heads: int, queries: int, shape: tuple[int, ...], outer: str, diagonal: bool,
    after: bool, bands: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With bands, the backward works on some of the keys at a time."""
    if bands:
        monkeypatch.setattr(call, "BAND_BYTES", 0)
        monkeypatch.setattr(call, "LEAST_BAND", 64)
    monkeypatch.setattr(triton, "SKEWED", 33)  # sums diagonals of 33 queries at a time
    x, upstream = made(heads, queries, shape, torch.float32)
    lead = BATCH, heads
    s = Settings(
        name, 0.4, GROUPS, 0.0, 8, lead, outer, 2.0 if outer else 0.0, True, diagonal, after
    )
    results = triton.forward(pairs.BY_NAME[name], x, s, torch.float32)
    gradients = triton.backward(pairs.BY_NAME[name], x, s, results, upstream)
    exact = defined(x, s, upstream, "float64")
    plain = defined(x, s, upstream, "float32")
    factors = [name for name in Operands._fields[:N_DIFFERENTIABLE] if getattr(x, name) is not None]
    names = [*Results._fields, *factors]
    found: list[Any] = [*results, *(getattr(gradients, name) for name in factors)]
    for what, one, other, simple in zip(names, found, exact, plain, strict=True):
        assert_within_budget(one, numbers(other), simple, what, "float32")


@pytest.mark.parametrize("queries", [1, 70])
def test_minus_infinity(queries: int) -> None:
    """A query whose scores are all −∞ has output 0; its bias has gradient 0, others are finite."""
    x, upstream = made(2, queries, (queries, 130), torch.float32)
    x.bias[0] = -torch.inf
    s = Settings("squared", -0.4, GROUPS, 0.0, 8, (BATCH, 2))
    results = triton.forward(pairs.SQUARED, x, s, torch.float32)
    assert (results.output[..., 0, :] == 0).all()
    assert (results.stats[..., 0, 0] == -torch.inf).all()
    gradients = triton.backward(pairs.SQUARED, x, s, results, upstream._replace(scores=None))
    assert all(y.isfinite().all() for y in gradients[:N_DIFFERENTIABLE] if y is not None)
    assert (gradients.bias[0] == 0).all()
