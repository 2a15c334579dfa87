"""Models that learn from whole targets and read each token off a state, from a vocabulary.

The models differ in how they make states of source and target.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from anyscore.lab.train.batches import Batch
from anyscore.lab.train.gru import read_both_ways, source_encoder
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.stepwise import Stepwise
from anyscore.torch import Attention


class Translator(Stepwise):
    """A sequence-to-sequence model with embeddings of sources and of targets."""

    def _build(self, settings: Settings, target_size: int) -> None:
        self.target_embedding = nn.Embedding(target_size, settings.hidden, padding_idx=0)

    @abstractmethod
    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the states (B, T_q, ·) after each token of `target`; arguments as of `forward`."""

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Return the logits (B, T_q, V) of the token that follows each one of `target`.

        Args:
            source: tokens (B, T_k), padded on the right.
            lengths: of the sources (B,), each at least 1.
            target: tokens (B, T_q) that begin with the start token.
        """
        return self.read_out(self.states(source, lengths, target))

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss in nats per target token of the batch, with teacher forcing."""
        states = self.states(batch.source, batch.lengths, batch.inputs).flatten(0, 1)
        targets = batch.targets.flatten()
        if batch.tokens < len(targets):  # with a large vocabulary the read-out is most of the work
            predicted = targets.nonzero().squeeze(1)
            states, targets = states.index_select(0, predicted), targets[predicted]
        return cross_entropy(self.read_out(states), targets)


class OneAttention(Translator):
    """A translator with a GRU each way over the source and one attention layer.

    logits = W_o dropout(tanh(W_c states))
    """

    combine: nn.Linear
    to_logits: nn.Linear
    attention: Attention

    def _build(self, settings: Settings, target_size: int) -> None:
        super()._build(settings, target_size)
        self.encoder, self.to_keys = source_encoder(settings.hidden)

    def _read(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the states of the encoder, both ways, over sources (B, T_k) of lengths (B,)."""
        embedded = self.dropout(self.source_embedding(source))
        return read_both_ways(self.encoder, embedded, lengths.cpu())

    def read_out(self, states: Tensor) -> Tensor:
        """Return the logits (..., V) of the token that follows each of the states."""
        logits: Tensor = self.to_logits(self.dropout(torch.tanh(self.combine(states))))
        return logits

    def weights(self) -> Tensor:
        """Return the attention weights (B, T_q, T_k) of the last call."""
        weights = self.attention.attention_weights
        assert weights is not None  # the layer was just called
        return weights
