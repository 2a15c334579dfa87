"""Calls of layers and calls with options are repeated below the checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import anyscore
from anyscore import attention
from anyscore.backends.torch import repeated
from anyscore.kernels import cpu
from anyscore.masks.objects import Causal, Keys, Window
from anyscore.torch import Attention, MultiHeadAttention
from helpers.repeated_calls import forget, is_repeated

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")

LENGTHS = torch.tensor([10, 0, 7])
OPTIONS: dict[str, tuple[dict[str, Any], bool]] = {  # True if such calls are repeated
    "none": ({}, True),
    "lengths": ({"valid_lens": LENGTHS}, True),
    "causal": ({"mask": Causal()}, True),
    "both": ({"mask": Causal(), "valid_lens": LENGTHS}, True),
    "cap": ({"softcap": 2.0}, True),
    "sigmoid": ({"normalizer": "sigmoid"}, True),
    "sigmoid with a bias": ({"normalizer": anyscore.Sigmoid(0.5), "valid_lens": LENGTHS}, True),
    "window": ({"mask": Window(3, 0)}, False),
    "keys": ({"mask": Keys(torch.arange(10) % 3 > 0)}, False),
    "dropout": ({"dropout": 0.5, "dropout_seed": 7}, False),
    "bias": ({"bias": torch.linspace(-1, 1, 10)}, False),
    "sink": ({"sink": 0.5}, False),
    "scores": ({"return_weights": True}, False),
    "lse": ({"return_lse": True}, False),
}


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def inputs(dtype: Any = torch.float64, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = (3, 10, 6), (3, 10, 6), (3, 10, 5), (8, 6), (8, 6), (8,)
    return [torch.randn(s, generator=rng, dtype=dtype).requires_grad_() for s in shapes]


def call(tensors: list[Tensor], **options: Any) -> Tensor:
    query, key, value, *weights = tensors
    found = attention(query, key, value, score=anyscore.Additive(*weights), **options)
    output: Tensor = getattr(found, "output", found)
    return output


def slopes(output: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad((output**2).sum(), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_bits(name: str, dtype: Any) -> None:
    options, repeats = OPTIONS[name]
    call(inputs(dtype), **options)
    call(inputs(dtype), **options)
    tensors = inputs(dtype, seed=1)
    found = call(tensors, **options)
    of = slopes(found, tensors)
    assert is_repeated(found) is repeats
    repeated._calls.clear()
    first = call(tensors, **options)
    assert not is_repeated(first)
    assert torch.equal(found, first)
    for x, y in zip(of, slopes(first, tensors), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_without_gradients(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options, repeats = OPTIONS[name]
    whole, seen = cpu.forward, []

    def forward(*args: Any) -> None:
        seen.append(args)
        whole(*args)

    monkeypatch.setattr(cpu, "forward", forward)
    with torch.no_grad():
        first = call(inputs(dtype), **options)
        call(inputs(dtype, seed=1), **options)
        seen.clear()
        assert torch.equal(call(inputs(dtype), **options), first)
    assert len(seen) == (not repeats)


@pytest.mark.parametrize("name", [name for name, (_, repeats) in OPTIONS.items() if repeats])
def test_against_the_definition(name: str) -> None:
    options, _ = OPTIONS[name]
    tensors = inputs()
    for calls in range(3):
        found = call(tensors, **options)
        assert is_repeated(found) is (calls > 0)
        exact = call(tensors, **options, impl="reference")
        torch.testing.assert_close(found, exact)
        torch.testing.assert_close(slopes(found, tensors), slopes(exact, tensors))


def test_the_second_call_is_repeated_and_few_are_kept() -> None:
    tensors = inputs()
    assert [is_repeated(call(tensors)) for _ in range(3)] == [False, True, True]
    with torch.no_grad():
        assert call(tensors).grad_fn is None
    for keys in range(1, 10):
        query, key, value, *weights = tensors
        call([query, key[:, :keys], value[:, :keys], *weights])
    assert len(repeated._calls) == 11
    for n in range(repeated.MAX_CALLS):
        attention(*tensors[:3], score=anyscore.Gaussian(1.0 + n))
    assert len(repeated._calls) <= repeated.MAX_CALLS


def test_other_strides_are_right() -> None:
    query, key, value, *weights = inputs()
    exact = slopes(call([query, key, value, *weights], return_lse=True), [query, key, value])
    layouts: list[Any] = [
        lambda x: x,
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.stack([x, x], 1)[:, 0],
        lambda x: torch.stack([x, x], 2)[:, :, 0],
    ]
    for layout in layouts:
        for _ in range(4):
            found = slopes(call([query, key, layout(value), *weights]), [query, key, value])
            torch.testing.assert_close(found, exact)


def test_whoever_counts_operators_sees_them() -> None:
    tensors = inputs()
    for _ in range(3):
        call(tensors)
    counts = []
    for again in (True, False):
        if not again:
            repeated._calls.clear()
        with FlopCounterMode(display=False) as counter:
            slopes(call(tensors), tensors)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("kind", ["additive", "dot", "heads"])
def test_layers(kind: str, lengths: Any) -> None:
    torch.manual_seed(0)
    layers: dict[str, Any] = {
        "additive": lambda: Attention("additive", hidden=8, d_q=6, d_k=6),
        "dot": lambda: Attention("scaled_dot"),
        "heads": lambda: MultiHeadAttention(6, 2),
    }
    layer = layers[kind]().double()
    query, key, value, *_ = inputs()
    value = key if kind == "heads" else value
    wanted = [*layer.parameters(), query, key]
    found = []
    for _ in range(3):
        output = layer(query, key, value, lengths)
        of_layer = torch.autograd.grad((output**2).sum(), wanted)
        found.append((output, layer.last_weights(), *of_layer))
    assert len(repeated._calls) == 1
    for first, *others in zip(*found, strict=True):
        assert all(torch.equal(first, x) for x in others)
