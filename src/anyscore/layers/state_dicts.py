"""Keys of state dicts of other libraries, and the keys of anyscore's layers for them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from anyscore.layers.score_spec import ScoreSpec
from anyscore.score import Bilinear

LEGACY_KEYS = {
    "W_v.weight": "w_v.weight",
    "v.weight": "w_v.weight",
    "w.weight": "W.weight",
    **dict.fromkeys(("w.bias", "W.bias", "W_q.bias", "W_k.bias"), "bias.weight"),  # they add up
    "sinks": "sink.weight",
}
"""Keys of *Dive into Deep Learning*, its relatives, and gpt-oss (sinks) → anyscore's keys."""

FUSED_KEYS = {
    "_MultiHeadAttention__qkv.weight": "weight",
    "_MultiHeadAttention__qkv.bias": "bias",
    "in_proj_weight": "weight",
    "in_proj_bias": "bias",
}
"""Keys of fused projections of multi-head layers, such as torch.nn.MultiheadAttention."""

LEGACY_HEAD_KEYS = {
    "q_proj_weight": "W_q.weight",
    "k_proj_weight": "W_k.weight",
    "v_proj_weight": "W_v.weight",
    "out_proj.weight": "W_o.weight",
    "out_proj.bias": "W_o.bias",
    "_Attention__qkv.weight": "qkv.weight",
    "_Attention__qkv.bias": "qkv.bias",
    "_MultiHeadAttention__fc.weight": "W_o.weight",
    "_MultiHeadAttention__fc.bias": "W_o.bias",
    "sinks": "attention.sink.weight",
}
"""The other keys of multi-head layers → anyscore's keys."""

_UNSCALED = "w.weight"
"""The key of the matrix of a bilinear score that has no scale."""


def rename_legacy_keys(state: dict[str, Any], prefix: str, spec: ScoreSpec) -> None:
    """Rename the keys of a state dict under `prefix` to anyscore's, in place, if missing there.

    The sum of the biases of two linear layers becomes one bias. The matrix of a bilinear score
    without a scale is divided by the scale of the layer, so that the scores stay the same.
    """
    sources: dict[str, list[str]] = {}
    for key in [key for key in state if key.startswith(prefix)]:
        legacy = key[len(prefix) :].removeprefix("score.")
        ours = LEGACY_KEYS.get(legacy, legacy)
        if ours.removesuffix(".weight") in spec.names and prefix + ours not in state:
            sources.setdefault(ours, []).append(key)
    for ours, keys in sources.items():
        keys = keys if ours == "bias.weight" else keys[:1]
        first, *rest = (state.pop(key) for key in keys)
        x = sum(rest, first)
        if spec.score is Bilinear and keys[0].endswith(_UNSCALED):
            x = x / spec.scale_of(*x.shape[-2:])
        state[prefix + ours] = x


def rename_legacy_heads(
    state: dict[str, Any],
    prefix: str,
    linears: Mapping[str, tuple[int, int]],
    inner: ScoreSpec | None = None,
) -> None:
    """Rename the keys of a layer with projections to anyscore's, in place; cut fused projections.

    linears: name of a projection → (outputs, inputs). inner: the spec of the inner layer
    `attention`; None if the inner layer renames its keys itself.
    """
    sizes = [linears[name][0] for name in ("W_q", "W_k", "W_v") if name in linears]
    for legacy, kind in FUSED_KEYS.items():
        fused = state.get(prefix + legacy)
        if fused is not None and fused.shape[0] == sum(sizes):
            del state[prefix + legacy]
            cuts = pairwise(accumulate(sizes, initial=0))
            for name, (start, stop) in zip(("W_q", "W_k", "W_v"), cuts, strict=True):
                state[f"{prefix}{name}.{kind}"] = fused[start:stop] * 1  # its own memory
    for legacy, ours in LEGACY_HEAD_KEYS.items():
        if prefix + legacy in state:
            state[prefix + ours] = state.pop(prefix + legacy)
    if inner is not None:
        rename_legacy_keys(state, f"{prefix}attention.", inner)
