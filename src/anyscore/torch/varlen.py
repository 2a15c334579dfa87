"""Attention of packed sequences in the layout of `torch.nn.attention.varlen`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyscore.functional.attention import AttentionOutput, attention
from anyscore.masks.objects import Lengths, Window
from anyscore.masks.offsets import check_integer_vector
from anyscore.masks.sequences import Sequences
from anyscore.ops.checks import brief
from anyscore.score import ScaledDot
from anyscore.score.base import Score

_ADVICE = {
    "scale": "pass score=ScaledDot(scale=...)",
    "max_q": "leave out max_q and max_k, the longest lengths",
    "max_k": "leave out max_q and max_k, the longest lengths",
}
"""Refused argument of `torch.nn.attention.varlen.varlen_attn` → advice."""


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any = None,
    *longest: Any,
    window_size: tuple[int, int] = (-1, -1),
    seqused_k: Any = None,
    score: Score | Callable[[Tensor, Tensor], Tensor] = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    **options: Any,
) -> Any:
    """Attention within packed sequences, with any score, for tensors (tokens, heads, width).

    No tensor is copied or padded: heads are a view. Conventions are those of
    `torch.nn.attention.varlen.varlen_attn`, without its arguments max_q and max_k.

    Args:
        query: (T_q, heads, d_q), the tokens of all sequences one after the other.
        key, value: (T_k, kv heads, …), where kv heads divide heads.
        cu_seqlens_q: (sequences + 1,), integers, as for `anyscore.Sequences`.
        cu_seqlens_k: the same for keys. By default None, cu_seqlens_q.
        longest: must be empty: max_q and max_k of PyTorch's function are refused.
        window_size: numbers of keys that a query attends before and after its own position; −1:
            all. (−1, 0) is causal. The last query of a sequence has the position of the last key
            that `seqused_k` leaves. By default (−1, −1).
        seqused_k: (sequences,), integers: each sequence attends its first seqused_k keys alone. By
            default None, all.
        score: as for `anyscore.attention`. Its scale is an argument of the score, as in
            `ScaledDot(scale=…)`.
        mask: further masks, intersected with the sequences, the window and seqused_k.
        options: other options of `anyscore.attention`: dropout, softcap, sink, bias, return_lse,
            ….

    Returns:
        The output (T_q, heads, d_v); `AttentionOutput` if a `return_*` flag is set, with weights
        (heads, T_q, T_k) and the log-sum-exp (heads, T_q).

    Raises:
        TypeError, ValueError: As `anyscore.attention`; or tensors have other axes.

    >>> import torch
    >>> from anyscore.torch import varlen_attention
    >>> x = torch.arange(5.0).reshape(5, 1, 1)                       # lengths of 2 and 3
    >>> varlen_attention(0 * x, 0 * x, x, [0, 2, 5])[:, 0, 0]        # means of each sequence
    tensor([0.5000, 0.5000, 3.0000, 3.0000, 3.0000])
    >>> varlen_attention(0 * x, 0 * x, x, [0, 2, 5], window_size=(-1, 0))[:, 0, 0]
    tensor([0.0000, 0.5000, 2.0000, 2.5000, 3.0000])
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}, expected a PyTorch tensor.")
        if x.dim() != 3:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, expected (tokens, heads, width): for other "
                "layouts use anyscore.attention with mask=Sequences(...)."
            )
    for name, advice in _ADVICE.items():
        if name in options or (longest and name == "max_q"):
            raise TypeError(f"varlen_attention takes no {name}: {advice}.")
    left, right = _window(window_size)
    sequences = Sequences(cu_seqlens_q, cu_seqlens_k)
    window = None if left is right is None else Window(left, right, "end")
    if window and seqused_k is not None:
        window = Window(left, right, offset=_of_last(query, sequences, seqused_k))
    within: Any = sequences if seqused_k is None else sequences & Lengths(seqused_k)
    within = within if window is None else within & window
    within = within if mask is None else within & mask
    views = (x.transpose(0, 1)[None] for x in (query, key, value))
    found = attention(*views, score=score, mask=within, **options)
    if not isinstance(found, AttentionOutput):
        return found[0].transpose(0, 1)
    output, *others = found
    return AttentionOutput(
        output[0].transpose(0, 1), *(None if x is None else x[0] for x in others)
    )


def _of_last(query: Tensor, within: Sequences, used: Any) -> Tensor:
    """Return the position of the first query of each sequence (sequences,).

    The last query has the position of the last used key.

    Raises:
        TypeError, ValueError: used is not (sequences,) integers.
    """

    def numbers(x: Any) -> Tensor:
        return torch.as_tensor(x, device=query.device).long()

    queries = keys = numbers(within.cu_seqlens_q).diff()
    if within.cu_seqlens_k is not None:
        keys = numbers(within.cu_seqlens_k).diff()
    check_integer_vector(used, "seqused_k")
    used = numbers(used)
    if used.shape != keys.shape:
        raise ValueError(
            f"seqused_k has shape {tuple(used.shape)}, expected {tuple(keys.shape)}: one number "
            "for each sequence."
        )
    return torch.minimum(used.clamp(min=0), keys) - queries


def _window(size: Any) -> list[int | None]:
    """Return [left, right] of a window, with None for −1."""
    try:
        left, right = size
    except (TypeError, ValueError):
        raise TypeError(
            f"window_size must be two integers (left, right), −1 for all, got {brief(size)}."
        ) from None
    return [None if width == -1 else width for width in (left, right)]
