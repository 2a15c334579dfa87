"""Tiny models of transformers with random weights, and inputs for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
    logging,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

logging.set_verbosity_error()
logging.disable_progress_bar()

WORDS, TOKENS, WINDOW = 53, 9, 4
_TEXT: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED: dict[str, Any] = {**_TEXT, "num_key_value_heads": 2, "head_dim": 12}
_YARN = {"rope_type": "default", "rope_theta": 1e4}
_SPEECH: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 44,
    "num_mel_bins": 6,
    "max_source_positions": 15,
    "max_target_positions": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "begin_suppress_tokens": None,
}
for _side in ("encoder", "decoder"):
    _SPEECH |= {f"{_side}_layers": 2, f"{_side}_attention_heads": 4}

MODELS: dict[str, Any] = {
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(**_GROUPED, **more)),
    "gemma2": lambda **more: Gemma2ForCausalLM(
        Gemma2Config(
            **_GROUPED,
            sliding_window=WINDOW,
            attn_logit_softcapping=1.5,
            query_pre_attn_scalar=7,
            **more,
        )
    ),
    "gpt_oss": lambda **more: GptOssForCausalLM(
        GptOssConfig(
            **_GROUPED,
            sliding_window=WINDOW,
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters=_YARN,
            experts_implementation="eager",
            **more,
        )
    ),
    "bert": lambda **more: BertForMaskedLM(BertConfig(**_TEXT, **more)),
    "t5": lambda **more: T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS,
            d_model=32,
            d_kv=12,
            d_ff=44,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=10,
            **more,
        )
    ),
    "whisper": lambda **more: WhisperForConditionalGeneration(WhisperConfig(**_SPEECH, **more)),
}
"""Name → function from options of a config to a model."""

CAUSAL = "llama", "gemma2", "gpt_oss"


def model_of(name: str, **more: Any) -> Any:
    """Return a model in evaluation mode, with weights large enough for uneven attention."""
    model = MODELS[name](**more).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def padding(where: str | None) -> Tensor | None:
    """Return a padding mask (3, TOKENS), or None: before, after or between; one row is full."""
    keep = torch.ones(3, TOKENS, dtype=torch.long)
    if where is None:
        return None
    if where == "before":
        keep[1, :3] = keep[2, :1] = 0
    elif where == "after":
        keep[1, 5:] = keep[2, 8:] = 0
    else:
        keep[1, 3:5] = keep[2, [0, 4]] = 0
    return keep


def inputs_of(name: str, keep: Tensor | None) -> dict[str, Any]:
    """Return inputs of a batch of three."""
    ids = torch.randint(3, WORDS, (3, TOKENS))
    if name == "whisper":
        sound = torch.randn(3, 6, 30)
        return {
            "input_features": sound,
            "decoder_input_ids": ids,
            "decoder_attention_mask": keep,
        }
    if name == "t5":
        of_decoder = {"decoder_input_ids": ids.flip(-1), "decoder_attention_mask": keep}
        return {"input_ids": ids, "attention_mask": keep, **of_decoder}
    return {"input_ids": ids, "attention_mask": keep}


def written_out(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Return (output, weights) in the query's dtype; `eager` of transformers may use float32."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + position_bias
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -1e9)
    if s_aux is not None:
        sinks = s_aux[:, None, None].expand(len(query), -1, query.shape[2], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), weights


def _whole(*args: Any, **options: Any) -> Tensor:
    return sdpa_mask(*args, **{**options, "allow_is_causal_skip": False})


AttentionInterface.register("written out", written_out)
AttentionMaskInterface.register("written out", _whole)


def doubled(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the same inputs in float64."""
    return {
        name: x.double() if x is not None and x.is_floating_point() else x
        for name, x in inputs.items()
    }
