"""Models label every token of a sequence, or the sequence as a whole."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from anyscore.lab.data.tokens import UNK
from anyscore.lab.train.batches import Batch
from anyscore.lab.train.gru import read_both_ways, source_encoder
from anyscore.lab.train.model import Decoded, Model, single_attention
from anyscore.lab.train.settings import Settings
from anyscore.torch import Attention


class _Labeller(Model):
    """One attention layer over a GRU each way, and labels read off its output.

    The number of labels is known, so no end is predicted, and the loss has no term for it.
    """

    attention: Attention

    def _build(self, settings: Settings, target_size: int) -> None:
        self.encoder, self.to_keys = source_encoder(settings.hidden)

    @abstractmethod
    def _logits(self, embedded: Tensor, keys: Tensor, lengths: Tensor) -> Tensor:
        """Return logits (B, labels, V) of embeddings and keys (B, T_k, hidden)."""

    @abstractmethod
    def _counts(self, lengths: Tensor) -> list[int]:
        """Return the number of labels of each sequence."""

    def forward(self, source: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of labels of tokens (B, T_k), padded on the right, of lengths (B,)."""
        embedded = self.dropout(self.source_embedding(source))
        keys = self.to_keys(read_both_ways(self.encoder, embedded, lengths.cpu()))
        return self._logits(embedded, keys, lengths.to(source.device))

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss in nats per target token of the batch; ends cost nothing."""
        logits = self(batch.source, batch.lengths)
        ends = batch.targets.shape[1] - 1
        # The last token of a target is its end: the labels are those that another one follows.
        followed = batch.targets[:, 1:] != 0
        labels = batch.targets[:, :ends].masked_fill(~followed, 0)
        total = cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=0, reduction="sum"
        )
        return total / batch.tokens

    @torch.no_grad()
    def greedy(
        self, source: Tensor, lengths: Tensor, *, limit: int, return_weights: bool = False
    ) -> list[Decoded]:
        """Return the likeliest label of each token or sequence; `limit` does not matter."""
        logits = self(source, lengths)
        logits[..., : UNK + 1] = -torch.inf  # special tokens are no labels
        logps, labels = logits.log_softmax(-1).max(-1)
        maps = self.attention.attention_weights if return_weights else None
        outputs = []
        for i, (count, length) in enumerate(zip(self._counts(lengths), lengths, strict=True)):
            weights = None if maps is None else maps[i, :count, :length].cpu()
            numbers = labels[i, :count].tolist()
            outputs.append(Decoded(numbers, float(logps[i, :count].sum()), weights))
        return outputs


class Tagger(_Labeller):
    """One label for each token.

        keys   = W_e [forward GRU; backward GRU](source)         (B, T_k, hidden)
        logits = W_o dropout(tanh(W_c [Attention(keys, keys); embeddings]))

    A label depends on other tokens than its own through the attention alone.
    """

    def _build(self, settings: Settings, target_size: int) -> None:
        super()._build(settings, target_size)
        self.combine = nn.Linear(2 * settings.hidden, settings.hidden)
        self.to_logits = nn.Linear(settings.hidden, target_size)
        self.attention = single_attention(self.score, settings.hidden)

    def _logits(self, embedded: Tensor, keys: Tensor, lengths: Tensor) -> Tensor:
        context = self.attention(keys, keys, valid_lens=lengths)
        combined = torch.tanh(self.combine(torch.cat([context, embedded], dim=-1)))
        logits: Tensor = self.to_logits(self.dropout(combined))
        return logits

    def _counts(self, lengths: Tensor) -> list[int]:
        return [int(length) for length in lengths]


class Classifier(_Labeller):
    """One label for a sequence: a learned query attends to the important tokens.

        keys   = W_e [forward GRU; backward GRU](source)         (B, T_k, hidden)
        logits = W_o dropout(Attention(query, keys))

    Yang et al., "Hierarchical attention networks for document classification", 2016.
    """

    def _build(self, settings: Settings, target_size: int) -> None:
        super()._build(settings, target_size)
        self.query = nn.Embedding(1, settings.hidden)
        self.to_logits = nn.Linear(settings.hidden, target_size)
        self.attention = single_attention(self.score, settings.hidden)

    def _logits(self, embedded: Tensor, keys: Tensor, lengths: Tensor) -> Tensor:
        queries = self.query.weight.expand(len(keys), 1, -1)
        context = self.attention(queries, keys, valid_lens=lengths)
        logits: Tensor = self.to_logits(self.dropout(context))
        return logits

    def _counts(self, lengths: Tensor) -> list[int]:
        return [1] * len(lengths)
