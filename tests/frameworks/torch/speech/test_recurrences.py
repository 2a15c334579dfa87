"""Monotonic, chunkwise and forward alignments equal the published sums, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anyscore.torch import (
    Attention,
    ForwardAttention,
    LocationSensitive,
    MoChA,
    MonotonicAttention,
    chunkwise,
    forward_alignment,
    monotonic_alignment,
)
from anyscore.torch.speech.monotonic_recurrence import _Diagonals, _Rows
from frameworks.torch.speech.plain_speech import (
    D_K,
    D_Q,
    HIDDEN,
    drawn,
    expected_alignment,
    expected_chunks,
)
from helpers.transformed import WARNINGS

pytestmark = [pytest.mark.sample, *WARNINGS]
SIZES = {"d_q": D_Q, "d_k": D_K, "hidden": HIDDEN}


@pytest.mark.parametrize("solve", [_Rows, _Diagonals])
@settings(max_examples=30, deadline=None)
@given(
    p=st.integers(1, 6).flatmap(
        lambda keys: st.lists(
            st.lists(
                st.fractions(0, 1, max_denominator=64) | st.sampled_from([0, 1]),
                min_size=keys,
                max_size=keys,
            ),
            min_size=1,
            max_size=7,
        )
    )
)
def test_alignment_is_exact(solve: Any, p: list[list[Any]]) -> None:
    """Alignments equal sums and products of fractions, with p = 0 and p = 1 among these."""
    exact = expected_alignment([[Fraction(x) for x in row] for row in p])
    tensor = torch.tensor([[float(x) for x in row] for row in p], dtype=torch.float64)[None]
    first = torch.eye(len(p[0]), dtype=torch.float64)[:1]
    expected = torch.tensor([[float(x) for x in row] for row in exact], dtype=torch.float64)[None]
    for found in (solve.apply(tensor, first), monotonic_alignment(tensor)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("solve", [_Rows, _Diagonals])
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 3), (1, 1, 4), (3, 4, 1), (1, 1, 1)])
def test_alignment_gradients(solve: Any, shape: tuple[int, ...]) -> None:
    p = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p[0, 0, 0], p[-1, -1, -1] = 1.0, 0.0
    previous = torch.rand(shape[0], shape[2], dtype=torch.float64)
    assert torch.autograd.gradcheck(solve.apply, (p.requires_grad_(), previous.requires_grad_()))


def test_long_alignments_are_stable() -> None:
    """Float32 is accurate, although cumulative products of 1 − p vanish after a few keys."""
    p = torch.sigmoid(4 * torch.randn(2, 60, 400, generator=torch.Generator().manual_seed(0)))
    found = monotonic_alignment(p)
    exact = torch.tensor([_recurrence(rows) for rows in p.double().tolist()], dtype=torch.float64)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-30)
    assert (found >= 0).all()
    assert (found.sum(-1) <= 1 + 1e-5).all()


def _recurrence(p: list[list[float]]) -> list[list[float]]:
    before, rows = [1.0] + [0.0] * (len(p[0]) - 1), []
    for row in p:
        inspected, found = 0.0, []
        for j, stop in enumerate(row):
            inspected = before[j] + (inspected * (1 - row[j - 1]) if j else 0.0)
            found.append(stop * inspected)
        rows.append(found)
        before = found
    return rows


@pytest.mark.parametrize("width", [1, 3, 20])
def test_chunks(width: int) -> None:
    alpha, u = drawn(2, 3, 9).detach().abs().requires_grad_(), drawn(2, 3, 9, seed=1)
    found, expected = chunkwise(alpha, u, width), expected_chunks(alpha, u, width)
    slope = drawn(2, 3, 9, seed=2).detach()
    results = [(x, torch.autograd.grad(x, (alpha, u), slope)) for x in (found, expected)]
    torch.testing.assert_close(*results)
    assert torch.autograd.gradcheck(lambda a, e: chunkwise(a, e, width), (alpha, u))


def test_chunks_of_large_energies_and_masks() -> None:
    alpha, u = torch.full((1, 6), 0.2), torch.tensor([[1e4, -1e4, 0.0, 3e4, -3e4, 1.0]])
    found = chunkwise(alpha, u.requires_grad_(), 3)
    exact = chunkwise(alpha.double(), u.double(), 3)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-7)
    assert torch.isfinite(torch.autograd.grad(found.square().sum(), u)[0]).all()
    masked = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf, -torch.inf, 2.0]]).requires_grad_()
    found = chunkwise(alpha, masked, 2)
    torch.testing.assert_close(found, expected_chunks(alpha, masked, 2))
    assert not found[0, 2:5].any()
    assert torch.isfinite(torch.autograd.grad(found.square().sum(), masked)[0]).all()


def expected_forward(e: Tensor, u: Tensor) -> Tensor:
    """Return (1 − u) α + u shift(α), times y, with sum 1: Zhang et al. 2018, algorithm 2."""
    last = torch.eye(e.shape[-1], dtype=e.dtype)[0].expand(e.shape[0], -1)
    rows = []
    for i in range(e.shape[1]):
        shifted = torch.cat([0 * last[:, :1], last[:, :-1]], 1)
        y = torch.softmax(e[:, i], -1)
        numbers = ((1 - u[:, i : i + 1]) * last + u[:, i : i + 1] * shifted) * y
        last = numbers / numbers.sum(-1, keepdim=True)
        rows.append(last)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("queries", [1, 4, 9])
def test_forward(queries: int) -> None:
    e = drawn(2, queries, 6)
    u = torch.rand(2, queries, dtype=torch.float64).requires_grad_()
    slope = drawn(2, queries, 6, seed=4).detach()
    results = [
        (x, torch.autograd.grad(x, (e, u), slope))
        for x in (forward_alignment(e, u), expected_forward(e, u))
    ]
    torch.testing.assert_close(*results)
    previous = torch.softmax(drawn(2, 6), -1).detach().requires_grad_()
    assert torch.autograd.gradcheck(forward_alignment, (e, u, previous))
    half = torch.full_like(u, 0.5)
    torch.testing.assert_close(forward_alignment(e), expected_forward(e, half))


def test_forward_does_not_underflow() -> None:
    """Alignments are right where the softmax of energies is 0 on all reachable keys."""
    e = torch.tensor([[[0.0, 1.0, 500.0], [3.0, 2.0, -400.0], [1.0, 0.0, 700.0]]])
    found = forward_alignment(e.requires_grad_())
    torch.testing.assert_close(found.double(), forward_alignment(e.double()))
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 3))
    assert torch.isfinite(torch.autograd.grad(found.square().sum(), e)[0]).all()
    far = torch.tensor([[[92.0, 0.0, 0.0], [0.0, 0.0, 92.5]]]).requires_grad_()
    found, exact = (forward_alignment(x)[0, 1, 2] for x in (far, far.double()))
    torch.testing.assert_close(*(torch.autograd.grad(x, far)[0] for x in (found, exact)))
    nowhere = torch.tensor([[[-torch.inf, -torch.inf, 0.0], [0.0, 0.0, 0.0]]])
    assert not forward_alignment(nowhere).any()


@pytest.mark.parametrize("seed", range(8))
def test_forward_of_large_energies(seed: int) -> None:
    """Gradients in float32 equal those in float64, although weights vanish on the way."""
    e = (30 * drawn(4, 9, 17, seed=seed)).detach().requires_grad_()
    u = torch.sigmoid(drawn(4, 9, seed=seed)).detach().requires_grad_()
    slope, results = drawn(4, 9, 17, seed=9).detach(), []
    for dtype in (torch.float32, torch.float64):
        found = forward_alignment(e.float().to(dtype), u.float().to(dtype))
        results.append((found.double(), torch.autograd.grad(found, (e, u), slope.to(dtype))))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


MATRIX = torch.rand(2, 3, 4)
WRONG: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (TypeError, "p must be a tensor", lambda: monotonic_alignment([[0.5]])),  # type: ignore
    (TypeError, "floating point", lambda: monotonic_alignment(torch.ones(2, 2).long())),
    (ValueError, "p has shape", lambda: monotonic_alignment(torch.ones(2))),
    (ValueError, "previous has shape", lambda: monotonic_alignment(MATRIX, MATRIX[0])),
    (ValueError, "alignment has shape", lambda: chunkwise(MATRIX, MATRIX[0], 2)),
    (ValueError, "width", lambda: chunkwise(MATRIX, MATRIX, 0)),
    (ValueError, "transition has shape", lambda: forward_alignment(MATRIX, MATRIX[0])),
    (ValueError, r"in \[0, 1\], got 1.5", lambda: forward_alignment(MATRIX, 1.5)),
    (TypeError, r"in \[0, 1\], got 'x'", lambda: forward_alignment(MATRIX, "x")),  # type: ignore
    (TypeError, "previous must be", lambda: forward_alignment(MATRIX, 0.5, [1.0])),  # type: ignore
    (TypeError, "previous must be", lambda: monotonic_alignment(MATRIX, [1.0])),  # type: ignore
    (ValueError, "noise", lambda: MonotonicAttention("additive", **SIZES, noise=-1)),
    (TypeError, "leave out hidden", lambda: ForwardAttention(Attention(), hidden=3)),
    (ValueError, "width", lambda: MoChA("additive", width=0, **SIZES)),
    (ValueError, "d_q", lambda: MonotonicAttention("additive", hidden=3).start(MATRIX)),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_errors(case: int) -> None:
    error, text, call = WRONG[case]
    with pytest.raises(error, match=text):
        call()


def test_empty() -> None:
    assert monotonic_alignment(torch.ones(2, 0, 3)).shape == (2, 0, 3)
    assert monotonic_alignment(torch.ones(2, 3, 0)).shape == (2, 3, 0)
    assert forward_alignment(torch.ones(2, 3, 0)).shape == (2, 3, 0)
    assert forward_alignment(torch.ones(2, 0, 3)).shape == (2, 0, 3)
    assert chunkwise(torch.ones(0, 3), torch.ones(0, 3), 2).shape == (0, 3)


LOCATION = LocationSensitive(6, 6, HIDDEN)
BY_HAND: dict[str, Callable[[Tensor], Any]] = {
    "chunkwise": lambda x: chunkwise(x.softmax(-1), x, 2),
    "forward attention": forward_alignment,
    "monotonic_alignment": lambda x: monotonic_alignment(x.sigmoid()),
    "location-sensitive attention": lambda x: LOCATION(x, x),
}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BY_HAND)
def test_forward_mode_is_refused(name: str, compiled: bool) -> None:
    """Forward mode raises: a compiler made NaN of forward attention."""
    x = torch.randn(2, 4, 6)

    def tangent(x: Tensor) -> Tensor:
        return torch.func.jvp(BY_HAND[name], (x,), (torch.ones_like(x),))[1]

    call = torch.compile(tangent, backend="eager") if compiled else tangent
    with pytest.raises(NotImplementedError, match=f"{name} has no .* in forward mode: .*backward"):
        call(x)


def test_a_hard_step_in_forward_mode() -> None:
    layer = MonotonicAttention("scaled_dot", d_q=D_K, d_k=D_K, hard=True).eval()
    query, keys, values = torch.randn(2, D_K), torch.randn(2, 4, D_K), torch.randn(2, 4, 3)

    def step(values: Tensor) -> Tensor:
        return layer.step(query, layer.start(keys, values)).output

    _, found = torch.func.jvp(step, (values,), (values.cos(),))
    torch.testing.assert_close(found, step(values.cos()))
