"""A GRU each way over the source, one over the target, and attention after it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyscore import PreparedKeys
from anyscore.lab.train.gru import read_both_ways, read_forwards
from anyscore.lab.train.model import single_attention
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translator import OneAttention


class Memory(NamedTuple):
    """The keys (B, T_k, hidden), their lengths (B,), the decoder's state (1, B, hidden)."""

    keys: PreparedKeys
    lengths: Tensor
    state: Tensor | None


class Recurrent(OneAttention):
    """A small sequence-to-sequence model with one attention layer.

        keys    = W_e [forward GRU; backward GRU](source)        (B, T_k, hidden)
        queries = GRU(target so far), from a state of zeros
        logits  = W_o dropout(tanh(W_c [Attention(queries, keys); queries]))

    What the decoder knows of the source comes through the attention alone, so that a comparison of
    scores compares them. The attention stands after the decoder's GRU, so in training all steps
    attend at once, and in decoding one at a time. Queries and keys have one width, so that every
    score fits.

    Luong et al., "Effective approaches to attention-based neural machine translation", 2015.
    """

    def __init__(
        self, score: str, settings: Settings, *, source_size: int, target_size: int
    ) -> None:
        super().__init__(score, settings, source_size=source_size, target_size=target_size)
        hidden = settings.hidden
        half = (hidden + 1) // 2
        self.encoder = nn.GRU(hidden, half, batch_first=True, bidirectional=True)
        self.to_keys = nn.Linear(2 * half, hidden)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.to_logits = nn.Linear(hidden, target_size)
        self.attention = single_attention(score, hidden)

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Source tokens (B, T_k) and their lengths (B,) → keys (B, T_k, hidden)."""
        embedded = self.dropout(self.source_embedding(source))
        keys: Tensor = self.to_keys(read_both_ways(self.encoder, embedded, lengths.cpu()))
        return keys

    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        keys = self.encode(source, lengths)
        return self._decode(target, None, keys, lengths.to(keys.device))[0]

    def begin(self, source: Tensor, lengths: Tensor) -> Memory:
        keys = self.attention.prepare_keys(self.encode(source, lengths))
        return Memory(keys, lengths.to(source.device), None)

    def follow(self, token: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        states, state = self._decode(token, memory.state, memory.keys, memory.lengths)
        return states, memory._replace(state=state)

    def reorder(self, memory: Memory, rows: Tensor) -> Memory:
        return memory._replace(state=None if memory.state is None else memory.state[:, rows])

    def _decode(
        self, target: Tensor, state: Tensor | None, keys: Tensor | PreparedKeys, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        embedded = self.dropout(self.target_embedding(target))
        queries, state = read_forwards(self.decoder, embedded, state)
        context = self.attention(queries, keys, valid_lens=lengths)
        return torch.cat([context, queries], dim=-1), state
