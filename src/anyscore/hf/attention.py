"""The attention of models of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.utils.output_capturing import _active_collector

from anyscore.backends.torch.modes import is_compiling
from anyscore.functional.attention import attention
from anyscore.hf.interval_mask import IntervalMask
from anyscore.hf.masks import interval_mask, wrong_shape
from anyscore.masks.objects import Causal
from anyscore.score import ScaledDot
from anyscore.torch.torch_mha import allowed

NAME = "anyscore"
"""What `attn_implementation` is called, and the attribute of a module whose score is exchanged."""

_REFUSED = {
    "cache": "continuous batching",
    "indices": "attention to keys of chosen indices",
    "block_indices": "attention to blocks of chosen indices",
    "sinks": "sinks that are no logits of heads",
}
"""Arguments of some models that change what is computed, and what they ask for."""


def register() -> None:
    """Register `attn_implementation="anyscore"` with transformers: attention and its masks.

    A model attends by it if it is made or loaded so, or after
    `model.set_attn_implementation("anyscore")`. It computes what `eager` does, for grouped heads,
    windows, caps, sinks (`s_aux`), a position bias and dropout, without a matrix of weights; the
    weights are made if a call says `output_attentions=True`. Rows that may attend to nothing, as
    those of padding, give 0, where `eager` gives a mean of all values.

    Registering again changes nothing.
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, interval_mask)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend as a module of transformers asks for it.

    Args:
        module: the attention module; its score if that was exchanged, see `anyscore.hf.use`.
        query: (batch, heads, T_q, d), positions and all applied.
        key, value: (batch, kv_heads, T_k, d), where kv_heads divides heads.
        attention_mask: what the mask function gave; or booleans, True = may attend, or floats that
            are added to the scores, of which those at the least of their dtype are masked.
        scaling: of the dot products, by default 1/√d; another score has its own.
        dropout: rate on the weights, while the module is in training.
        softcap: c caps the scores, s → c · tanh(s / c).
        s_aux: (heads,) logits, one more for each head, which takes weight and gives no value.
        position_bias: added to the scores, after the cap; broadcasts to (batch, heads, T_q, T_k).
        kwargs: is_causal=True masks later keys where there is no mask; output_attentions=True asks
            for weights; others do not change what is computed, or are refused.

    Returns:
        The output (batch, T_q, heads, d), and the weights (batch, heads, T_q, T_k) before dropout,
        or None if they were not asked for.

    Raises:
        NotImplementedError: arguments that ask for what this attention has not.
        TypeError, ValueError: a mask of integers, or of another shape.
    """
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f'attn_implementation="{NAME}" has no {what} ({name}=), which '
                f'{type(module).__name__} asks for: use attn_implementation="eager".'
            )
    mask, added = _mask(attention_mask, query, key)
    if mask is None and added is None and kwargs.get("is_causal") and query.shape[-2] > 1:
        mask = Causal("start")
    if position_bias is not None:
        added = position_bias if added is None else position_bias + added
    wanted = kwargs.get("output_attentions")
    if wanted is None:
        wanted = getattr(getattr(module, "config", None), "output_attentions", False)
    wanted = wanted or _are_collected()
    options: dict[str, Any] = {
        "mask": mask,
        "dropout": float(dropout) if module.training else 0.0,
        "softcap": float(softcap or 0.0),
        "sink": s_aux,
        "return_weights": bool(wanted),
    }
    if added is not None:
        options["bias_after" if options["softcap"] else "bias"] = added
    exchanged = module._modules.get(NAME)
    if exchanged is None:
        result = attention(query, key, value, score=ScaledDot(scaling), **options)
    else:
        result = exchanged(query, key, value, **options)
    output, weights = result[:2] if wanted else (result, None)
    return output.transpose(1, 2).contiguous(), weights


def _are_collected() -> bool:
    """Check if a model that runs collects weights, by hooks that do not tell its layers."""
    if is_compiling() and not _active_collector.compiling:  # no compiler looks into a `ContextVar`
        return False
    collected = _active_collector.get()  # type: ignore[no-untyped-call]
    return collected is not None and any("attentions" in key for key in collected)


def _mask(mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Any, Tensor | None]:
    """Make a mask of ours of that of a model, and what its floats add to the scores."""
    if isinstance(mask, IntervalMask):
        fits = mask.shape[-2:] == (query.shape[-2], key.shape[-2])
        mask = mask.mask if fits else mask.numbers()
        if not isinstance(mask, Tensor):
            return mask, None
    if mask is None:
        return None, None
    shape = *query.shape[:-1], key.shape[-2]
    if mask.dim() > len(shape) or any(
        n not in (1, m) for n, m in zip(reversed(mask.shape), reversed(shape), strict=False)
    ):
        raise ValueError(wrong_shape(mask, shape[0], shape[-2], shape[-1]))
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise TypeError(
            f"attention_mask is {mask.dtype}, expected booleans, True = may attend, or floats."
        )
    least = torch.finfo(mask.dtype).min
    return allowed(mask.masked_fill(mask <= least, -torch.inf), "attention_mask")
