"""A Transformer whose every attention layer takes the score."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from anyscore import Causal
from anyscore.lab.train.dropout import Dropout
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translator import Translator
from anyscore.torch import MultiHeadAttention

_WIDER = 4  # the hidden layer between two attention layers


class Memory(NamedTuple):
    """The memory of a Transformer's decoder.

    Attributes:
        source: the encoder's output (B, T_k, hidden).
        lengths: of the sources (B,).
        past: by layer of the decoder, the earlier inputs of its attention to the target (B, t,
            hidden).
    """

    source: Tensor
    lengths: Tensor
    past: list[Tensor]


class Transformer(Translator):
    """An encoder-decoder of attention layers, normalised before each of them (pre-norm).

        x ← x + Attention(norm x)                   encoder: to all of the source
        x ← x + W_2 relu(W_1 norm x)
        y ← y + Attention(norm y)                   decoder: to what comes before in the target
        y ← y + Attention(norm y, x)                and to the source
        y ← y + W_2 relu(W_1 norm y)
        logits = W_o dropout(norm y)

    Positions are encoded by sines and cosines added to the embeddings.

    Vaswani et al., "Attention is all you need", 2017; Xiong et al., "On layer normalization in the
    Transformer architecture", 2020.
    """

    def _build(self, settings: Settings, target_size: int) -> None:
        super()._build(settings, target_size)
        score, hidden = self.score, settings.hidden
        self.encoder = nn.ModuleList(_Encoder(score, settings) for _ in range(settings.layers))
        self.decoder = nn.ModuleList(_Decoder(score, settings) for _ in range(settings.layers))
        self.source_norm, self.norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.to_logits = nn.Linear(hidden, target_size)

    def begin(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode sources (B, T_k) of the lengths (B,); return the first memory."""
        lengths = lengths.to(source.device)
        x = self._placed(self.source_embedding(source), 0)
        for layer in self.encoder:
            x = layer(x, lengths)
        return Memory(self.source_norm(x), lengths, [])

    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the states (B, T_q, hidden) after each token of targets (B, T_q)."""
        return self.follow(target, self.begin(source, lengths))[0]

    def follow(self, token: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Read tokens (B, T_q); return states (B, T_q, hidden) and the next memory.

        Several tokens at once are allowed where none came before.
        """
        before = memory.past[0].shape[1] if memory.past else 0
        y, past = self._placed(self.target_embedding(token), before), []
        for number, layer in enumerate(self.decoder):
            y, read = layer(y, memory, memory.past[number] if memory.past else None)
            past.append(read)
        return y, memory._replace(past=past)

    def reorder(self, memory: Memory, rows: Tensor) -> Memory:
        """Return the memory in the order of `rows` (B,)."""
        return memory._replace(past=[read[rows] for read in memory.past])

    def read_out(self, states: Tensor) -> Tensor:
        """Return the logits (..., V) of the token that follows each of the states."""
        logits: Tensor = self.to_logits(self.dropout(self.norm(states)))
        return logits

    def weights(self) -> Tensor:
        """Return the weights of the last layer (B, T_q, T_k), the mean over its heads."""
        weights = cast(_Decoder, self.decoder[-1]).to_source.attention_weights
        assert weights is not None  # the layer was just called
        return weights.mean(1)

    def _placed(self, embedded: Tensor, before: int) -> Tensor:
        """Add positions to embeddings (B, T, hidden) behind `before` other tokens."""
        positions = _places(before, embedded.shape[1], embedded.shape[2], embedded.device)
        result: Tensor = self.dropout(embedded + positions)
        return result


class _Encoder(nn.Module):
    def __init__(self, score: str, settings: Settings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.hidden)
        self.to_all = _attention(score, settings)
        self.dense = _dense(settings)
        self.dropout = Dropout(settings.dropout)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x + self.dropout(self.to_all(self.norm(x), valid_lens=lengths))
        return x + cast(Tensor, self.dense(x))


class _Decoder(nn.Module):
    def __init__(self, score: str, settings: Settings) -> None:
        super().__init__()
        self.norm, self.source_norm = (nn.LayerNorm(settings.hidden) for _ in range(2))
        self.to_past = _attention(score, settings)
        self.to_source = _attention(score, settings)
        self.dense = _dense(settings)
        self.dropout = Dropout(settings.dropout)

    def forward(self, y: Tensor, memory: Memory, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the new y, and all inputs of the attention to the target so far."""
        queries = self.norm(y)
        read = queries if past is None else torch.cat([past, queries], dim=1)
        # With a past there is one query, which may see all.
        y = y + self.dropout(self.to_past(queries, read, mask=Causal() if past is None else None))
        queries = self.source_norm(y)
        y = y + self.dropout(self.to_source(queries, memory.source, valid_lens=memory.lengths))
        return y + self.dense(y), read


def _attention(score: str, settings: Settings) -> MultiHeadAttention:
    return MultiHeadAttention(
        settings.hidden, settings.heads, kv_heads=settings.kv_heads, score=score
    )


def _dense(settings: Settings) -> nn.Sequential:
    hidden = settings.hidden
    return nn.Sequential(
        nn.LayerNorm(hidden),
        nn.Linear(hidden, _WIDER * hidden),
        nn.ReLU(),
        nn.Linear(_WIDER * hidden, hidden),
        Dropout(settings.dropout),
    )


def _places(before: int, count: int, width: int, device: torch.device) -> Tensor:
    """(count, width): sin(t ω), cos(t ω) with ω from 1 to 1/10,000, for t = before, …"""
    half = (width + 1) // 2
    rates = torch.exp(torch.arange(half, device=device) * (-math.log(10_000) / max(half - 1, 1)))
    angles = torch.arange(before, before + count, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]
