"""The attention function for models of transformers."""

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
"""The name of the attention function, and of the attribute that holds an exchanged score."""

_REFUSED = {
    "cache": "continuous batching",
    "indices": "attention to keys of chosen indices",
    "block_indices": "attention to blocks of chosen indices",
    "sinks": "sinks that are no logits of heads",
}
"""Refused arguments of some models → the computation that they request."""


def register() -> None:
    """Register `attn_implementation="anyscore"` with transformers: attention and its masks.

    Pass `attn_implementation="anyscore"` when you create or load a model, or call
    `model.set_attn_implementation("anyscore")`. The results are those of "eager", with grouped
    heads, windows, softcaps, sinks (`s_aux`), a position bias and dropout, but without a matrix of
    weights. Calls with `output_attentions=True` compute the weights too. The output of a query
    without attended keys, such as padding, is 0; "eager" returns the mean of all values there.

    Registering again changes nothing.

    >>> import torch
    >>> import anyscore.hf
    >>> from transformers import LlamaConfig, LlamaModel
    >>> anyscore.hf.register()
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    >>> config = LlamaConfig(vocab_size=10, **sizes)
    >>> model, tokens = LlamaModel(config).eval(), torch.tensor([[1, 2, 3]])
    >>> eager = model(tokens).last_hidden_state
    >>> model.set_attn_implementation("anyscore")
    >>> torch.allclose(model(tokens).last_hidden_state, eager, atol=1e-5)
    True
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
    """Compute the attention of a module of transformers.

    Args:
        module: the attention module, with its score if exchanged; see `anyscore.hf.use`.
        query: (batch, heads, T_q, d), after position encoding.
        key, value: (batch, kv_heads, T_k, d), where kv_heads divides heads.
        attention_mask: an `IntervalMask`; or booleans, True = may attend; or floats to add to the
            scores, where the lowest number of their dtype is masked.
        scaling: the scale of dot products, by default 1/√d. An exchanged score ignores it.
        dropout: rate p on the weights, if the module is in training.
        softcap: c caps the scores: s → c · tanh(s / c).
        s_aux: (heads,), sinks: one more logit for each head, without a value.
        position_bias: added to the scores after the softcap; broadcasts to
            (batch, heads, T_q, T_k).
        kwargs: is_causal=True masks later keys if there is no mask. output_attentions=True returns
            weights. Others are refused if they change the results, else ignored.

    Returns:
        (output (batch, T_q, heads, d), weights (batch, heads, T_q, T_k) before dropout). Weights
        are None unless requested.

    Raises:
        NotImplementedError: arguments for a computation that anyscore lacks.
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
    """Check if the running model collects weights with hooks, without output_attentions=True."""
    if is_compiling() and not _active_collector.compiling:  # no compiler looks into a `ContextVar`
        return False
    collected = _active_collector.get()  # type: ignore[no-untyped-call]
    return collected is not None and any("attentions" in key for key in collected)


def _mask(mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Any, Tensor | None]:
    """Convert the mask of a model. Return (mask, floats to add to the scores); None without one."""
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
