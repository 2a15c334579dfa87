"""Attention layers in plain PyTorch, by formulas, with the parameter names of tutorials.

These layers share no code with the package, which must reproduce their state dicts and outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def softmax_of_first(scores: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Return weights (B, T_q, T_k) of the first keys alone; valid_lens (B,) or (B, T_q), ≥ 1."""
    if valid_lens is None:
        return scores.softmax(-1)
    lengths = valid_lens[:, None] if valid_lens.dim() == 1 else valid_lens
    beyond = torch.arange(scores.shape[-1]) >= lengths[..., None]
    return scores.masked_fill(beyond, -math.inf).softmax(-1)


def causal(queries: int, keys: int) -> Tensor:
    """Return True (T_q, T_k) for each key that is not after its query."""
    return torch.ones(queries, keys, dtype=torch.bool).tril()


class PlainAdditive(nn.Module):
    """w · tanh(W_q q + W_k k); `last` is the name of w."""

    def __init__(self, d_q: int, d_k: int, hidden: int, last: str = "w_v") -> None:
        super().__init__()
        self.W_k = nn.Linear(d_k, hidden, bias=False)
        self.W_q = nn.Linear(d_q, hidden, bias=False)
        self.add_module(last, nn.Linear(hidden, 1, bias=False))
        self.last = last

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None
    ) -> Tensor:
        rows = []
        for query in self.W_q(queries).unbind(1):
            features = torch.tanh(query[:, None] + self.W_k(keys))
            rows.append(self.get_submodule(self.last)(features)[..., 0])
        return softmax_of_first(torch.stack(rows, dim=1), valid_lens) @ values


class BilinearScore(nn.Module):
    """s W h, with W the weight of a linear layer."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Linear(d, d, bias=False)

    def forward(self, s: Tensor, h: Tensor) -> Tensor:
        return torch.einsum("bld,de,bte->blt", s, self.w.weight, h)


class ConcatScore(nn.Module):
    """v · tanh(W [s; h] + bias)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Linear(2 * d, d)
        self.v = nn.Linear(d, 1, bias=False)

    def forward(self, s: Tensor, h: Tensor) -> Tensor:
        pairs = [
            [self.v(torch.tanh(self.w(torch.cat([one, other], dim=-1)))) for other in h.unbind(1)]
            for one in s.unbind(1)
        ]
        return torch.stack([torch.cat(row, dim=-1) for row in pairs], dim=1)


class Container(nn.Module):
    """Context of decoder states s over encoder states h; `padding` is True in padding."""

    def __init__(self, score: nn.Module) -> None:
        super().__init__()
        self.score = score

    def forward(self, s: Tensor, h: Tensor, padding: Tensor | None = None) -> Tensor:
        scores = self.score(s, h)
        if padding is not None:
            scores = scores.masked_fill(padding, -math.inf)
        return scores.softmax(-1) @ h


class FusedAttention(nn.Module):
    """Causal self-attention with one projection to queries, keys (d_k) and values (d)."""

    def __init__(self, d: int, d_k: int) -> None:
        super().__init__()
        self.widths = [d_k, d_k, d]
        self._Attention__qkv = nn.Linear(d, sum(self.widths))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._Attention__qkv(x).split(self.widths, dim=-1)
        return scaled_dot(q, k, v, causal(x.shape[1], x.shape[1]))


class FusedMultiHead(nn.Module):
    """Causal self-attention, head after head: head h has channels [h·n, (h+1)·n)."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self._MultiHeadAttention__qkv = nn.Linear(d, 3 * d)
        self._MultiHeadAttention__fc = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._MultiHeadAttention__qkv(x).chunk(3, dim=-1)
        keep = causal(x.shape[1], x.shape[1])
        outputs = [
            scaled_dot(*one, keep)
            for one in zip(*(y.chunk(self.heads, dim=-1) for y in (q, k, v)), strict=True)
        ]
        return self._MultiHeadAttention__fc(torch.cat(outputs, dim=-1))


def scaled_dot(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    """Return softmax(q kᵀ / √d) v of (B, T, d), over the kept keys."""
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    return scores.softmax(-1) @ v


def scrambled(x: Tensor, heads: int) -> Tensor:
    """Return (B, T, H·d) *reshaped* to (B, H, T, d): this mistake mixes tokens with heads."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).reshape(x.shape[0], heads, x.shape[1], -1)


def rows(x: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)
