"""Convert the masks of a call of `torch.nn.MultiheadAttention` to masks and biases of anyscore."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from anyscore.backends.torch.modes import is_compiling
from anyscore.masks.objects import All, BooleanMask, Causal, Keys, Mask


class _NotFused:
    """A placeholder for a fused weight: PyTorch's modules then call the layer, not a kernel."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return NotImplemented


NOT_FUSED = _NotFused()


def native_masks(
    n_heads: int,
    batch: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> tuple[Mask | None, Tensor | None]:
    """Convert the masks of a call. Return (mask, bias of the floats); None without one.

    key_padding_mask: (batch, T_k), or (T_k,) for unbatched input.
    attn_mask: (T_q, T_k) or (batch · n_heads, T_q, T_k).

    Both are booleans, True = may not attend, or floats to add to the scores, where −∞ is masked.
    The mask and the bias broadcast to (batch, n_heads, T_q, T_k).

    Raises:
        TypeError, ValueError: masks of other dtypes or shapes.
    """
    masks: list[Mask] = [Causal("start")] if is_causal else []
    floats = None
    if key_padding_mask is not None:
        if key_padding_mask.dim() == 1 and batch != 1:
            raise ValueError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}, expected "
                f"({batch}, T_k), the batch first."
            )
        keep, numbers = allowed(key_padding_mask, "key_padding_mask")
        masks.append(Keys(keep))
        floats = numbers if numbers is None or numbers.dim() < 2 else numbers[:, None, None]
    if attn_mask is not None:
        shape = tuple(attn_mask.shape)
        if len(shape) == 3 and shape[0] == batch * n_heads:
            attn_mask = attn_mask.reshape(batch, n_heads, *shape[1:])
        elif len(shape) != 2:
            raise ValueError(
                f"attn_mask has shape {shape}, expected (T_q, T_k) or "
                f"({batch * n_heads}, T_q, T_k), batch · n_heads first."
            )
        keep, numbers = allowed(attn_mask, "attn_mask")
        masks.append(BooleanMask(keep))
        floats = with_floats(numbers, floats)
    return All(tuple(masks)) if masks else None, floats


def with_floats(floats: Tensor | None, bias_after: Any) -> Any:
    """Add the floats of a mask to a bias; return either if the other is None.

    Raises:
        ValueError: neither is None, and the bias is no tensor.
    """
    if floats is None or bias_after is None:
        return bias_after if floats is None else floats
    if not isinstance(bias_after, Tensor):
        raise ValueError(
            "attn_mask and key_padding_mask of floats are a bias_after, which was given too: pass "
            "boolean ones, or another bias as bias=."
        )
    return floats + bias_after


def allowed(mask: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
    """Split a mask of PyTorch. Return (booleans, True = may attend; floats to add, or None).

    Floats are None if the mask holds 0 and −∞ alone. This is not checked under compilation, or if
    the mask needs a gradient.
    """
    if mask.dtype == torch.bool:
        return ~mask, None
    if not mask.is_floating_point():
        raise TypeError(
            f"{name} must be boolean with True = may not attend, or floats, got {mask.dtype}."
        )
    keep = mask != -math.inf
    added = mask.requires_grad or is_compiling() or bool((keep & (mask != 0)).any())
    return keep, mask if added else None
