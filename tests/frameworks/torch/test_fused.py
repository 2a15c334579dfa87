"""The C++ core is an operator of PyTorch with derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore import Causal, Lengths, attention
from anyscore.backends.torch import operators
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu
from frameworks.torch.fused_calls import (
    DROPOUT,
    KV,
    MARKS,
    MASK,
    MASKS,
    SCORES,
    T_K,
    T_Q,
    B,
    D,
    H,
    loss_of,
    tensors,
)
from helpers.samples import leaves, make_score, normal
from helpers.transformed import autograd, same

pytestmark = [pytest.mark.sample, *MARKS]


def record(dtype: torch.dtype, dropout: float, biased: bool) -> tuple[Operands, Settings]:
    a, b, value = (x.to(dtype) for x in tensors())
    bias = torch.tensor(normal(B, KV, T_K)).to(dtype) if biased else None
    start, stop = torch.tensor([[[0]], [[2]]]), torch.tensor([[[4, 5, 7]], [[3, 2, 6]]])
    keep = torch.tensor(normal(1, 1, 1, T_K) > -1) if biased else None
    seed = torch.tensor(5) if dropout else None
    weight = torch.tensor(normal(H, D)).to(dtype)
    origin = torch.tensor([3, 8]) if dropout else None
    operands = Operands(
        a, b, weight, bias, value, start=start, stop=stop, mask=keep, seed=seed, origin=origin
    )
    cap = ("tanh", 3.0) if biased else ("", 0.0)
    return operands, Settings("tanh", 0.5, H // KV, dropout, B * H, [B, H], *cap)


@pytest.mark.slow
@DROPOUT
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_opcheck(dtype: torch.dtype, dropout: float) -> None:
    x, s = record(dtype, dropout, biased=bool(dropout))
    alone = x._replace(value=None, seed=None, packed=None)
    of_alone = s._replace(dropout=0.0)
    asked = [(x, s), (alone, of_alone)]
    asked += [(given, settings._replace(scores=True)) for given, settings in asked]
    for given, settings in asked:
        results = operators.forward(given, settings)
        upstream = Results(*(y if y is None else torch.rand_like(y) for y in results))
        calls = {
            operators.forward: (given, settings),
            operators.backward: (given, settings, results, upstream),
        }
        for operator, arguments in calls.items():
            torch.library.opcheck(operator.operator, operator.args(*arguments))


def test_operators_make_their_results_where_the_inputs_are() -> None:
    xs, f = tensors(), loss_of("Additive", "lengths")
    expected = autograd(f, *xs)
    with torch.device("meta"):
        same(autograd(f, *xs), expected)


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_the_threads_are_pytorch_s(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real, before = [], getattr(cpu, which), torch.get_num_threads()

    def spy(*args: Any) -> None:
        seen.append(args[-1])
        real(*args)

    monkeypatch.setattr(cpu, which, spy)
    q, k, v = (x.requires_grad_(which == "backward") for x in tensors())
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            out = attention(q, k, v, impl="fused", return_weights=True, valid_lens=3)
            if which == "backward":
                out.output.sum().backward()
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 3]


# Derivatives


@DROPOUT
@MASK
@SCORES
def test_first_and_second_derivatives_are_the_definition_s(
    name: str, mask: str, dropout: float
) -> None:
    found = []
    for impl in ("fused", "reference"):
        given, inputs = leaves(make_score(name), *(x.numpy() for x in tensors()))
        out = attention(
            *inputs[:3], score=given, mask=MASKS[mask](), dropout=dropout, dropout_seed=7,
            return_lse=True, impl=impl,
        )  # fmt: skip
        lse = torch.where(out.lse == -torch.inf, 0.0, out.lse)
        loss = out.output.square().sum() + lse.sin().sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = sum(x.square().sum() for x in first)
        found.append([*first, *torch.autograd.grad(second, inputs, materialize_grads=True)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@DROPOUT
@SCORES
def test_gradcheck(name: str, dropout: float) -> None:
    inputs = [x[:, :, :, :3].clone().requires_grad_() for x in tensors()]
    score = make_score(name, d=3, h=2).map(torch.tensor)

    def run(*xs: Tensor) -> tuple[Tensor, Tensor]:
        out = attention(
            *xs, score=score, mask=Causal("end"), dropout=dropout, dropout_seed=3, impl="fused",
            return_lse=True,
        )  # fmt: skip
        return out.output, out.lse

    assert torch.autograd.gradcheck(run, inputs, fast_mode=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@SCORES
def test_gradients_of_half_precision(name: str, dtype: torch.dtype) -> None:
    """Gradients are sums in float32 from an unrounded output, as in the reference."""
    found = []
    for impl in ("fused", "reference"):
        score, inputs = leaves(make_score(name), *(x.numpy() for x in tensors()))
        cast = [x.detach().to(dtype).requires_grad_() for x in inputs]
        score = replace(score, **dict(zip(score.tensors(), cast[3:], strict=True)))
        out = attention(*cast[:3], score=score, mask=Lengths([4, 0]), impl=impl)
        found.append(torch.autograd.grad(out.float().square().sum(), cast))
    for x, y in zip(*found, strict=True):
        assert x.dtype == dtype
        scale = y.float().abs().max().item() or 1.0
        torch.testing.assert_close(x, y, rtol=0.05, atol=0.02 * scale)


# Masked keys and values


@pytest.mark.parametrize("mask", ["lengths", "intervals", "both"])
def test_nan_that_nobody_attends_reaches_no_gradient(mask: str) -> None:
    """NaN in masked keys and values reaches no gradient of any order, projections included."""
    keep = attention(*tensors(), mask=MASKS[mask](), return_weights=True).weights > 0
    q, k, v = (x.numpy() for x in tensors())
    unread = ~keep.reshape(B, KV, H // KV, T_Q, T_K).any(3).any(2).numpy()
    assert unread.any()
    results = []
    for fill in (0.0, torch.nan):
        k[unread] = v[unread] = fill
        score, inputs = leaves(make_score("Additive"), q, k, v)
        out = attention(*inputs[:3], score=score, mask=MASKS[mask](), impl="fused")
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        results.append([out, *first, *second])
    same(*results)
    assert all(x.isfinite().all() for x in results[1])


def test_each_device_has_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing watches operators, a call goes past these to the kernel of the tensors' device."""
    seen = []

    def kernel(x: Operands, s: Settings) -> Results:
        seen.append(x.a.device.type)
        return Results(x.value, x.a[..., 0], None)

    x = [torch.ones(1, 2, 3, device="meta") for _ in range(3)]
    operands, settings = Operands(x[0], x[1], value=x[2]), Settings("tanh", 1.0, 1, 0.0, 1, (1,))
    found = operators.forward(operands, settings)  # the operator runs, without a kernel
    assert found.output.is_meta
    monkeypatch.setitem(operators.forward.kernels, "meta", kernel)
    monkeypatch.setattr(operators, "must_dispatch", lambda *xs: False)
    assert operators.forward(operands, settings).output is x[2]
    assert seen == ["meta"]
    assert operators.forward.kernels["cuda"] != operators.forward.kernels["cpu"]
