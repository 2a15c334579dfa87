"""Names that other libraries have in their state dicts for the parameters of our layers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

from anyscore.layers import ScoreSpec
from anyscore.scores import Bilinear

OLD_NAMES = {
    "W_v.weight": "w_v.weight",
    "v.weight": "w_v.weight",
    "w.weight": "W.weight",
    **dict.fromkeys(("w.bias", "W.bias", "W_q.bias", "W_k.bias"), "bias.weight"),  # they add up
}
"""Names in state dicts of *Dive into Deep Learning* and its relatives → ours."""

FUSED = {
    "_MultiHeadAttention__qkv.weight": "weight",
    "_MultiHeadAttention__qkv.bias": "bias",
    "in_proj_weight": "weight",
    "in_proj_bias": "bias",
}
"""Fused projections of other multi-head layers, torch.nn.MultiheadAttention among them."""

OLD_NAMES_OF_HEADS = {
    "q_proj_weight": "W_q.weight",
    "k_proj_weight": "W_k.weight",
    "v_proj_weight": "W_v.weight",
    "out_proj.weight": "W_o.weight",
    "out_proj.bias": "W_o.bias",
    "_Attention__qkv.weight": "qkv.weight",
    "_Attention__qkv.bias": "qkv.bias",
    "_MultiHeadAttention__fc.weight": "W_o.weight",
    "_MultiHeadAttention__fc.bias": "W_o.bias",
}
"""Their other names → ours."""


_UNSCALED = "w.weight"
"""The matrix of a bilinear score that has no scale."""


def rename(state: dict[str, Any], prefix: str, spec: ScoreSpec) -> None:
    """Give the entries of a state dict under `prefix` the names of ours that are missing.

    The biases of two linear layers that are added become one. A matrix of a bilinear score without
    a scale is divided by that of the layer, which then scores as the one it comes from.
    """
    found: dict[str, list[str]] = {}
    for key in [key for key in state if key.startswith(prefix)]:
        old = key[len(prefix) :].removeprefix("score.")
        ours = OLD_NAMES.get(old, old)
        if ours.removesuffix(".weight") in spec.names and prefix + ours not in state:
            found.setdefault(ours, []).append(key)
    for ours, keys in found.items():
        keys = keys if ours == "bias.weight" else keys[:1]
        first, *rest = (state.pop(key) for key in keys)
        x = sum(rest, first)
        if spec.score is Bilinear and keys[0].endswith(_UNSCALED):
            x = x / spec.scale_of(*x.shape[-2:])
        state[prefix + ours] = x


def rename_heads(
    state: dict[str, Any],
    prefix: str,
    linears: Mapping[str, tuple[int, int]],
    inner: ScoreSpec | None = None,
) -> None:
    """Give the entries of a state dict under `prefix` the names of ours; cut fused projections.

    inner: of the layer `attention`, unless that renames its parameters itself.
    """
    sizes = [linears[name][0] for name in ("W_q", "W_k", "W_v") if name in linears]
    for old, kind in FUSED.items():
        fused = state.get(prefix + old)
        if fused is not None and fused.shape[0] == sum(sizes):
            del state[prefix + old]
            cuts = pairwise(accumulate(sizes, initial=0))
            for name, (start, stop) in zip(("W_q", "W_k", "W_v"), cuts, strict=True):
                state[f"{prefix}{name}.{kind}"] = fused[start:stop] * 1  # its own memory
    for old, ours in OLD_NAMES_OF_HEADS.items():
        if prefix + old in state:
            state[prefix + ours] = state.pop(prefix + old)
    if inner is not None:
        rename(state, f"{prefix}attention.", inner)
