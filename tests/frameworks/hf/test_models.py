"""Models of transformers with `attn_implementation="anyscore"` give the results of `eager`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    OPTConfig,
    OPTModel,
)

import anyscore.hf
from anyscore.hf import masks
from anyscore.hf.attention import attend
from helpers.hf_models import CAUSAL, MODELS, TOKENS, WORDS, doubled, inputs_of, model_of, padding

anyscore.hf.register()

ATTENTIONS = "attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"


def run(model: Any, implementation: str, inputs: dict[str, Any], **more: Any) -> tuple[Any, ...]:
    """Return logits without padding, the gradients of a loss of logits, and the whole output."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    output = model(**inputs, **more)
    keep = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    logits = output.logits if keep is None else output.logits[keep.bool()]
    (logits.log_softmax(-1) * torch.sin(torch.arange(logits.shape[-1]))).mean().backward()
    slopes = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), slopes, output


@pytest.mark.parametrize("where", [None, "before", "after", "between"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name: str, where: str | None) -> None:
    """In float64, logits and gradients equal those of the formula."""
    model, inputs = model_of(name).double(), doubled(inputs_of(name, padding(where)))
    expected, slopes, _ = run(model, "written out", inputs)
    found, ours, _ = run(model, "anyscore", inputs)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert ours.keys() == slopes.keys()
    for n, slope in ours.items():
        torch.testing.assert_close(slope, slopes[n], rtol=1e-8, atol=1e-10, msg=n)


@pytest.mark.parametrize("name", MODELS)
def test_the_error_is_that_of_eager(name: str) -> None:
    """In float32, the median error over models of other weights is near that of `eager`.

    This holds for logits and for all gradients.
    """
    of_logits, of_slopes = [], []
    for _ in range(5):
        single, inputs = model_of(name), inputs_of(name, padding("after"))
        double = model_of(name)
        double.load_state_dict(single.state_dict())
        true = run(double.double(), "written out", doubled(inputs))
        theirs, ours = (run(single, one, inputs) for one in ("eager", "anyscore"))
        of_logits.append((ours[0] - true[0]).norm() / (theirs[0] - true[0]).norm())
        errors = [
            torch.stack([(slopes[n] - x).norm() for n, x in true[1].items()]).norm()
            for slopes in (ours[1], theirs[1])
        ]
        of_slopes.append(errors[0] / errors[1])
    assert torch.stack(of_logits).median() < 1.3
    assert torch.stack(of_slopes).median() < 1.5


@pytest.mark.parametrize("name", MODELS)
def test_no_matrix_of_queries_and_keys_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model makes neither a mask nor weights, with padding or without."""
    model = model_of(name)

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a boolean matrix was asked for")

    monkeypatch.setattr(masks, "sdpa_mask", refused)
    for where in (None, "before", "after"):
        *_, output = run(model, "anyscore", inputs_of(name, padding(where)))
        assert all(output.get(x) is None for x in ATTENTIONS)


@pytest.mark.parametrize("name", MODELS)
def test_weights_without_going_eager(name: str) -> None:
    model, inputs = model_of(name), inputs_of(name, padding("after"))
    *_, theirs = run(model, "eager", inputs, output_attentions=True)
    *_, ours = run(model, "anyscore", inputs, output_attentions=True)
    seen, keep = 0, padding("after").bool()  # rows without keys: 0 here, equal weights in `eager`
    for kind in ATTENTIONS:
        if theirs.get(kind) is None:
            continue
        assert len(ours[kind]) == len(theirs[kind]) == 2
        for x, y in zip(ours[kind], theirs[kind], strict=True):
            if x.shape[2] == TOKENS:
                x, y = (z.transpose(1, 2)[keep] for z in (x, y))
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
            seen += 1
    assert seen == (6 if name in ("t5", "whisper") else 2)
    assert model.config._attn_implementation == "anyscore"


_OPT = {"hidden_size": 32, "ffn_dim": 44, "num_hidden_layers": 2, "num_attention_heads": 4}
UNTOLD: dict[str, Any] = {
    "gpt2": lambda: GPT2Model(GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4)),
    "opt": lambda: OPTModel(OPTConfig(**_OPT, vocab_size=WORDS, word_embed_proj_dim=32)),
}
"""Models that do not pass a request for weights to their attention."""


@pytest.mark.parametrize("name", UNTOLD)
def test_weights_that_hooks_collect(name: str) -> None:
    model, ids = UNTOLD[name]().eval(), torch.randint(3, WORDS, (2, TOKENS))
    theirs, ours = {}, {}
    for implementation, found in (("eager", theirs), ("anyscore", ours)):
        model.set_attn_implementation(implementation)
        found.update(model(ids, output_attentions=True))
    assert len(ours["attentions"]) == 2
    for x, y in zip(ours["attentions"], theirs["attentions"], strict=True):
        torch.testing.assert_close(x, y)
    assert model(ids).attentions is None


def made(model: Any, name: str, **options: Any) -> dict[str, Tensor]:
    """Return the tokens of both implementations after the same prompts; padding precedes texts."""
    options = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None, **options}
    options["no_repeat_ngram_size"] = 2
    keep = padding("before")
    prompts = inputs_of(name, keep)
    if name == "whisper":
        prompts = {"input_features": prompts["input_features"]}
    elif name == "t5":
        prompts = {x: prompts[x] for x in ("input_ids", "attention_mask")}
    found = {}
    for implementation in ("eager", "anyscore"):
        model.set_attn_implementation(implementation)
        found[implementation] = model.generate(**prompts, pad_token_id=0, **options)
    return found


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
@pytest.mark.parametrize("how", ["greedy", "beams", "static cache", "without cache"])
def test_generate(name: str, how: str) -> None:
    """Every token agrees; the window of Gemma 2 and GPT-OSS is shorter than the generated text."""
    options: dict[str, Any] = {
        "greedy": {},
        "beams": {"num_beams": 3},
        "static cache": {"cache_implementation": "static"},
        "without cache": {"use_cache": False},
    }[how]
    found = made(model_of(name), name, **options)
    assert torch.equal(found["anyscore"], found["eager"])
    assert len(found["eager"].unique()) > 4


@pytest.mark.parametrize("name", CAUSAL)
def test_many_tokens_after_a_cache(name: str) -> None:
    """Logits of a prompt's second part agree: its queries begin in the midst of the keys."""
    model, inputs = model_of(name), inputs_of(name, padding("before"))
    ids, keep = inputs["input_ids"], inputs["attention_mask"]
    assert keep is not None
    parts = {}
    for implementation in ("eager", "anyscore"):
        model.set_attn_implementation(implementation)
        first = model(input_ids=ids[:, :5], attention_mask=keep[:, :5], use_cache=True)
        parts[implementation] = model(
            input_ids=ids[:, 5:], attention_mask=keep, past_key_values=first.past_key_values
        ).logits
    torch.testing.assert_close(parts["anyscore"], parts["eager"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_sequences_packed_into_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that begin anew separate sequences, and the masks are still intervals."""
    model, ids = model_of(name), torch.randint(3, WORDS, (2, 11))
    starts = [[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4], [0, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6]]
    inputs = {"input_ids": ids, "position_ids": torch.tensor(starts), "use_cache": False}
    expected, slopes, _ = run(model, "eager", inputs)
    monkeypatch.setattr(masks, "sdpa_mask", None)
    found, ours, _ = run(model, "anyscore", inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for n, slope in ours.items():
        torch.testing.assert_close(slope, slopes[n], rtol=1e-3, atol=1e-6)
    if name == "gpt_oss":  # transformers packs nothing for GPT-OSS
        return
    alone = model(ids[:1, 6:], use_cache=False).logits
    torch.testing.assert_close(found[:1, 6:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["booleans", "floats", "floats that are added"])
def test_masks_of_the_user(kind: str) -> None:
    model, ids = model_of("llama"), torch.randint(3, WORDS, (2, TOKENS))
    keep = (torch.rand(2, 1, TOKENS, TOKENS) > 0.4) | torch.eye(TOKENS, dtype=torch.bool)
    floats = torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)
    if kind == "floats that are added":
        floats = floats + keep * torch.randn(keep.shape)
    expected, *_ = run(model, "eager", {"input_ids": ids}, attention_mask=floats)
    mask = keep if kind == "booleans" else floats
    found, *_ = run(model, "anyscore", {"input_ids": ids}, attention_mask=mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("shape", [(3, 7), (2, 3, 7), (2, 1, 7, 5), (3, 1, 7, 7)])
def test_masks_of_other_shapes(name: str, shape: tuple[int, ...]) -> None:
    model = model_of(name)
    model.set_attn_implementation("anyscore")
    text = r"attention_mask has shape .*, expected \(batch, keys\) or \(batch, 1, .*: here \(2, 7\)"
    with pytest.raises(ValueError, match=text):
        model(torch.randint(3, WORDS, (2, 7)), attention_mask=torch.ones(shape))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_gradients(reentrant: bool) -> None:
    model, inputs = model_of("gemma2"), inputs_of("gemma2", padding("after"))
    inputs["use_cache"] = False
    expected = run(model.train(), "anyscore", inputs)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = run(model, "anyscore", inputs)
    assert torch.equal(found[0], expected[0])
    for n, slope in found[1].items():
        torch.testing.assert_close(slope, expected[1][n], msg=n)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_it_is_compiled() -> None:
    model, inputs = model_of("llama"), inputs_of("llama", padding("after"))
    expected, *_ = run(model, "eager", inputs)
    model.set_attn_implementation("anyscore")
    found = torch.compile(model, backend="eager")(**inputs).logits
    keep = inputs["attention_mask"]
    torch.testing.assert_close(found[keep.bool()], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, inputs = model_of("llama"), inputs_of("llama", padding("before"))
    true, *_ = run(model, "eager", inputs)
    model.to(dtype)
    theirs, ours = (run(model, one, inputs)[0].float() for one in ("eager", "anyscore"))
    assert (ours - true).norm() <= 1.2 * (theirs - true).norm()


class Bare(nn.Module):
    """Module for calls of `attend`."""

    config = None


def test_dropout() -> None:
    """Dropout has the given rate, applies to weights, and applies in training alone."""
    module, x, value = Bare(), torch.randn(1, 2, 50, 8), torch.eye(50).expand(1, 2, 50, 50)
    full, weights = attend(module.eval(), x, x, value, None, dropout=0.3, output_attentions=True)
    assert weights is not None
    torch.testing.assert_close(full.transpose(1, 2), weights)
    dropped = attend(module.train(), x, x, value, None, dropout=0.3)[0].transpose(1, 2)
    left = dropped != 0
    assert 0.65 < left.float().mean() < 0.75
    torch.testing.assert_close(dropped[left], weights[left] / 0.7)
    again = attend(module, x, x, value, None, dropout=0.3)[0].transpose(1, 2)
    assert not torch.equal(again, dropped)


def test_a_causal_call_without_a_mask() -> None:
    x = torch.randn(1, 2, 5, 8)
    keep = torch.ones(5, 5, dtype=torch.bool).tril()
    expected, _ = attend(Bare(), x, x, x, keep[None, None])
    assert torch.equal(attend(Bare(), x, x, x, None, is_causal=True)[0], expected)
    assert not torch.equal(attend(Bare(), x, x, x, None)[0], expected)


def test_what_it_has_not_is_refused() -> None:
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(
        NotImplementedError, match=r"Bare asks for: use attn_implementation=\"eager"
    ):
        attend(Bare(), x, x, x, None, indices=torch.zeros(1, 5, 2, dtype=torch.long))
    with pytest.raises(TypeError, match=r"attention_mask is torch.int64, expected booleans"):
        attend(Bare(), x, x, x, torch.ones(1, 1, 5, 5, dtype=torch.long))


def test_a_model_is_made_with_it() -> None:
    config = LlamaConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, vocab_size=9)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="anyscore")
    assert model.config._attn_implementation == "anyscore"
