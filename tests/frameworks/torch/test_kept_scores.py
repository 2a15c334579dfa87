"""Calls of few keys keep scores for the backward instead of the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import anyscore
from anyscore import attention
from anyscore.masks.objects import Causal, Keys, Window
from helpers import machine
from helpers.by_pair import by_pair
from helpers.repeated_calls import SEEN, forget, watched

pytestmark = [pytest.mark.sample, machine.needs_core]

KEYS, WIDE, NARROW = 7, 9, 5
LENGTHS = torch.tensor([7, 0, 4])
SCORES: dict[str, Callable[[Tensor], Any]] = {
    "dot": lambda w: anyscore.ScaledDot(),
    "additive": lambda w: anyscore.Additive(None, None, w),
    "gatv2": lambda w: anyscore.GATv2(None, None, w),
    "laplace": lambda w: anyscore.Laplace(w.abs().mean()),
    "gaussian": lambda w: anyscore.Gaussian(w.abs().mean()),
    "euclidean": lambda w: anyscore.Euclidean(),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "lengths": {"valid_lens": LENGTHS},
    "causal": {"mask": Causal("start")},
    "window": {"mask": Window(2, 1, align="start")},
    "keys": {"mask": Keys(torch.arange(KEYS) % 3 > 0)},
    "cap": {"softcap": 2.0},
    "sigmoid": {"normalizer": "sigmoid", "valid_lens": LENGTHS},
    "dropout": {"dropout": 0.4, "dropout_seed": 7, "valid_lens": LENGTHS},
    "bias": {"bias": torch.linspace(-1, 1, KEYS).double().expand(4, KEYS)},
    "sink": {"sink": 0.5},
    "lse": {"return_lse": True},
    "weights": {"return_weights": True},
}


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def inputs(width: int = WIDE, queries: int = 4) -> list[Tensor]:
    """Draw query, key, value and a weight."""
    rng = torch.Generator().manual_seed(0)
    shapes = (3, queries, 6), (3, KEYS, 6), (3, KEYS, width), (6,)
    return [torch.randn(s, generator=rng, dtype=torch.float64).requires_grad_() for s in shapes]


def call(score: str, xs: Any, **options: Any) -> list[Tensor]:
    query, key, value, weight = xs
    found = attention(query, key, value, score=SCORES[score](weight), **options)
    if isinstance(found, Tensor):
        return [found]
    named = ((name, getattr(found, name)) for name in ("output", "lse", "weights"))
    return [y.exp() if name == "lse" else y for name, y in named if y is not None]


def slopes(results: list[Tensor], xs: list[Tensor]) -> tuple[Tensor, ...]:
    loss = sum((y * torch.linspace(-1, 2, y.shape[-1])).square().sum() for y in results)
    return torch.autograd.grad(loss, xs, materialize_grads=True)


def saved(function: Callable[[], Any]) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that a function keeps for its backward."""
    shapes: list[tuple[int, ...]] = []

    def pack(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function()
    return shapes


def test_what_is_kept() -> None:
    few, many = (3, 4, KEYS), (3, 4, NARROW)
    kept = saved(lambda: call("additive", inputs()))
    assert few in kept
    assert (3, 4, WIDE) not in kept
    kept = saved(lambda: call("additive", inputs(NARROW)))
    assert few not in kept
    assert many in kept
    xs = [torch.randn(2, t, d, requires_grad=True) for t, d in ((4, 6), (65, 6), (65, 80))]
    kept = saved(lambda: call("dot", [*xs, None]))
    assert (2, 4, 65) not in kept
    assert (2, 4, 80) in kept


@pytest.mark.parametrize("queries", [1, 4, 70])
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("option", OPTIONS)
@by_pair("score", SCORES)
def test_gradients_are_those_of_the_definition(
    score: str, option: str, width: int, queries: int
) -> None:
    xs, options = inputs(width, queries), dict(OPTIONS[option])
    if "bias" in options:
        options["bias"] = options["bias"][:1].expand(queries, KEYS).requires_grad_()
        xs = [*xs, options["bias"]]
    want = slopes(call(score, xs[:4], impl="reference", **options), xs)
    for _ in range(3):  # a new call, then repeated calls
        found = slopes(call(score, xs[:4], **options), xs)
        for x, y in zip(found, want, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
def test_calls_that_come_again_give_the_same_bits(score: str) -> None:
    xs = [x.detach().float().requires_grad_() for x in inputs()]
    first, *_, last = (slopes(call(score, xs), xs) for _ in range(4))
    with watched():
        call(score, xs)
    assert SEEN == [True]
    assert all(torch.equal(x, y) for x, y in zip(first, last, strict=True))


@pytest.mark.parametrize("option", ["none", "weights", "dropout"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_results_may_be_written_to(option: str, width: int) -> None:
    xs = inputs(width)
    for _ in range(3):
        results = call("additive", xs, **OPTIONS[option])
        above = [torch.randn_like(y) for y in results]
        want = torch.autograd.grad(results, xs, above)
        results = call("additive", xs, **OPTIONS[option])
        for y in results:
            y.detach().zero_()
        found = torch.autograd.grad(results, xs, above)
        for x, y in zip(found, want, strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "score", ["additive", *(pytest.param(x, marks=pytest.mark.weekly) for x in ("dot", "gatv2"))]
)
def test_second_derivatives(score: str) -> None:
    xs = inputs(queries=2)
    for _ in range(3):
        assert torch.autograd.gradgradcheck(lambda *xs: call(score, xs), xs)


@pytest.mark.parametrize("option", ["none", "dropout"])
def test_under_transforms(option: str) -> None:
    xs = inputs()

    def loss(*xs: Tensor) -> Any:
        return sum(y.square().sum() for y in call("additive", xs, **OPTIONS[option]))

    want = torch.autograd.grad(loss(*xs), xs)
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*xs)
    of_each = torch.func.vmap(torch.func.grad(loss))(*(torch.stack([x, x]) for x in xs))
    for x, y in zip(found, want, strict=True):
        torch.testing.assert_close(x, y)
    torch.testing.assert_close(of_each, torch.stack([want[0]] * 2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_a_checkpoint(reentrant: bool) -> None:
    xs = inputs()
    want = slopes(call("additive", xs), xs)
    for _ in range(3):
        again = checkpoint(lambda *xs: call("additive", xs)[0], *xs, use_reentrant=reentrant)
        loss = (again * torch.linspace(-1, 2, WIDE)).square().sum()
        for x in xs:
            x.grad = None
        loss.backward()
        for x, y in zip(xs, want, strict=True):
            torch.testing.assert_close(x.grad, y)
