"""Sequences of different lengths: anyscore's without padding, and others with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anyscore import Sequences, attention
from anyscore.lab.bench.rivals import Call, Variant
from anyscore.lab.bench.work import Work


def anyscore_(work: Any) -> list[Variant]:
    """List our function on packed tokens."""
    ours = partial(attention, mask=Sequences(work.offsets))
    return [Variant("anyscore.attention, mask=Sequences", partial(_build, ours, work))]


def padded(work: Any) -> list[Variant]:
    """List our function on padded sequences."""
    ours = partial(attention, valid_lens=work.sizes)
    how = "anyscore.attention, padded, with valid_lens"
    return [Variant(how, partial(_build, ours, work, work.padded))]


def dot(work: Any) -> list[Variant]:
    """List PyTorch's fused dot product on padded sequences."""
    mask = work.is_token[:, None, None]

    def attend(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        q, k, v = (x[:, None] for x in (query, key, value))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]

    how = "scaled_dot_product_attention, 4-D, padded, with a mask"
    return [Variant(how, partial(_build, attend, work, work.padded, False))]


def _build(
    attend: Callable[..., Tensor],
    work: Work,
    laid_out: Callable[[Tensor], Tensor] = lambda x: x,
    scored: bool = True,
) -> Call:
    """Make a call on tokens that are laid out before. scored: whether the score is that of work."""
    tensors = [laid_out(x) for x in (work.query, work.key, work.value)]
    is_learned = scored and work.formula.learned
    tensors += [work.weight] if is_learned else []
    given = [x.detach().requires_grad_(work.training) for x in tensors]
    upstream = laid_out(work.upstream)

    def call() -> Sequence[Tensor]:
        weight = given[3] if is_learned else work.weight
        output = attend(*given[:3], score=work.formula.score(weight))
        if not work.training:
            return (output,)
        return (output.detach(), *torch.autograd.grad(output, given, upstream))

    return call
