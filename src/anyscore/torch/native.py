"""The call of `torch.nn.MultiheadAttention` in our terms: its masks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyscore.backends.torch_modes import is_compiling
from anyscore.masks import All, Causal, Keep, Keys, Mask


class _NotFused:
    """In the place of a fused weight: PyTorch's modules then call the layer, not their kernels."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return NotImplemented


NOT_FUSED = _NotFused()


def native_mask(
    n_heads: int,
    batch: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> Mask | None:
    """Make one mask of ours of those of such a call, for (batch, n_heads, T_q, T_k); or None.

    key_padding_mask: (batch, T_k), or (T_k,) of unbatched input. attn_mask: (T_q, T_k) or
    (batch · n_heads, T_q, T_k). True = may not attend, or −∞ where others are 0.

    Raises TypeError, ValueError: masks that are neither, or of other shapes.
    """
    masks: list[Mask] = [Causal("start")] if is_causal else []
    if key_padding_mask is not None:
        masks.append(Keys(_allowed(key_padding_mask, "key_padding_mask")))
    if attn_mask is not None:
        keep, shape = _allowed(attn_mask, "attn_mask"), tuple(attn_mask.shape)
        if len(shape) == 3 and shape[0] == batch * n_heads:
            keep = keep.reshape(batch, n_heads, *shape[1:])
        elif len(shape) != 2:
            raise ValueError(
                f"attn_mask has shape {shape}, expected (T_q, T_k) or "
                f"({batch * n_heads}, T_q, T_k), batch · n_heads first."
            )
        masks.append(Keep(keep))
    return All(tuple(masks)) if masks else None


def _allowed(mask: Tensor, name: str) -> Tensor:
    """Give a mask of PyTorch's polarity as booleans, True = may attend."""
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise TypeError(
            f"{name} must be boolean with True = may not attend, or 0 and −inf, got {mask.dtype}."
        )
    allowed = mask == 0
    text = f"{name} holds numbers other than 0 and −inf: position biases are not supported yet."
    fits = (allowed | (mask == -math.inf)).all()
    if is_compiling():
        torch._assert_async(fits, text)
    elif not fits:
        raise ValueError(text)
    return allowed
