"""Attention before the decoder's GRU: the query is the state before the token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyscore import PreparedKeys
from anyscore.lab.train.gru import first_states
from anyscore.lab.train.model import single_attention
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translator import OneAttention


class Memory(NamedTuple):
    """The memory of a decoder.

    Attributes:
        keys: prepared, of (B, T_k, hidden).
        lengths: of the keys (B,).
        state: of the decoder (B, hidden).
    """

    keys: PreparedKeys
    lengths: Tensor
    state: Tensor


class Bahdanau(OneAttention):
    """A recurrent encoder-decoder that attends before each step of its GRU.

        keys    = W_e [forward GRU; backward GRU](source)        (B, T_k, hidden)
        context = Attention(state, keys)
        state   ← GRU([embedding of the token; context], state)
        logits  = W_o dropout(tanh(W_c [state; context; embedding]))

    The first state is tanh(W_s s), s the backward GRU's state at the source's first token, as in
    the paper. Steps depend on each other through the attention, so training is sequential too.

    Bahdanau et al., "Neural machine translation by jointly learning to align and translate", 2015.
    """

    def _build(self, settings: Settings, target_size: int) -> None:
        super()._build(settings, target_size)
        hidden = settings.hidden
        self.to_state = nn.Linear(self.encoder.hidden_size, hidden)
        self.decoder = nn.GRUCell(2 * hidden, hidden)
        self.combine = nn.Linear(3 * hidden, hidden)
        self.to_logits = nn.Linear(hidden, target_size)
        self.attention = single_attention(self.score, hidden)

    def begin(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode sources (B, T_k) of the lengths (B,); return the first memory."""
        read = self._read(source, lengths)
        state = torch.tanh(self.to_state(first_states(self.encoder, read)))
        keys = self.attention.prepare_keys(self.to_keys(read))
        return Memory(keys, lengths.to(source.device), state)

    def follow(self, token: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Read tokens (B, 1); return states (B, 1, 3 · hidden) and the next memory."""
        return self._follow(self.dropout(self.target_embedding(token)), memory)

    def reorder(self, memory: Memory, rows: Tensor) -> Memory:
        """Return the memory in the order of `rows` (B,)."""
        return memory._replace(state=memory.state[rows])

    def _follow(self, embedded: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        query = memory.state[:, None]
        context = self.attention(query, memory.keys, valid_lens=memory.lengths)
        inputs = torch.cat([embedded, context], dim=-1)
        state = self.decoder(inputs[:, 0], memory.state)
        return torch.cat([state[:, None], inputs], dim=-1), memory._replace(state=state)

    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the states (B, T_q, 3 · hidden) after each token of targets (B, T_q)."""
        memory = self.begin(source, lengths)
        states = []
        for embedded in self.dropout(self.target_embedding(target)).split(1, 1):
            after, memory = self._follow(embedded, memory)
            states.append(after)
        return torch.cat(states, dim=1)
