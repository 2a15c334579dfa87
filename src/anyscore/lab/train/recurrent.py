"""A GRU each way over the source, one over the target, and attention after it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyscore import PreparedKeys
from anyscore.lab.train.gru import read_forwards
from anyscore.lab.train.model import single_attention
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translator import OneAttention


class Memory(NamedTuple):
    """The memory of a decoder.

    Attributes:
        keys: prepared, of (B, T_k, hidden).
        lengths: of the keys (B,).
        state: of the decoder (1, B, hidden); None before the first token.
    """

    keys: PreparedKeys
    lengths: Tensor
    state: Tensor | None


class Recurrent(OneAttention):
    """A small sequence-to-sequence model with one attention layer.

        keys    = W_e [forward GRU; backward GRU](source)        (B, T_k, hidden)
        queries = GRU(target so far), from a state of zeros
        logits  = W_o dropout(tanh(W_c [Attention(queries, keys); queries]))

    The decoder sees the source through the attention alone, so that a comparison of scores compares
    scores. The attention comes after the decoder's GRU: in training all steps attend at once, in
    decoding one at a time. Queries and keys have one width, so that every score fits.

    Luong et al., "Effective approaches to attention-based neural machine translation", 2015.
    """

    def _build(self, settings: Settings, target_size: int) -> None:
        super()._build(settings, target_size)
        hidden = settings.hidden
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.to_logits = nn.Linear(hidden, target_size)
        self.attention = single_attention(self.score, hidden)

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Encode source tokens (B, T_k) of the lengths (B,) as keys (B, T_k, hidden)."""
        keys: Tensor = self.to_keys(self._read(source, lengths))
        return keys

    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the states (B, T_q, 2 · hidden) after each token of targets (B, T_q)."""
        keys = self.encode(source, lengths)
        return self._decode(target, None, keys, lengths.to(keys.device))[0]

    def begin(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode sources (B, T_k) of the lengths (B,); return the first memory."""
        keys = self.attention.prepare_keys(self.encode(source, lengths))
        return Memory(keys, lengths.to(source.device), None)

    def follow(self, token: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Read tokens (B, 1); return states (B, 1, 2 · hidden) and the next memory."""
        states, state = self._decode(token, memory.state, memory.keys, memory.lengths)
        return states, memory._replace(state=state)

    def reorder(self, memory: Memory, rows: Tensor) -> Memory:
        """Return the memory in the order of `rows` (B,)."""
        return memory._replace(state=None if memory.state is None else memory.state[:, rows])

    def _decode(
        self, target: Tensor, state: Tensor | None, keys: Tensor | PreparedKeys, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        embedded = self.dropout(self.target_embedding(target))
        queries, state = read_forwards(self.decoder, embedded, state)
        context = self.attention(queries, keys, valid_lens=lengths)
        return torch.cat([context, queries], dim=-1), state
