"""Layers work with libraries that wrap, watch or replace modules: accelerate, PEFT, Opacus."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from opacus.grad_sample import GradSampleModule
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from anyscore.layers.parameters import has_hidden
from anyscore.score import SCORES
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention

D, H, HIDDEN, B, T = 16, 4, 8, 3, 5


def single(score: str) -> Attention:
    hidden = HIDDEN if has_hidden(SCORES[score]) else None
    return Attention(score, hidden=hidden, d_q=D, d_k=D)


LAYERS: dict[str, Callable[[str], nn.Module]] = {
    "single": single,
    "heads": lambda score: MultiHeadAttention(D, H, score=score),
    "fused": lambda score: SelfAttention(D, HIDDEN, score=score),
    "heads_sink": lambda score: MultiHeadAttention(D, H, score=score, sink=True),
    "fused_sink": lambda score: SelfAttention(D, HIDDEN, score=score, sink=True),
}


class Model(nn.Module):
    """Model of one layer, with self-attention."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(*(x,) * (1 if isinstance(self.layer, SelfAttention) else 3))


LEARNED = [
    (layer, score)
    for layer in LAYERS
    for score in SCORES
    if layer != "single" or score not in ("dot", "scaled_dot")
    if "sink" not in layer or score in ("scaled_dot", "additive")
]
each_layer = pytest.mark.parametrize(("layer", "score"), LEARNED)


@pytest.fixture
def model(layer: str, score: str) -> Model:
    return Model(LAYERS[layer](score))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, T, D)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence accelerate, which reports each offloaded model."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@each_layer
def test_offloaded_by_accelerate(model: Model, x: Tensor, tmp_path: Path) -> None:
    """Parameters may be present only during calls of their module, from memory and from disk."""
    expected = model(x)
    names = sorted({name.rpartition(".")[0] for name, _ in model.named_parameters()})
    places = {name: ("disk", "cpu")[i % 2] for i, name in enumerate(names)}
    given: dict[str, Any] = {"offload_dir": tmp_path, "main_device": "cpu", "force_hooks": True}
    for away in (
        cpu_offload(copy.deepcopy(model), execution_device="cpu"),
        dispatch_model(copy.deepcopy(model), places, **given),
    ):
        assert any(p.device.type == "meta" for p in away.parameters())
        for _ in range(2):
            assert torch.equal(away(x), expected)


def test_keys_prepared_by_an_offloaded_layer(x: Tensor) -> None:
    layer = single("additive")
    expected = layer(x, layer.prepare_keys(x))
    away = cpu_offload(layer, execution_device="cpu")
    assert torch.equal(away(x, away.prepare_keys(x)), expected)


LORA = [
    *((layer, score) for layer in ("heads", "fused") for score in SCORES),
    *(("single", score) for score in ("bilinear", "additive", "gatv2")),
]


@pytest.mark.parametrize(("layer", "score"), LORA)
def test_lora_of_peft(model: Model, x: Tensor) -> None:
    """PEFT finds the projections, trains adapters, and merges these without a change of outputs."""
    expected = model(x)
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    tuned = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, target_modules=linears))
    assert torch.equal(tuned(x), expected)
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    output = tuned(x)
    assert not torch.allclose(output, expected, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(tuned(x).float(), output, rtol=0.1, atol=0.2)
    output.square().sum().backward()
    trained = {name: p for name, p in tuned.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * len(linears)
    assert all(p.grad.abs().max() > 0 for p in trained.values())
    torch.testing.assert_close(tuned.merge_and_unload()(x), output, rtol=1e-4, atol=1e-5)


def test_lora_reads_no_padding() -> None:
    """Only the adapters have gradients, and NaN in padding reaches none of these."""
    layer = Attention("additive", hidden=HIDDEN, d_q=D, d_k=D)
    tuned = get_peft_model(layer, LoraConfig(r=2, target_modules=["W_q", "W_k"]))
    q, k = torch.randn(B, T, D), torch.randn(B, T, D)
    k[:, 3:] = torch.nan
    tuned(q, k, k, 3).sum().backward()
    grads = [p.grad for p in tuned.parameters() if p.requires_grad]
    assert len(grads) == 4
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@each_layer
def test_gradients_of_each_example_by_opacus(model: Model, x: Tensor) -> None:
    expected: dict[str, list[Tensor]] = {}
    for one in x:
        model.zero_grad()
        model(one[None]).square().sum().backward()
        for name, p in model.named_parameters():
            grad = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            expected.setdefault(name, []).append(grad)
    model.zero_grad()
    watched = GradSampleModule(model, loss_reduction="sum")
    watched(x).square().sum().backward()
    for name, p in watched._module.named_parameters():
        if p.grad is None:  # this bias cancels in the softmax
            continue
        torch.testing.assert_close(p.grad_sample, torch.stack(expected[name]), rtol=1e-4, atol=1e-5)
