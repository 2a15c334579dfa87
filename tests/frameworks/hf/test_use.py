"""`use` and `load` give models of transformers another score."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    LlamaForCausalLM,
    LlamaModel,
    MambaConfig,
    MambaModel,
)

from anyscore import Additive, ScaledDot, attention, record
from anyscore.hf import attention_layers, load, use
from helpers import machine
from helpers.by_pair import by_pair
from helpers.hf_models import CAUSAL, MODELS, WORDS, inputs_of, model_of, padding
from helpers.table_scores import TABLE

LAYERS = {name: 6 if name in ("t5", "whisper") else 2 for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_all_layers_are_found(name: str) -> None:
    layers = attention_layers(model_of(name))
    assert len(layers) == LAYERS[name]
    assert all("Attention" in type(layer).__name__ for layer in layers.values())


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_of_the_model(name: str) -> None:
    """Each head has its own parameters, of the width of the heads, with gradients."""
    model, width = model_of(name), 12 if name in (*CAUSAL, "t5") else 8
    assert use(model, "additive") is model
    of_scores = {n: p for n, p in model.named_parameters() if ".anyscore." in n}
    assert [tuple(p.shape) for p in of_scores.values()] == [(4, width)] * LAYERS[name]
    assert of_scores.keys() <= model.state_dict().keys()
    model(**inputs_of(name, padding("after"))).logits.square().mean().backward()
    assert all(p.grad is not None and p.grad.norm() > 0 for p in of_scores.values())


@by_pair("score", [name for name, row in TABLE.items() if not row.of_both])
def test_every_score_by_name(score: str) -> None:
    model = use(model_of("llama"), score, [1])
    logits = model(**inputs_of("llama", padding("before"))).logits
    assert logits.isfinite().all()


def test_the_formula_is_that_of_the_score() -> None:
    """w·tanh(q + k) takes queries and keys after the layer's own projections and rotations."""
    model = use(model_of("llama"), "additive", layers=0)
    layer, seen = attention_layers(model)["model.layers.0.self_attn"], []
    score: Any = layer.anyscore
    score.register_forward_hook(lambda m, args, output: seen.append((args, output)))
    model(**inputs_of("llama", None))
    (q, k, v), output = seen[0]
    w = score.w_v.weight
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    sums = torch.tanh(q[..., :, None, :] + k[..., None, :, :])
    scores = torch.einsum("bhqkd,hd->bhqk", sums, w)
    scores = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(output, scores.softmax(-1) @ v)


def test_the_dot_product_of_the_model_is_one_of_the_scores() -> None:
    model, inputs = model_of("llama"), inputs_of("llama", padding("before"))
    expected = model(**inputs).logits
    found = use(model, ScaledDot(), layers=[0])(**inputs).logits
    keep = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[keep], expected[keep], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_caps_and_sinks_of_the_model_stay(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return attention(*args, **options)

    monkeypatch.setattr("anyscore.hf.exchange.attention", watched)
    model = use(model_of(name), "gaussian")
    inputs = inputs_of(name, None)
    model(**inputs)
    assert [x["softcap"] for x in seen] == [1.5 if name == "gemma2" else 0.0] * 2
    assert [x["sink"] is None for x in seen] == [name == "gemma2"] * 2
    seen.clear()
    use(model, "gaussian", softcap=3.0, sink=0.5)(**inputs)
    assert [(x["softcap"], x["sink"]) for x in seen] == [(3.0, 0.5)] * 2


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, inputs = model_of(name), inputs_of(name, padding("after"))
    use(model, "additive", layers=[0], bias=True)
    use(
        model,
        "gaussian",
        layers=[-1],
        sigma=2.0,
        normalizer="sparsemax" if name == "bert" else "softmax",
    )
    with torch.no_grad():
        for n, p in model.named_parameters():
            if ".anyscore." in n:
                p.normal_()
    model.save_pretrained(tmp_path)
    again = load(type(model), tmp_path)
    assert type(again) is type(model)
    assert again.config.anyscore == model.config.anyscore
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)
    assert not again.training


def test_loaded_by_other_classes(tmp_path: Path) -> None:
    model, ids = use(model_of("llama"), "additive"), torch.randint(3, WORDS, (2, 7))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    again = load(AutoModelForCausalLM, tmp_path)
    assert type(again) is LlamaForCausalLM
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert torch.equal(load(LlamaModel, tmp_path)(ids)[0], model.model(ids)[0])
    half = load(LlamaForCausalLM, tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert copy.deepcopy(again).model.layers[0].self_attn.anyscore.w_v.weight.shape == (4, 12)


def test_what_no_config_can_say(tmp_path: Path) -> None:
    """Each layer has a copy of a score object. Files hold its parameters; the user loads these."""
    score = Additive(None, None, nn.Parameter(torch.randn(12)))
    model, ids = use(model_of("llama"), score), torch.randint(3, WORDS, (2, 7))
    weights = [p for n, p in model.named_parameters() if ".anyscore." in n]
    assert len(weights) == 2
    model.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"layers.0.self_attn was no name, .* use\(\) the same score"
    ):
        load(LlamaForCausalLM, tmp_path)
    config = copy.deepcopy(model.config)
    del config.anyscore
    again = use(LlamaForCausalLM(config), score).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_a_callable_and_a_module() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return self.factor * q @ k.mT

    model, ids = use(model_of("llama"), Twice()), torch.randint(3, WORDS, (2, 7))
    model(ids).logits.sum().backward()
    factors = [p for n, p in model.named_parameters() if n.endswith("score.factor")]
    assert len(factors) == 2
    assert all(p.grad is not None for p in factors)


def test_back_again() -> None:
    model, inputs = model_of("gemma2"), inputs_of("gemma2", None)
    model.set_attn_implementation("eager")
    expected, names = model(**inputs).logits, set(model.state_dict())
    use(model, "additive")
    assert not torch.allclose(model(**inputs).logits, expected, atol=1e-3)
    use(model, "laplace", layers=["model.layers.1"])
    assert [x["score"] for x in model.config.anyscore.values()] == ["additive", "laplace"]
    use(model, None)
    assert set(model.state_dict()) == names
    assert not hasattr(model.config, "anyscore")
    torch.testing.assert_close(model(**inputs).logits, expected, rtol=1e-4, atol=1e-5)


def test_generate_with_a_cache_as_without() -> None:
    model, inputs = use(model_of("llama"), "additive"), inputs_of("llama", padding("before"))
    options: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    options |= {"eos_token_id": None, "no_repeat_ngram_size": 2}
    assert torch.equal(
        model.generate(**inputs, **options), model.generate(**inputs, **options, use_cache=False)
    )


@pytest.mark.parametrize("name", MODELS)
def test_an_epoch_with_another_score_trains(name: str) -> None:
    """The loss on a small corpus falls, and the parameters of the scores learn."""
    torch.manual_seed(1)
    model = use(MODELS[name](), "additive").train()
    before = {n: p.detach().clone() for n, p in model.named_parameters() if ".anyscore." in n}
    corpus = [inputs_of(name, None) for _ in range(4)] * 10
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for inputs in corpus:
        labels = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    after = dict(model.named_parameters())
    assert all((after[n] - p).norm() > 1e-3 for n, p in before.items())


def test_errors_leave_the_model_as_it_was() -> None:
    model = model_of("llama")
    names, implementation = set(model.state_dict()), model.config._attn_implementation
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "did you mean 'additive'", {"score": "aditive"}),
        (IndexError, "layer 7: the model has 2 attention layers", {"layers": [7]}),
        (ValueError, "no attention layer 'x': the model has model.layers.0", {"layers": ["x"]}),
        (TypeError, "layers must be numbers or names", {"layers": [1.5]}),
        (TypeError, "layers must be numbers or names .*, got 1.0", {"layers": 1.0}),
        (TypeError, r"layers must be .*, got slice\(0, 2, None", {"layers": slice(0, 2)}),
        (ValueError, "layers is empty: leave it out for all", {"layers": []}),
        (TypeError, "heads must be an integer ≥ 1, got 2.5", {"heads": 2.5}),
        (TypeError, "heads must be an integer ≥ 1, got True", {"score": "dot", "heads": True}),
        (TypeError, "head_dim must be an integer ≥ 1, got '4'", {"head_dim": "4"}),
        (ValueError, "head_dim=8, but model.layers.0.self_attn says 12", {"head_dim": 8}),
        (ValueError, "kv_heads=4, but model.layers.0.self_attn says 2", {"kv_heads": 4}),
        (TypeError, "'sofcap': did you mean 'softcap'.*takes heads, kv_heads", {"sofcap": 1.0}),
        (TypeError, "'width': leave it out. use.. takes heads, ", {"width": 1.0}),
        (TypeError, "dropout= is what the model says: leave it out", {"dropout": 0.1}),
        (TypeError, "Additive has no scale 'sigma'", {"sigma": 1.0}),
        (ValueError, "self_attn: Concat cannot have fewer key heads", {"score": "concat"}),
        (TypeError, "self_attn: score must be a name", {"score": 3}),
        (TypeError, "bias: of a score, got score=None", {"score": None, "bias": True}),
    ]
    for error, text, arguments in wrong:
        with pytest.raises(error, match=text):
            use(model, **{"score": "additive", **arguments})
    assert set(model.state_dict()) == names
    assert model.config._attn_implementation == implementation


def test_numbers_of_numpy() -> None:
    model = use(model_of("llama"), "additive", layers=np.int64(1))
    assert list(model.config.anyscore) == ["layers.1.self_attn"]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_wrapped_models() -> None:
    model = model_of("llama")
    compiled: Any = torch.compile(model, backend="eager")
    for around, inner in ((nn.DataParallel(model), "module"), (compiled, "_orig_mod")):
        with pytest.raises(TypeError, match=rf"around a model of transformers: give model.{inner}"):
            use(around, "additive")
    peft = machine.package("peft")
    tuned = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(TypeError, match=r"PeftModel .*: give model.get_base_model\(\)"):
        use(tuned, "additive")
    inner = use(tuned.get_base_model(), "additive")
    inner(**inputs_of("llama", None)).logits.sum().backward()


def test_recorded() -> None:
    """Exchanged layers keep their weights during a recording, and only then."""
    model, inputs = use(model_of("llama"), "additive"), inputs_of("llama", padding("after"))
    expected = model(**inputs, output_attentions=True)
    layer: Any = attention_layers(model)["model.layers.0.self_attn"].anyscore
    assert layer.last_weights() is None
    with record(model) as recording:
        found = model(**inputs)
    assert torch.equal(found.logits, expected.logits)
    assert len(recording.calls) == 2
    for (_, weights), x in zip(recording.calls, expected.attentions, strict=True):
        torch.testing.assert_close(torch.from_numpy(weights), x)


def test_models_without_attention() -> None:
    with pytest.raises(TypeError, match=r"model is a Linear, expected .* anyscore.torch.replace"):
        use(nn.Linear(2, 2), "additive")  # type: ignore[type-var]
    config = MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=9, state_size=2)
    with pytest.raises(ValueError, match="MambaModel has no attention layer that asks"):
        use(MambaModel(config), "additive")


def test_a_layer_that_does_not_say_its_sizes() -> None:
    model = model_of("llama")
    for layer in attention_layers(model).values():
        del layer.head_dim
    with pytest.raises(
        ValueError, match=r"model.layers.0.self_attn, a LlamaAttention, .* give head_dim=\."
    ):
        use(model, "additive")
    use(model, "dot")  # dot has no parameters
    use(model, "additive", head_dim=12)
    assert model.config.anyscore["layers.0.self_attn"]["options"] == {"head_dim": 12}
