"""Attention before the decoder's GRU: the query is the state before the token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyscore import PreparedKeys
from anyscore.lab.train.gru import read_both_ways
from anyscore.lab.train.model import single_attention
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translator import OneAttention


class Memory(NamedTuple):
    """The keys (B, T_k, hidden), their lengths (B,), the decoder's state (B, hidden)."""

    keys: PreparedKeys
    lengths: Tensor
    state: Tensor


class Bahdanau(OneAttention):
    """A recurrent encoder-decoder that looks first and moves then.

        keys    = W_e [forward GRU; backward GRU](source)        (B, T_k, hidden)
        context = Attention(state, keys)
        state   ← GRU([embedding of the token; context], state)
        logits  = W_o dropout(tanh(W_c [state; context; embedding]))

    The first state is tanh(W_s of what the backward GRU has read at the source's first token), as
    in the paper. Steps depend on each other through the attention, so they follow one another in
    training too.

    Bahdanau et al., "Neural machine translation by jointly learning to align and translate", 2015.
    """

    def __init__(
        self, score: str, settings: Settings, *, source_size: int, target_size: int
    ) -> None:
        super().__init__(score, settings, source_size=source_size, target_size=target_size)
        hidden = settings.hidden
        half = (hidden + 1) // 2
        self.encoder = nn.GRU(hidden, half, batch_first=True, bidirectional=True)
        self.to_keys = nn.Linear(2 * half, hidden)
        self.to_state = nn.Linear(half, hidden)
        self.decoder = nn.GRUCell(2 * hidden, hidden)
        self.combine = nn.Linear(3 * hidden, hidden)
        self.to_logits = nn.Linear(hidden, target_size)
        self.attention = single_attention(score, hidden)

    def begin(self, source: Tensor, lengths: Tensor) -> Memory:
        embedded = self.dropout(self.source_embedding(source))
        read = read_both_ways(self.encoder, embedded, lengths.cpu())
        state = torch.tanh(self.to_state(read[:, 0, self.encoder.hidden_size :]))
        keys = self.attention.prepare_keys(self.to_keys(read))
        return Memory(keys, lengths.to(source.device), state)

    def follow(self, token: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        return self._follow(self.dropout(self.target_embedding(token)), memory)

    def reorder(self, memory: Memory, rows: Tensor) -> Memory:
        return memory._replace(state=memory.state[rows])

    def _follow(self, embedded: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        query = memory.state[:, None]
        context = self.attention(query, memory.keys, valid_lens=memory.lengths)
        given = torch.cat([embedded, context], dim=-1)
        state = self.decoder(given[:, 0], memory.state)
        return torch.cat([state[:, None], given], dim=-1), memory._replace(state=state)

    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        memory = self.begin(source, lengths)
        found = []
        for embedded in self.dropout(self.target_embedding(target)).split(1, 1):
            states, memory = self._follow(embedded, memory)
            found.append(states)
        return torch.cat(found, dim=1)
