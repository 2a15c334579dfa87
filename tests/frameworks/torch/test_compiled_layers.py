"""Layers work under torch.compile, torch.export and function transforms."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap

from anyscore import Causal, Lengths
from anyscore.backends.torch import operators
from anyscore.call.operands import Operands, Results, Settings
from anyscore.torch import Attention, MultiHeadAttention
from frameworks.torch.test_layers import BY_NAME, D_V, HIDDEN, T_Q, D, inputs, make
from helpers.transformed import WARNINGS

pytestmark = [pytest.mark.usefixtures("fresh_compiler"), *WARNINGS]


@pytest.mark.parametrize("name", ["scaled_dot", "bilinear", "cosine", "trilinear", "additive"])
def test_compiled_whole_forward_and_backward(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    q.requires_grad_()
    lengths, outputs, grads = torch.tensor([0, 3]), [], []
    for call in (compiled, layer):
        output = call(q, k, v, lengths)
        grads.append(torch.autograd.grad(output.square().sum(), [q, *layer.parameters()]))
        outputs.append(output)
        if call is compiled:
            assert layer.attention_weights is None
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*grads)


def test_compiled_by_the_default_backend() -> None:
    layer, (q, k, v) = make("additive"), inputs()
    lengths = torch.tensor([0, 3])
    with torch._inductor.config.patch(compile_threads=1):  # leaves no processes behind
        output = torch.compile(layer, fullgraph=True)(q, k, v, lengths)
    expected = layer(q, k, v, lengths)
    torch.testing.assert_close(output, expected)
    parameters = list(layer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(output.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
    )


def test_operators_with_other_results_need_other_names() -> None:
    """An older library's cache of Inductor finds operators by name: see `VERSION`."""
    a, b, value = torch.randn(3, 5, 4), torch.randn(3, 7, 4), torch.randn(3, 7, 6)
    x = Operands(a, b, None, value=value)
    s = Settings("product", 1.0, 1, 0.0, 1, [3], scores=True)
    args = operators.forward.args(x, s)
    output, stats, scores = found = operators.forward.operator(*args)
    assert [list(y.shape) for y in found] == [[3, 5, 6], [3, 2, 5], [3, 5, 7]]
    kept = scores - stats[:, 0, :, None] - stats[:, 1, :, None]  # minus largest, minus log Σ exp
    torch.testing.assert_close(kept.exp() @ value, output)
    args = operators.backward.args(x, s, Results(output, stats), Results(output, stats, scores))
    found = operators.backward.operator(*args)
    assert [y.shape for y in found if y.numel()] == [a.shape, b.shape, value.shape]
    named = (operators.forward.operator, operators.backward.operator)
    assert [str(x) for x in named] == [
        "anyscore.forward_v3.default",
        "anyscore.backward_v3.default",
    ]


def test_heads_compiled_for_any_number_of_tokens() -> None:
    layer = MultiHeadAttention(12, 4, kv_heads=2, score="additive")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    parameters = list(layer.parameters())
    for tokens in (5, 7):
        x, lengths = torch.randn(2, tokens, 12), torch.tensor([2, tokens])
        output, expected = compiled(x, valid_lens=lengths), layer(x, valid_lens=lengths)
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(
            torch.autograd.grad(output.square().sum(), parameters),
            torch.autograd.grad(expected.square().sum(), parameters),
        )


def test_a_layer_may_meet_its_sizes_under_compilation() -> None:
    layer, (q, k, v) = Attention("additive", hidden=HIDDEN), inputs()
    compiled = torch.compile(layer, backend="aot_eager")
    output = compiled(q, k, v)
    output.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    torch.testing.assert_close(output, layer(q, k, v))
    met = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(met(q, k, v), layer(q, k, v))


def test_compiled_dropout_draws_anew() -> None:
    layer, (q, k, v) = make("additive", dropout=0.5), inputs()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert not torch.equal(compiled(q, k, v), compiled(q, k, v))
    torch.manual_seed(5)
    first = compiled(q, k, v)
    torch.manual_seed(5)
    assert torch.equal(compiled(q, k, v), first)
    layer.eval()
    torch.testing.assert_close(compiled(q, k, v), layer(q, k, v))


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "gaussian"])
def test_export(name: str) -> None:
    layer, (q, k, v) = make(name).eval(), inputs()
    lengths = torch.tensor([0, 3])
    tokens = torch.export.Dim("tokens", min=2, max=64)
    program = torch.export.export(
        layer, (q, k, v, lengths), dynamic_shapes=({}, {1: tokens}, {1: tokens}, {})
    )
    assert layer.attention_weights is None
    module = program.module()
    torch.testing.assert_close(module(q, k, v, lengths), layer(q, k, v, lengths))
    more = torch.randn(2, 13, D), torch.randn(2, 13, D_V)
    torch.testing.assert_close(module(q, *more, lengths), layer(q, *more, lengths))


@BY_NAME
def test_function_transforms(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict[str, torch.Tensor], q: torch.Tensor) -> torch.Tensor:
        mask = Causal(align="end") & Lengths(torch.tensor([0, 3]))
        return functional_call(layer, parameters, (q, k, v), {"mask": mask}).square().sum()

    loss(parameters, q)
    assert layer.attention_weights is not None
    by_parameters, by_query = grad(loss, argnums=(0, 1))(parameters, q)
    assert layer.attention_weights is None
    leaf = q.clone().requires_grad_()
    expected = torch.autograd.grad(loss(parameters, leaf), [*parameters.values(), leaf])
    torch.testing.assert_close([*by_parameters.values(), by_query], list(expected))


@BY_NAME
def test_vmap(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    expected = layer(q, k, v, torch.tensor([2, 7]))
    torch.testing.assert_close(vmap(layer)(q, k, v, torch.tensor([2, 7])), expected)
    assert layer.attention_weights is None


def test_an_ensemble() -> None:
    layers, (q, k, v) = [make("additive") for _ in range(3)], inputs()
    parameters, buffers = stack_module_state(layers)

    def call(parameters: dict[str, torch.Tensor], buffers: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(layers[0], (parameters, buffers), (q, k, v))

    outputs = vmap(call)(parameters, buffers)
    assert outputs.shape == (3, 2, T_Q, D_V)
    for layer, output in zip(layers, outputs, strict=True):
        torch.testing.assert_close(output, layer(q, k, v))
