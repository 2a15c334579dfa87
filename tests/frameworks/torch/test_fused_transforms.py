"""The C++ core works under PyTorch's transforms, compilers, checkpoints and autocasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad, jacrev, vmap
from torch.utils.checkpoint import checkpoint

from anyscore import Causal, Lengths, attention, plan
from frameworks.torch.fused_calls import D_V, DROPOUT, KV, MARKS, MASK, B, D, call, loss_of, tensors
from helpers.samples import leaves, make_score, normal
from helpers.transformed import autograd, same, torch_score

pytestmark = MARKS


@DROPOUT
@MASK
@pytest.mark.parametrize("name", ["Additive", "Trilinear", "Laplace"])
def test_vmap_is_a_loop(name: str, mask: str, dropout: float) -> None:
    """vmap equals a loop, also with few batched inputs; dropout is that of the unbatched call."""
    one, other = tensors(), tensors(seed=1)
    f = call(name, mask, dropout)
    for batched in ((True, True, True), (True, False, False), (False, True, False)):
        xs = [
            torch.stack(pair) if is_batched else pair[0]
            for pair, is_batched in zip(zip(one, other, strict=True), batched, strict=True)
        ]
        dims = tuple(0 if is_batched else None for is_batched in batched)
        rows = [[x[i] if d == 0 else x for x, d in zip(xs, dims, strict=True)] for i in range(2)]
        expected = [torch.stack(x) for x in zip(*(f(*row) for row in rows), strict=True)]
        same(vmap(f, in_dims=dims)(*xs), expected)
        each = vmap(grad(loss_of(name, mask, dropout), argnums=(0, 1, 2)), in_dims=dims)(*xs)
        for i, row in enumerate(rows):
            same([g[i] for g in each], autograd(loss_of(name, mask, dropout), *row))


def test_vmap_along_another_dimension_twice() -> None:
    xs = [torch.stack([torch.stack([x, x + 1]), torch.stack([x * 2, x - 1]), torch.stack([x, x])])
          for x in tensors()]  # fmt: skip
    f = call("Additive", "intervals", 0.3)
    expected = [[f(*(x[i, j] for x in xs))[0] for i in range(3)] for j in range(2)]
    moved = [x.movedim(1, -1) for x in xs]
    found = vmap(vmap(lambda *ys: f(*ys)[0], in_dims=0), in_dims=-1)(*moved)
    same([found], [torch.stack([torch.stack(row) for row in expected])])


@pytest.mark.triton
def test_vmap_over_masks_and_seeds() -> None:
    q, k, v = tensors()
    lengths, seeds = torch.tensor([[4, 0], [7, 1]]), torch.tensor([3, 4])

    def f(q: Tensor, n: Tensor, seed: Any) -> Tensor:
        return attention(
            q, k, v, mask=Causal("end") & Lengths(n), dropout=0.4, dropout_seed=seed, impl="fused"
        )

    def loss(*xs: Any) -> Tensor:
        return f(*xs).square().sum()

    for seed, at in ((5, None), (seeds, 0)):
        each = [(n, seed if at is None else seeds[i]) for i, n in enumerate(lengths)]
        same(vmap(f, in_dims=(None, 0, at))(q, lengths, seed), [f(q, *x) for x in each])
        found = vmap(grad(loss), in_dims=(None, 0, at))(q, lengths, seed)
        same(found, [autograd(lambda q, x=x: loss(q, *x), q)[0] for x in each])


@MASK
@pytest.mark.parametrize("name", ["ScaledDot", "Additive", "Gaussian"])
def test_jacrev_of_jacrev_and_grad_of_grad(name: str, mask: str) -> None:
    q, k, v = tensors()
    fused, plain = (loss_of(name, mask, impl=impl) for impl in ("fused", "reference"))

    def of(f: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda q: f(q[None, None], k[:, :1], v[:, :1])

    small = q[0, 0]
    expected = torch.autograd.functional.hessian(of(plain), small)
    same([jacrev(jacrev(of(fused)))(small)], [expected])
    twice = grad(lambda q: grad(of(fused))(q).square().sum())(small)
    same([twice], autograd(lambda q: autograd_of(of(plain), q).square().sum(), small))


def autograd_of(f: Callable[[Tensor], Tensor], q: Tensor) -> Tensor:
    return torch.autograd.grad(f(q), q, create_graph=True)[0]


def test_third_derivatives() -> None:
    q, k, v = tensors()
    results = []
    for impl in ("fused", "reference"):
        f, x = loss_of("Additive", "lengths", impl=impl), q.clone().requires_grad_()
        value = f(x, k, v)
        for _ in range(3):
            (g,) = torch.autograd.grad(value, x, create_graph=True)
            value = g.pow(3).sum()
        results.append(g.detach())
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


# Compilation, export, checkpointing, autocast


@pytest.mark.parametrize(
    ("name", "mask", "dropout"),
    [
        pytest.param("Additive", "intervals", 0.4, marks=pytest.mark.triton),
        pytest.param("Trilinear", "both", 0.0, marks=[pytest.mark.triton, pytest.mark.weekly]),
        ("Gaussian", "boolean", 0.4),
    ],
)
def test_compile_keeps_to_the_core(name: str, mask: str, dropout: float) -> None:
    """One graph calls the operator; while autograd records, forward and backward have one each."""
    graphs: list[str] = []

    def note(module: torch.fx.GraphModule, examples: Any) -> Any:
        graphs.append(str(module.graph))
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=note, bw_compiler=note)
    torch._dynamo.reset()
    xs, f = tensors(), loss_of(name, mask, dropout)
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=backend)
    same(autograd(compiled, *xs), autograd(f, *xs))
    assert ["anyscore.forward" in graph for graph in graphs] == [True, False]
    assert ["anyscore.backward" in graph for graph in graphs] == [False, True]
    graphs.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        same([torch.compile(f, fullgraph=True, backend=backend)(*xs)], [f(*xs)])
    torch._dynamo.reset()
    assert ["anyscore.forward" in graph for graph in graphs] == [True]


class Model(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        return attention(q, k, v, score=torch_score("Additive"), mask=Causal("end"), valid_lens=n)


@pytest.mark.triton
def test_export_keeps_to_the_core() -> None:
    n = torch.tensor([4, 6])
    tokens = torch.export.Dim("tokens", min=2, max=64)
    program = torch.export.export(
        Model(),
        (*tensors(), n),
        dynamic_shapes={"q": {}, "k": {2: tokens}, "v": {2: tokens}, "n": {}},
    )
    assert "anyscore.forward" in str(program.graph)
    k, v = (torch.tensor(normal(B, KV, 13, d)) for d in (D, D_V))
    q = tensors()[0]
    same([program.module()(q, k, v, n)], [Model()(q, k, v, n)])


@pytest.mark.parametrize("reentrant", [pytest.param(False, marks=pytest.mark.triton), True])
def test_checkpointing_with_dropout(reentrant: bool) -> None:
    xs, f = [x.requires_grad_() for x in tensors()], loss_of("Additive", "both", 0.4)
    checkpoint(f, *xs, use_reentrant=reentrant).backward()
    same([x.grad for x in xs], autograd(f, *xs))


@pytest.mark.triton
@pytest.mark.parametrize("inside", [False, True])
def test_autocast(inside: bool) -> None:
    """The core gets the inputs that autocasting rounds; gradients come back in float32."""
    score, inputs = leaves(make_score("Additive"), *(x.numpy() for x in tensors()))
    single = [x.detach().float().requires_grad_() for x in inputs]
    score = type(score)(*single[3:])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plan(*single[:3], score=score).route == "cpu"
        out = attention(*single[:3], score=score, valid_lens=[3, 0], impl="fused")
        if inside:
            grads = torch.autograd.grad(out.float().square().sum(), single, create_graph=True)
            second = torch.autograd.grad(sum(g.sum() for g in grads), single[:3])
            assert all(x.isfinite().all() for x in second)
    if not inside:
        grads = torch.autograd.grad(out.float().square().sum(), single)
    assert out.dtype == torch.bfloat16
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)
