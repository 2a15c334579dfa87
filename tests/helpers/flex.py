"""PyTorch's own FlexAttention, as mathematics with gradients, and how results are held against it.

`torch.nn.attention.flex_attention` refuses gradients on a CPU. The mathematics of its eager mode
have them.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from anyscore.torch import flex_attention

_eager = importlib.import_module("torch._higher_order_ops.flex_attention").math_attention
Mod = Callable[..., Any]


def eager(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Mod | None = None,
    mask_mod: Mod | None = None, scale: float | None = None, largest: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return PyTorch's output and log-sum-exp, and the largest scores if they are wanted."""
    mask: Any = flex._create_empty_block_mask(query, key)
    if mask_mod is not None:
        b, h, queries, keys = *query.shape[:3], key.shape[2]
        mask = flex.create_block_mask(mask_mod, b, h, queries, keys, device=query.device.type)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    unchanged: Any = flex._identity
    found = _eager(
        query, key, value, score_mod or unchanged, mask.as_tuple(), scale, {"OUTPUT_MAX": largest}
    )
    return found[0], *(x * math.log(2) for x in (found[1:] if largest else found[1:2]))


def ours(*args: Any, **options: Any) -> tuple[tuple[Tensor, Tensor], list[str]]:
    """Return the output and log-sum-exp of anyscore, and its warnings about memory."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = flex_attention(*args, return_lse=True, enable_gqa=True, **options)
    return found, [str(x.message) for x in seen if "in memory" in str(x.message)]


def gradients(found: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of a fixed sum of the output and of finite log-sum-exps."""
    out, lse = found
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in (out, lse))
    total = (out.double() * a).sum() + torch.where(lse.isfinite(), lse.double() * b, 0.0).sum()
    return list(torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True))


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor], what: str = "") -> None:
    """Assert that results are equal up to 1e-11 of the largest entry of each, or of 1."""
    actual, expected = ([x.detach() for x in xs] for xs in (actual, expected))
    for i, (x, y) in enumerate(zip(actual, expected, strict=True)):
        assert x.shape == y.shape, f"{what}: result {i} has shape {x.shape}, expected {y.shape}"
        finite = y.isfinite()
        size = float(torch.where(finite, y, 0.0).abs().amax()) if y.numel() else 0.0
        assert torch.equal(finite, x.isfinite()), f"{what}: result {i}"
        assert torch.equal(x[~finite], y[~finite].to(x.dtype)), f"{what}: result {i}"
        worst = float((x[finite] - y[finite]).abs().amax()) if finite.any() else 0.0
        assert worst <= 1e-11 * max(size, 1.0), f"{what}: result {i} is off by {worst:.3g}"
