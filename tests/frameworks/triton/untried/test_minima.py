"""Scores by minima are right, on a GPU or in the emulator of PTX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.triton import attention, pairs
from anyscore.kernels.triton import call as calls
from anyscore.kernels.triton.untried import comparisons, minima
from frameworks.triton.untried.ptx import emulated

pytestmark = [
    pytest.mark.weekly,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1" or not minima.HAS_GLUON,
        reason="compiled kernels of Gluon, not interpreted ones",
    ),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[int]]]:
    """Run compiled kernels. Record the chunks of each call by minima; 0 is the exact kernel."""
    found: list[list[int]] = []
    forward = minima.forward

    def run(*args: Any) -> Tensor:
        made = forward(*args)
        found.append(made.tolist())
        return made

    monkeypatch.setattr(minima, "forward", run)
    monkeypatch.setattr(minima, "LEAST_PAIRS", 0)
    if DEVICE == "cuda":
        yield found
        return
    monkeypatch.setattr(comparisons, "capability_of", lambda device: (9, 0))
    with emulated(apart=True, chips={"step_sums": 90}):
        yield found


def drawn(
    name: str, dtype: torch.dtype, *, queries: int = 70, keys: int = 100, width: int = 24,
    d_v: int = 20, kv: int = 1, weights: torch.dtype | None = BF16, **options: Any,
) -> tuple[Operands, Settings]:  # fmt: skip
    """Return operands of (1, 2) problems, and settings. options: of either."""
    rng = np.random.default_rng(width)
    normal = lambda *shape: torch.tensor(rng.standard_normal(shape)).to(DEVICE)  # noqa: E731
    x = Operands(
        normal(1, 2, queries, width).to(dtype),
        normal(1, kv, keys, width).to(dtype),
        None if weights is None else (normal(2, width) / width**0.5).to(weights),
        value=normal(1, kv, keys, d_v).to(dtype),
    )
    of_x = {k: v for k, v in options.items() if k in x._fields}
    of_s = {k: v for k, v in options.items() if k not in of_x}
    scale = 0.7 if weights is not None else -0.3
    return x._replace(**of_x), Settings(name, scale, 1, 0.0, 2, (1, 2))._replace(**of_s)


def forward(x: Operands, s: Settings) -> Results:
    return attention.forward(pairs.UNTRIED[s.pair], x, s, F32)


def definition(x: Operands, s: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, output and log-sum-exp in float64; scores are −∞ where masked."""
    a, b, value = (y.double() for y in (x.a, x.b, x.value))
    a, b = a[..., :, None, :], b[..., None, :, :]
    pair = torch.nn.functional.leaky_relu(a + b, 0.2) if s.pair == "leaky_relu" else (a - b).abs()
    if x.weight is not None:
        pair = pair * x.weight.double()[:, None, None]
    score = s.scale * pair.sum(-1)
    for bias in (x.key_bias[..., None, :] if x.key_bias is not None else None, x.bias):
        if bias is not None:
            score = score + bias.double()
    if s.outer == "tanh":
        score = s.outer_scale * (score / s.outer_scale).tanh()
    j, keep = torch.arange(x.b.shape[-2]), torch.ones(score.shape, dtype=torch.bool)
    if x.start is not None:
        keep &= j >= x.start[..., None]
    if x.stop is not None:
        keep &= j < x.stop[..., None]
    if x.mask is not None:
        keep &= x.mask
    score = score.masked_fill(~keep, -torch.inf)
    weights = score.softmax(-1).nan_to_num(nan=0.0)
    return score, weights @ value, score.logsumexp(-1)


def lse_of(results: Results) -> Tensor:
    return results.stats[..., 0, :] + results.stats[..., 1, :]


def assert_right(x: Operands, s: Settings) -> None:
    """Assert that scores are right to 2e-5, and outputs to a rounding of the weights."""
    found = forward(x, s)
    score, output, lse = definition(x, s)
    error = 2.0**-8 if x.value.dtype == BF16 else 2.0**-11
    torch.testing.assert_close(found.output.double(), output, rtol=0, atol=error)
    torch.testing.assert_close(lse_of(found).double(), lse, rtol=1e-5, atol=2e-5)
    if s.scores:
        torch.testing.assert_close(found.scores.double(), score, rtol=1e-5, atol=2e-5)


def positions(queries: int = 70, keys: int = 100) -> Tensor:
    """Return the end of the keys (1, 1, T_q) of queries under a causal mask."""
    return (torch.arange(queries) + keys - queries + 1)[None, None]


def at_random(*shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(5).random(shape) > 0.5)


CASES: dict[str, Any] = {
    "causal": lambda: drawn("leaky_relu", BF16, stop=positions()),
    "key bias": lambda: drawn("leaky_relu", F16, key_bias=torch.linspace(-2, 2, 100)[None, None]),
    "lengths": lambda: drawn(
        "leaky_relu", BF16, weights=F32, kv=2, width=64, d_v=64,
        stop=torch.tensor([37, 0])[None, :, None],
    ),
    "boolean": lambda: drawn(
        "leaky_relu", F16, weights=F32, mask=at_random(1, 2, 70, 100),
        start=(positions() - 60).clamp(min=0), stop=positions(),
    ),
    "no weight": lambda: drawn("absolute", F16, weights=None, kv=2, stop=positions()),
    "scores": lambda: drawn("absolute", BF16, weights=F32, width=33, scores=True),
    "cap": lambda: drawn(
        "leaky_relu", BF16, stop=positions(), outer="tanh", outer_scale=2.0,
        bias=at_random(2, 70, 100).to(BF16),
    ),
    "wide": lambda: drawn("leaky_relu", BF16, width=128, d_v=150, queries=40),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_near_float64(name: str, chunks: list[list[int]]) -> None:
    assert_right(*CASES[name]())
    assert chunks == [[1, 1]]


@pytest.mark.parametrize("option", ["dropout", "sigmoid"])
def test_as_the_exact_kernel(
    option: str, chunks: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout drops the same weights, and a sigmoid has the same shifts."""
    options: dict[str, Any] = {"normalizer": 2, "sigmoid_bias": 0.5}
    if option == "dropout":
        options = {"dropout": 0.3, "seed": torch.tensor(3), "dropout_period": 2}
    x, s = drawn("leaky_relu", BF16, stop=positions(), **options)
    found = forward(x, s)
    monkeypatch.setattr(minima, "LEAST_PAIRS", 2**30)
    exact = forward(x, s)
    assert chunks == [[1, 1]]
    torch.testing.assert_close(found.output, exact.output, rtol=0, atol=2e-3)
    torch.testing.assert_close(found.stats, exact.stats, rtol=1e-5, atol=1e-5)


def test_the_device_leaves_far_and_infinite_numbers_to_the_exact_kernel(
    chunks: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of one problem that a query reads changes this problem alone, to the same bits."""
    x, s = drawn("absolute", BF16, kv=2, stop=torch.tensor([100, 60])[None, :, None])
    near = forward(x, s)
    for fill in (torch.nan, torch.inf, 1e6):
        x.b[..., 70, 3] = fill  # beyond the keys of the second problem
        found = forward(x, s)
        assert chunks[-1] == [0, 1]
        assert torch.equal(found.output[:, 1], near.output[:, 1])
        assert torch.equal(found.stats[:, 1], near.stats[:, 1])
        with monkeypatch.context() as patch:
            patch.setattr(minima, "LEAST_PAIRS", 2**30)
            exact = forward(x, s)
        assert torch.equal(found.output[:, 0].nan_to_num(), exact.output[:, 0].nan_to_num())
        assert torch.equal(found.stats[:, 0].nan_to_num(), exact.stats[:, 0].nan_to_num())


def with_ties(name: str, **options: Any) -> tuple[Operands, Settings]:
    """Return operands of integers: many scores are at the kink."""
    x, s = drawn(name, BF16, weights=F32, width=33, **options)
    return x._replace(a=x.a.round(), b=x.b.round()), s


GRADIENTS: dict[str, Any] = {
    "ties": lambda: with_ties("absolute", stop=positions()),
    "ties of leaky_relu": lambda: with_ties("leaky_relu"),
    **{name: CASES[name] for name in ("causal", "lengths", "boolean", "no weight", "wide")},
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, chunks: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients by comparisons are as near to float64 as those of `feature_sums`, in two bands."""
    x, s = GRADIENTS[name]()
    names = [n for n in ("a", "b", "weight", "value") if getattr(x, n) is not None]
    leaves = {n: getattr(x, n).double().requires_grad_() for n in names}
    _, output, lse = definition(x._replace(**leaves), s)
    rng = np.random.default_rng(1)
    upstream = torch.tensor(rng.standard_normal(output.shape), dtype=F32).to(DEVICE)
    of_lse = lse[lse.isfinite()].sum()
    exact = torch.autograd.grad((output * upstream).sum() + of_lse, list(leaves.values()))
    results = forward(x, s)
    of_stats = torch.ones_like(results.stats)
    monkeypatch.setattr(calls, "BAND_BYTES", 1)
    monkeypatch.setattr(calls, "LEAST_BAND", 64)
    pair, launched = pairs.UNTRIED[s.pair], 0
    add_sums = comparisons.add_sums

    def counted(*args: Any, **options: Any) -> None:
        nonlocal launched
        launched += 1
        add_sums(*args, **options)

    monkeypatch.setattr(comparisons, "add_sums", counted)
    found = attention.backward(pair, x, s, results, Results(upstream, of_stats))
    assert launched >= 4, "queries and keys of two bands"
    monkeypatch.setattr(minima, "LEAST_PAIRS", 2**30)
    before = attention.backward(pair, x, s, results, Results(upstream, of_stats))
    for n, expected in zip(names, exact, strict=True):
        error, most = (
            (getattr(y, n).double() - expected).abs().max() / expected.abs().max()
            for y in (found, before)
        )
        print(f"{n}: {error:.1e}, before {most:.1e}")
        assert error <= 1.1 * most <= 6e-3, n
