"""Outer functions of scores in every interpreted kernel agree with formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.kernels.triton import attention as triton
from anyscore.kernels.triton.pairs import BY_NAME, SQUARED, TANH
from anyscore.modifiers import dropout
from anyscore.ops import load
from helpers.budget import assert_within_budget, size
from helpers.oracle import numbers

LEAD, GROUPS, KEYS, WIDTH, D_V = (1, 2), 2, 67, 5, 3
PAIRS = {
    "tanh": lambda a, b: torch.tanh(a + b),
    "leaky_relu": lambda a, b: torch.where(a + b > 0, a + b, 0.2 * (a + b)),
    "absolute": lambda a, b: (a - b).abs(),
    "squared": lambda a, b: (a - b).square(),
    "product": lambda a, b: a * b,
}
OPTIONS = [(), ("weight", "key_bias"), ("weight", "start", "stop"), ("key_bias", "mask", "seed")]
CAPS = [
    (name, queries, "tanh", cap, OPTIONS[(i + 1) % 4], ["float32", "bfloat16"][(i + i // 4) % 2])
    for i, (name, queries, cap) in enumerate(product(PAIRS, (1, 65), (0.5, 50.0)))
]
"""Each pair with each other setting, one by one; few queries have a kernel of their own."""
DISTANCES = [
    (["squared", "absolute"][i % 2], queries, outer, [0.7, 1.5][i // 2 % 2], options, "float32")
    for i, (outer, queries, options) in enumerate(
        product(("sqrt", "log1p", "arcosh"), (1, 65), ((), ("weight", "start", "stop")))
    )
]
"""Functions of sums that are not negative; these rows have positive weights."""
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sqrt": lambda x: -torch.sqrt(x),
    "log1p": lambda x: -torch.log1p(x),
    "arcosh": lambda x: -torch.log1p(x + torch.sqrt(x * (x + 2))),
}


def operands(queries: int, options: tuple[str, ...], dtype: str, size: float = 1.5) -> Operands:
    """Draw operands of two query heads that share a key/value head; scores are far from 0."""
    made = torch.Generator(torch.get_default_device()).manual_seed(queries + len(options))
    draw = lambda *shape: size * torch.randn(*shape, generator=made)  # noqa: E731
    stop = torch.randint(0, KEYS + 1, (*LEAD, queries), generator=made)
    stop[..., -1] = 0  # the last query has no keys
    there = {
        "weight": draw(2, WIDTH),
        "key_bias": draw(1, 1, KEYS),
        "start": torch.tensor([[[3]]]),
        "stop": stop,
        "mask": torch.rand(1, 2, queries, KEYS, generator=made) > 0.4,
        "seed": torch.tensor(7),
    }
    x = Operands(draw(1, 2, queries, WIDTH), draw(1, 1, KEYS, WIDTH), value=draw(1, 1, KEYS, D_V))
    x = x._replace(**{name: there[name] for name in options})
    return x.map(to(getattr(torch, dtype)))


def to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda y: y.to(dtype) if y.is_floating_point() else y


def settings(name: str, c: float, x: Operands, outer: str = "tanh") -> Settings:
    return Settings(name, 0.8, GROUPS, 0.0 if x.seed is None else 0.3, 2, LEAD, outer, c, True)


def defined(x: Operands, s: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, log-sum-exp and scores by their formulas, in x's dtype."""
    queries = x.a.shape[-2]
    b, value = (y.repeat_interleave(s.groups, 1) for y in (x.b, x.value))
    pairs = PAIRS[s.pair](x.a[..., :, None, :], b[..., None, :, :])
    if x.weight is not None:
        pairs = pairs * x.weight[:, None, None, :]
    scores = s.scale * pairs.sum(-1)
    if x.key_bias is not None:
        scores = scores + x.key_bias[..., None, :]
    c = s.outer_scale
    scores = c * FUNCTIONS[s.outer](scores / c if s.outer == "tanh" else scores)
    attended = torch.ones(scores.shape, dtype=torch.bool)
    j = torch.arange(x.b.shape[-2])
    if x.start is not None:
        attended = attended & (j >= x.start[..., None])
    if x.stop is not None:
        attended = attended & (j < x.stop[..., None])
    if x.mask is not None:
        attended = attended & x.mask
    some = attended.any(-1, keepdim=True)
    lse = torch.where(attended, scores, -torch.inf).logsumexp(-1, keepdim=True)
    weights = torch.where(attended, torch.exp(scores - torch.where(some, lse, 0.0)), 0.0)
    dropped = weights
    if x.seed is not None:
        xp = load("torch")
        seed = xp.seed(int(x.seed), like=x.value)
        dropout_mask = dropout.dropout_mask(xp, seed, s.dropout, s.lead, queries, x.b.shape[-2])
        dropped = torch.where(dropout_mask, weights, 0.0) / (1 - s.dropout)
    return dropped @ value, lse[..., 0], torch.where(attended, scores, -torch.inf)


def derived(x: Operands, s: Settings, upstream: Results) -> tuple[Any, ...]:
    """Return the results of `defined`, and the gradients of the operands that have gradients."""
    factors = [y if y is None else y.detach().requires_grad_() for y in x[:N_DIFFERENTIABLE]]
    x = Operands(*factors, *x[N_DIFFERENTIABLE:])
    output, lse, scores = defined(x, s)
    some, kept = lse.isfinite(), scores.isfinite()  # a constant −∞ has no gradient
    total = (output * upstream.output).sum() + (lse[some] * upstream.stats[..., 1, :][some]).sum()
    total = total + (scores[kept] * upstream.scores[kept]).sum()
    inputs = [y for y in factors if y is not None]
    return output, lse, scores, *torch.autograd.grad(total, inputs, materialize_grads=True)


def computed(x: Operands, s: Settings, upstream: Results) -> tuple[Any, ...]:
    """Return the kernels' results and gradients, in the order of `derived`."""
    pair = BY_NAME[s.pair]
    results = triton.forward(pair, x, s, torch.float32)
    grads = triton.backward(pair, x, s, results, upstream)
    present = [d for y, d in zip(x[:N_DIFFERENTIABLE], grads, strict=False) if y is not None]
    return results.output, results.stats.sum(-2), results.scores, *present


@pytest.mark.parametrize(("name", "queries", "outer", "c", "options", "dtype"), [*CAPS, *DISTANCES])
def test_values_and_gradients(
    name: str, queries: int, outer: str, c: float, options: tuple[str, ...], dtype: str
) -> None:
    half = dtype == "bfloat16"  # weights are rounded before products
    x = operands(queries, options, dtype, 0.7 if half else 1.5)
    if outer != "tanh" and x.weight is not None:
        x = x._replace(weight=x.weight.abs())
    s = settings(name, c, x, outer)
    made = torch.Generator(torch.get_default_device()).manual_seed(9)
    upstream = Results(
        *(
            torch.randn(*LEAD, *n, generator=made)
            for n in ((queries, D_V), (2, queries), (queries, KEYS))
        )
    )
    if half:
        upstream = upstream._replace(output=upstream.output.bfloat16().float())
    exact = derived(x.map(to(torch.float64)), s, Results(*(y.double() for y in upstream)))
    plain = derived(x.map(to(torch.float32)), s, upstream)
    found = computed(x, s, upstream)
    names = ["output", "lse", "scores"]
    names += [name for name in Operands._fields[:N_DIFFERENTIABLE] if getattr(x, name) is not None]
    for what, one, other, simple in zip(names, found, exact, plain, strict=True):
        rounded = half and what not in ("lse", "scores")
        exactly = numbers(other)
        band = 2**17 * size(exactly) if rounded else None
        assert_within_budget(one, exactly, simple.detach(), what, "float32", band)


@pytest.mark.parametrize("name", ["leaky_relu", "product"])
@pytest.mark.parametrize("queries", [1, 3])
def test_a_score_near_0_keeps_its_digits(name: str, queries: int) -> None:
    """The log-sum-exp of one key is the score, of which 1 − e^{−2s/c} would leave three digits."""
    x = operands(queries, (), "float32", 0.01)
    x = x._replace(b=x.b[..., :1, :], value=x.value[..., :1, :])
    s = settings(name, 50.0, x)
    lse = triton.forward(BY_NAME[name], x, s, torch.float32).stats.sum(-2)
    exact = defined(x.map(to(torch.float64)), s)[1]
    torch.testing.assert_close(lse.double(), exact, rtol=2e-5, atol=0)


@pytest.mark.parametrize("outer", ["sqrt", "log1p", "arcosh"])
@pytest.mark.parametrize("queries", [1, 3])
def test_where_a_query_is_a_key(outer: str, queries: int) -> None:
    """The distance 0 has the score 0 and finite gradients, and NaN stays NaN."""
    x = operands(queries, (), "float32")
    x.a[:, :, 0] = x.b[:, :, 3]
    s = settings("squared", 1.0, x, outer)
    upstream = Results(torch.ones(*LEAD, queries, D_V), None, None)
    results = triton.forward(SQUARED, x, s, torch.float32)
    assert (results.scores[..., 0, 3] == 0).all()
    for gradient in triton.backward(SQUARED, x, s, results, upstream):
        assert gradient is None or gradient.isfinite().all()
    x.b[:, :, 5] = torch.nan
    found = triton.forward(SQUARED, x, s, torch.float32)
    assert found.output.isnan().all()


@pytest.mark.parametrize("queries", [2, 5])
def test_nothing_masked_is_capped_into_attention(queries: int) -> None:
    """NaN in a masked key stays masked: a cap before the mask would make the score finite."""
    x = operands(queries, (), "float32")
    x = x._replace(stop=torch.tensor([[[40]]]))
    s = settings("tanh", 0.5, x)
    for fill in (torch.nan, torch.inf):
        y = x._replace(b=x.b.clone(), value=x.value.clone())
        y.b[..., 40:, :] = fill
        y.value[..., 40:, :] = fill
        one, other = (triton.forward(TANH, z, s, torch.float32) for z in (x, y))
        torch.testing.assert_close(one.output, other.output)
        torch.testing.assert_close(one.stats, other.stats)
        assert (other.scores[..., 40:] == -torch.inf).all()
        assert other.scores[..., :40].isfinite().all()


def test_in_float64_a_cap_keeps_its_digits() -> None:
    x = operands(3, ("weight", "key_bias"), "float64")
    s = settings("tanh", 0.7, x)
    found = triton.forward(TANH, x, s, torch.float64)
    output, lse, _ = defined(x, s)
    torch.testing.assert_close(found.output, output, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.stats.sum(-2), lse, rtol=1e-12, atol=1e-13)
