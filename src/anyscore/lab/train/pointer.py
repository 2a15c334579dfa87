"""A pointer network: the attention weights are the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyscore import PreparedKeys, attention
from anyscore.lab.data.tokens import EOS, SPECIALS, UNK, Vocabulary
from anyscore.lab.train.batches import Batch
from anyscore.lab.train.gru import first_states, read_both_ways, read_forwards, source_encoder
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.stepwise import Stepwise
from anyscore.layers.parameters import find_score, has_hidden
from anyscore.torch import Attention

PLACES = len(SPECIALS)
"""The number of a source's first token in a target; the numbers of the others follow it."""


class Memory(NamedTuple):
    """The memory of a pointer network's decoder.

    Attributes:
        keys: prepared, of (B, 1 + T_k, hidden).
        lengths: of the keys (B,).
        state: of the decoder (1, B, hidden).
        source: tokens (B, T_k).
        first: for each token of the source, the first place of an equal one (B, T_k).
    """

    keys: PreparedKeys
    lengths: Tensor
    state: Tensor
    source: Tensor
    first: Tensor


class Pointer(Stepwise):
    """A model that outputs tokens of its source, by the attention weights alone.

        keys    = [the end; W_e [forward GRU; backward GRU](source)]    (B, 1 + T_k, hidden)
        queries = GRU(embeddings of the output so far), from tanh(W_s of the backward GRU's end)
        p(token | …) = Σ of Attention's weights over all places where the token stands

    The first key is learned: to look at it is to end. Targets are no numbers of a vocabulary but of
    places (`PLACES`, the first of each token). Attention to any place of a repeated token predicts
    the token. A token that the source vocabulary lacks is predicted like others, except that two
    equal ones are not known to be equal.

    Vinyals et al., "Pointer networks", 2015; the sum is that of Kadlec et al., "Text understanding
    with the attention sum reader network", 2016.
    """

    def _build(self, settings: Settings, target_size: int) -> None:
        hidden = settings.hidden
        self.encoder, self.to_keys = source_encoder(hidden)
        self.end = nn.Embedding(1, hidden)
        self.to_state = nn.Linear(self.encoder.hidden_size, hidden)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        width = hidden if has_hidden(find_score(self.score)) else None
        self.attention = Pointing(self.score, hidden=width, d_q=hidden, d_k=hidden)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean of log Σ exp of all scores − log Σ exp of the scores of right places."""
        source, inputs, targets = batch.source, batch.inputs, batch.targets
        keys, state = self._encode(source, batch.lengths)
        queries, _ = read_forwards(self.decoder, self._embed(inputs, source), state)
        lengths = batch.lengths.to(source.device) + 1
        # The places of padding are beyond those of any target.
        right = (_first(source) + PLACES)[:, None] == targets[..., None]
        right = torch.cat([(targets == EOS)[..., None], right], dim=-1)
        among_all = self.attention.log_sum(queries, keys, valid_lens=lengths)
        among_right = self.attention.log_sum(queries, keys, mask=right)
        predicted = targets != 0
        return (among_all[predicted] - among_right[predicted]).mean()

    def begin(self, source: Tensor, lengths: Tensor) -> Memory:
        """Encode sources (B, T_k) of the lengths (B,); return the first memory."""
        keys, state = self._encode(source, lengths)
        lengths = lengths.to(source.device) + 1
        return Memory(self.attention.prepare_keys(keys), lengths, state, source, _first(source))

    def follow(self, token: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Read tokens (B, 1); return probabilities of all numbers (B, 1, V) and the next memory."""
        embedded = self._embed(token, memory.source)
        queries, state = read_forwards(self.decoder, embedded, memory.state)
        self.attention(queries, memory.keys, valid_lens=memory.lengths)
        weights = self._weights()
        sums = torch.zeros_like(weights[..., 1:])
        sums.scatter_add_(2, memory.first[:, None], weights[..., 1:])
        states = torch.cat([weights.new_zeros(*weights.shape[:-1], PLACES), sums], dim=-1)
        states[..., EOS] = weights[..., 0]
        return states, memory._replace(state=state)

    def read_out(self, states: Tensor) -> Tensor:
        """Return the logarithms of probabilities."""
        return states.log()

    def weights(self) -> Tensor:
        """Return the last step's weights (B, 1, T_k); a row adds up to 1 − the end's weight."""
        return self._weights()[..., 1:]

    def reorder(self, memory: Memory, rows: Tensor) -> Memory:
        """Return the memory in the order of `rows` (B,)."""
        return memory._replace(state=memory.state[:, rows])

    def tokens(
        self, numbers: Sequence[int], source: Sequence[str], vocabulary: Vocabulary
    ) -> list[str]:
        """Return the tokens of the source at the places of an output."""
        return [source[number - PLACES] for number in numbers if number >= PLACES]

    def _encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (B, 1 + T_k, hidden) and the decoder's first state (1, B, hidden)."""
        embedded = self.dropout(self.source_embedding(source))
        read = read_both_ways(self.encoder, embedded, lengths.cpu())
        state = torch.tanh(self.to_state(first_states(self.encoder, read)))
        end = self.end.weight.expand(len(source), 1, -1)
        return torch.cat([end, self.to_keys(read)], dim=1), state[None]

    def _embed(self, numbers: Tensor, source: Tensor) -> Tensor:
        """Embed numbers (B, T_q): specials, and places of tokens of the source (B, T_k)."""
        pointed = source.gather(1, (numbers - PLACES).clamp(min=0))
        tokens = torch.where(numbers < PLACES, numbers, pointed)
        embedded: Tensor = self.dropout(self.source_embedding(tokens))
        return embedded

    def _weights(self) -> Tensor:
        weights = self.attention.attention_weights
        assert weights is not None  # the layer was just called
        return weights


class Pointing(Attention):
    """An attention layer that also returns its log-sum-exp."""

    def log_sum(
        self,
        queries: Tensor,
        keys: Tensor,
        *,
        valid_lens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return log Σ exp of the scores (B, T_q), over the keys that a query may attend to."""
        result = attention(
            queries,
            keys,
            keys.detach()[..., :1],
            score=self._score(queries),
            mask=mask,
            valid_lens=valid_lens,
            return_lse=True,
        )
        lse: Tensor = result.lse
        return lse


def _first(source: Tensor) -> Tensor:
    """Return for each token of (B, T_k) the first place of an equal one; an unknown is its own."""
    place = torch.arange(source.shape[1], device=source.device).expand_as(source)
    shape = len(source), int(source.max()) + 1
    first = torch.full(shape, source.shape[1], device=source.device)
    first.scatter_reduce_(1, source, place, "amin")
    return torch.where(source == UNK, place, first.gather(1, source))
