"""torch.compile and torch.export make one graph of a call, for any sizes and any lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad

from anyscore import Causal, Interval, Keys, Lengths, Window, attention
from helpers.samples import make_score, normal
from helpers.transformed import WARNINGS, autograd, loss_of, same, tensors, torch_score

pytestmark = [pytest.mark.usefixtures("fresh_compiler"), *WARNINGS]


COMPILED: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda n: None,
    "intervals": lambda n: Causal(offset=n - 3) & Window(5, 1, "end") & Interval(n - 30, n + 1.0),
    "keys": lambda n: Keys((n > 0)[:, None]) & Lengths(n),
    "array": lambda n: (n > 2)[:, None, None],
    "list": lambda n: Lengths([3, 4]),
}


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("Dot", "none"),
        ("Additive", "intervals"),
        pytest.param("Trilinear", "keys", marks=pytest.mark.weekly),
        pytest.param("GATv2", "array", marks=pytest.mark.weekly),
        ("Gaussian", "list"),
    ],
)
def test_compile(name: str, mask: str) -> None:
    """One graph, forward and backward, serves any sizes and any values of lengths."""

    def f(q: Tensor, k: Tensor, v: Tensor, n: Tensor, *parameters: Tensor) -> Tensor:
        score = type(made)(*parameters)
        out = attention(
            q, k, v, score=score, mask=COMPILED[mask](n), return_weights=True, return_lse=True
        )
        finite = torch.where(out.lse.isfinite(), out.lse, 0.0)
        return out.output.square().sum() + out.weights.sin().sum() + finite.sum()

    made = torch_score(name)
    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys, lengths in [(3, 7, [4, 0]), (5, 11, [2, 30])]:
        xs = [torch.tensor(normal(2, t, 5)) for t in (queries, keys, keys)]
        n = torch.tensor(lengths)
        parameters = list(made.tensors().values())

        def call(
            function: Callable[..., Tensor],
            n: Tensor = n,
        ) -> Callable[..., Tensor]:
            return lambda *ys: function(*ys[:3], n, *ys[3:])

        same(
            autograd(call(compiled), *xs, *parameters),
            autograd(call(f), *xs, *parameters),
        )


@pytest.mark.parametrize("name", ["ScaledDot", "Cosine", "Concat"])
def test_compile_forward(name: str) -> None:
    xs, score = tensors(2), torch_score(name)

    def f(*ys: Tensor) -> Tensor:
        return attention(*ys, score=score)

    same([torch.compile(f, fullgraph=True, backend="aot_eager")(*xs)], [f(*xs)])


@pytest.mark.parametrize("seed", [5, None])
def test_compile_with_dropout(seed: int | None) -> None:
    xs = tensors(2)

    def f(*ys: Tensor) -> Tensor:
        return attention(*ys, dropout=0.4, dropout_seed=seed).square().sum()

    results = []
    for function in (f, torch.compile(f, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)
        results.append([function(*xs), *autograd(function, *xs)])
    same(*results)


def test_compile_under_autocast() -> None:
    xs = [x.float() for x in tensors(2)]

    def f(*ys: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attention(*ys, mask=Lengths(torch.tensor([3, 4])))

    found = torch.compile(f, fullgraph=True, backend="aot_eager")(*xs)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, f(*xs))


def test_compile_to_machine_code() -> None:
    """The default backend compiles a call with a mask, forward and backward."""
    xs, f = tensors(2), loss_of("Additive", "causal")
    same(autograd(torch.compile(f, fullgraph=True), *xs), autograd(f, *xs))


class Model(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.made = make_score(name)
        for field, x in self.made.tensors().items():
            self.register_parameter(field, torch.nn.Parameter(torch.tensor(x)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        score = type(self.made)(**dict(self.named_parameters()))
        return attention(q, k, v, score=score, mask=Causal("end"), valid_lens=n)


@pytest.mark.parametrize("name", ["ScaledDot", "Trilinear", "Gaussian", "GATv2"])
def test_export(name: str) -> None:
    """The exported program gives the results of the call, for other sizes and lengths too."""
    model, n = Model(name), torch.tensor([4, 6])
    dynamic = torch.export.Dim("batch"), torch.export.Dim("keys")
    shapes = {
        "q": {0: dynamic[0]},
        "k": {0: dynamic[0], 1: dynamic[1]},
        "v": {0: dynamic[0], 1: dynamic[1]},
        "n": {0: dynamic[0]},
    }
    program = torch.export.export(model, (*tensors(2), n), dynamic_shapes=shapes).module()
    same([program(*tensors(2), n)], [model(*tensors(2), n)])
    q, k, v = (torch.tensor(normal(3, *shape)) for shape in ((3, 5), (13, 5), (13, 2)))
    lengths = torch.tensor([0, 13, 5])
    same([program(q, k, v, lengths)], [model(q, k, v, lengths)])


def test_functional_call() -> None:
    model, xs, n = Model("Additive"), tensors(2), torch.tensor([4, 6])
    parameters = {name: x.detach() for name, x in model.named_parameters()}

    def f(p: dict[str, Tensor]) -> Tensor:
        return functional_call(model, p, (*xs, n)).square().sum()

    expected = torch.autograd.grad(model(*xs, n).square().sum(), list(model.parameters()))
    same(grad(f)(parameters).values(), expected)


def test_one_tensor_thrice() -> None:
    """One tensor may be all inputs: the compiler's autograd.Function takes no tensor twice."""
    x = torch.tensor(normal(2, 5, 4)).requires_grad_()
    compiled = torch.compile(lambda x: attention(x, x, x), fullgraph=True, backend="aot_eager")
    outputs = compiled(x), attention(x, x, x)
    same(outputs[0], outputs[1])
    same(*(torch.autograd.grad(y.square().sum(), x)[0] for y in outputs))
