"""Small models of any class of transformers, with more inputs than a model reads.

The name of a number in a config says whether it is a size. Models that need more than sizes are
left out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, logging
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

logging.set_verbosity_error()

WORDS, TOKENS, LAYERS, LARGEST = 60, 9, 2, 5_000_000
SIZES = {
    r"(.*_)?vocab_size(_.*)?|n_words": WORDS,
    r"max_position_embeddings|n_positions|max_(source|target)_positions|n_ctx|max_seq_len.*": 64,
    r"(.*_)?(num_hidden_layers|n_layers?|num_layers|depth|num_blocks)": LAYERS,
    r"(num_)?(en|de)coder_layers": LAYERS,
    r"(.*_)?(num_attention_heads|n_heads?|num_heads|attention_heads)": 4,
    r"(.*_)?head_dim|d_kv|attention_head_size|kv_channels|d_head|attention_key_size": 8,
    r"(.*_)?(hidden_size|d_model|n_embd|hidden_dim|emb_dim|embedding_size|dim|width)": 32,
    r"(.*_)?(embed_dims?|d_embed|word_embed_proj_dim|projection_dim|output_dim|proj_size)": 32,
    r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|inner_dim|mlp_dim)": 40,
    r"(.*_)?(feed_?forward(_proj)?_dim|intermediate_dim|d_inner|dim_feedforward)": 40,
    r"(q|kv|o)_lora_rank": 16,
    r"(.*_)?num_(local_|routed_)?experts|n_routed_experts|moe_num_experts": 4,
    r"num_experts_per_tok|moe_k|moe_topk|n_group|topk_group|n_shared_experts|experts_top_k": 1,
    r"image_size": 16,
    r"patch_size|spatial_patch_size": 8,
    r"num_mel_bins|n_mels|feature_size|input_feat_per_channel": 8,
}


def names_of_classes() -> list[str]:
    """Return the names of all classes that AutoModel knows."""
    found = MODEL_MAPPING_NAMES.values()
    return sorted({x for names in found for x in ([names] if isinstance(names, str) else names)})


def small_config(cls: type[PreTrainedConfig], kv_heads: int = 2) -> PreTrainedConfig:
    """Return a config of small sizes.

    kv_heads: number of key heads, where it may be smaller than heads; latent keys have all heads.
    """
    config: Any = cls()
    for part in _parts(config):
        for name, x in list(vars(part).items()):
            if isinstance(x, int) and not isinstance(x, bool):
                setattr(part, name, _small(name, x, kv_heads))
            elif name.endswith("layer_types") and isinstance(x, list):
                kinds = list(dict.fromkeys(x))
                setattr(part, name, (kinds + x)[: part.num_hidden_layers])
        if getattr(part, "prediction_length", 1) is None:
            part.prediction_length, part.context_length, part.lags_sequence = 4, 8, [1, 2]
            part.feature_size = 2 + part._number_of_features
        part._experts_implementation = "eager"
    return config


def _small(name: str, x: int, kv_heads: int) -> int:
    """Return a small number for a field of a config."""
    if name == "eos_token_id":
        return WORDS - 1
    if re.fullmatch(r"(.*_)?token_ids?|.*_token_index", name):
        return x if x < WORDS else 1
    if re.fullmatch(r"(.*_)?(num_key_value_heads|num_kv_heads)|multi_query_group_num", name):
        return min(x, kv_heads)
    return next((min(x, n) for like, n in SIZES.items() if re.fullmatch(like, name)), x)


def _parts(config: PreTrainedConfig) -> Iterator[Any]:
    """Yield a config and its inner configs."""
    yield config
    for x in list(vars(config).values()):
        if isinstance(x, PreTrainedConfig):
            yield from _parts(x)


def make(cls: Any, config: PreTrainedConfig) -> Any:
    """A model in evaluation, with weights large enough that attention is not even.

    Raises ValueError: the model is not small.
    """
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    model = cls(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def inputs_of(model: Any) -> Iterator[dict[str, Any]]:
    """Yield possible inputs of a model: two sequences, padded on either side, with a picture."""
    takes = set(inspect.signature(model.forward).parameters)
    config, inputs = model.config, {}
    keep = torch.ones(2, TOKENS, dtype=torch.long)
    keep[0, 6:] = keep[1, :2] = 0
    ids = torch.randint(12, WORDS - 1, (2, TOKENS))
    ids[:, 4] = WORDS - 1  # some models read at the largest id, which must be no padding
    for prefix in ("", "decoder_"):
        if f"{prefix}input_ids" in takes and (not prefix or config.is_encoder_decoder):
            inputs[f"{prefix}input_ids"] = ids if not prefix else ids.flip(-1)
            if f"{prefix}attention_mask" in takes:
                inputs[f"{prefix}attention_mask"] = keep
    if hasattr(config, "lags_sequence"):
        yield _series(config)
    size = lambda name, n: next((getattr(p, name) for p in _parts(config) if hasattr(p, name)), n)  # noqa: E731
    side, channels, bins = size("image_size", 16), size("num_channels", 3), size("num_mel_bins", 8)
    side = side[0] if isinstance(side, list | tuple) else side
    picture = torch.randn(2, channels, side, side)
    sounds = {
        "input_values": [torch.randn(2, 4000)],
        "input_features": [torch.randn(2, *shape) for shape in ((bins, 128), (128, bins))],
    }
    for name, of_kind in sounds.items():
        for sound in of_kind if name in takes else ():
            yield {**inputs, name: sound}
    if "pixel_values" in takes:
        yield {**inputs, "pixel_values": picture}
    if inputs:
        yield inputs


def _series(config: Any) -> dict[str, Tensor]:
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    return {
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, config.num_time_features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, future),
        "future_time_features": torch.randn(2, future, config.num_time_features),
    }


def changed(inputs: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield inputs with other late tokens, or with other tokens in the padding."""
    for name in ("input_ids", "decoder_input_ids", "future_values"):
        x = inputs.get(name)
        if x is None:
            continue
        late = x.clone()
        late[:, -3:] = late[:, -3:].flip(-1) + 1 if x.is_floating_point() else 7
        yield f"late {name}", {**inputs, name: late}
        keep = inputs.get(name.replace("input_ids", "attention_mask"))
        if keep is not None and keep is not x:
            yield f"padded {name}", {**inputs, name: torch.where(keep.bool(), x, 11)}


def run(model: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Return the float tensors of a model's output."""
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**inputs)
    return {
        name: x
        for name, x in output.items()
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel()
    }
