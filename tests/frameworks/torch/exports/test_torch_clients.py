"""Libraries that wrap, watch or replace modules: accelerate, PEFT, Opacus, transformers."""

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
from transformers import (
    AttentionInterface,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from anyscore import Causal, ScaledDot, attention
from anyscore.layers import SCORES, has_hidden
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
    """One layer, attending from a sequence to itself."""

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
    """Accelerate says of each offloaded model that it is one."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@each_layer
def test_offloaded_by_accelerate(model: Model, x: Tensor, tmp_path: Path) -> None:
    """Parameters that are there only while their module is called, from memory and from disk."""
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
    """It finds the projections, trains them, and merges into what it computed."""
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
    """Only the adapters are learned, and what nobody attends reaches none of them."""
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
        if p.grad is None:  # a bias that cancels in the softmax
            continue
        torch.testing.assert_close(p.grad_sample, torch.stack(expected[name]), rtol=1e-4, atol=1e-5)


def hugging_face(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention of a model of transformers."""
    mask = attention_mask
    if mask is None and module.is_causal and query.shape[-2] > 1:
        mask = Causal("end")
    score = ScaledDot(scaling)
    out = attention(query, key, value, score=score, mask=mask, dropout=dropout)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register("anyscore", hugging_face)
AttentionMaskInterface.register("anyscore", sdpa_mask)
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "vocab_size": 50,
    "max_position_embeddings": 40,
}


@pytest.mark.parametrize("kind", ["bert", "llama", "llama with grouped heads"])
def test_models_of_transformers(kind: str) -> None:
    """Logits and gradients are those of the eager implementation, padding or not."""
    if kind == "bert":
        model: Any = BertModel(BertConfig(**SIZES)).eval()
    else:
        heads = 2 if "grouped" in kind else 4
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=heads)).eval()
    ids = torch.randint(0, 50, (2, 9))
    full = torch.ones(2, 9, dtype=torch.long)
    padded = full.clone()
    padded[1, 6:] = 0
    for mask in (full, padded):
        results = []
        for implementation in ("eager", "anyscore"):
            model.set_attn_implementation(implementation)
            output = model(ids, attention_mask=mask)[0][mask.bool()]
            model.zero_grad()
            output.square().mean().backward()
            results.append((output, [p.grad for p in model.parameters() if p.grad is not None]))
        torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-4, atol=1e-5)
        for x, y in zip(results[1][1], results[0][1], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)
    if kind != "bert":
        made = {}
        for implementation in ("eager", "anyscore"):
            model.set_attn_implementation(implementation)
            made[implementation] = model.generate(ids, max_new_tokens=8, do_sample=False)
        assert torch.equal(made["eager"], made["anyscore"])
