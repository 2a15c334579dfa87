"""What every model that translates can do: learn from whole targets, and say its own, step by step.

The models differ in how they make states of source and target; all read tokens off their states.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from anyscore.lab.train.batches import Batch
from anyscore.lab.train.dropout import Dropout
from anyscore.lab.train.model import Model
from anyscore.lab.train.settings import Settings
from anyscore.torch import Attention


class Translator(Model):
    """A sequence-to-sequence model whose attention layers take any score.

    Args:
        score: a name that `anyscore.torch.Attention` knows.
        settings: widths and dropout.
        source_size, target_size: sizes of the vocabularies; token 0 is padding.
    """

    def __init__(
        self, score: str, settings: Settings, *, source_size: int, target_size: int
    ) -> None:
        super().__init__()
        self.score = score
        self.source_embedding = nn.Embedding(source_size, settings.hidden, padding_idx=0)
        self.target_embedding = nn.Embedding(target_size, settings.hidden, padding_idx=0)
        self.dropout = Dropout(settings.dropout)

    @abstractmethod
    def states(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The states (B, T_q, ·) after each token of `target`; arguments as of `forward`."""

    @abstractmethod
    def read_out(self, states: Tensor) -> Tensor:
        """States (..., ·) → logits (..., V) of the token that follows each."""

    @abstractmethod
    def begin(self, source: Tensor, lengths: Tensor) -> Any:
        """What `follow` is given with the first token."""

    @abstractmethod
    def follow(self, token: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Tokens (B, 1) and what is remembered → states (B, 1, ·), what is remembered then."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Where the last call of `follow` looked, (B, 1, T_k)."""

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Teacher forcing: logits (B, T_q, V) of the token that follows each one of `target`.

        Args:
            source: tokens (B, T_k), padded on the right.
            lengths: (B,), each at least 1.
            target: tokens (B, T_q) that begin with the start token.
        """
        return self.read_out(self.states(source, lengths, target))

    def loss(self, batch: Batch) -> Tensor:
        states = self.states(batch.source, batch.lengths, batch.inputs).flatten(0, 1)
        targets = batch.targets.flatten()
        if batch.tokens < len(targets):  # with a large vocabulary the read-out is most of the work
            said = targets.nonzero().squeeze(1)
            states, targets = states.index_select(0, said), targets[said]
        return cross_entropy(self.read_out(states), targets)

    @torch.no_grad()
    def greedy(
        self,
        source: Tensor,
        lengths: Tensor,
        *,
        start: int,
        end: int,
        limit: int,
        return_weights: bool = False,
    ) -> tuple[list[list[int]], list[Tensor]]:
        """The likeliest next token again and again, up to `end` or `limit` tokens.

        Returns:
            For each source its output tokens, with `end` as the last one unless the limit came
            first; and, when asked, its attention weights (T_q, T_k) on the CPU, a row per token.
        """
        memory = self.begin(source, lengths)
        token = torch.full((source.shape[0], 1), start, device=source.device)
        done = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(limit):
            states, memory = self.follow(token, memory)
            logits = self.read_out(states)
            logits[..., 0] = logits[..., start] = -torch.inf  # neither is ever said
            token = logits.argmax(-1)
            tokens.append(token)
            if return_weights:
                rows.append(self.weights().cpu())
            done |= token.squeeze(1) == end
            if done.all():
                break
        outputs = []
        for row in torch.cat(tokens, dim=1).tolist():
            outputs.append(row[: row.index(end) + 1] if end in row else row)
        if not return_weights:
            return outputs, []
        maps = torch.cat(rows, dim=1)
        return outputs, [
            maps[i, : len(output), :length]
            for i, (output, length) in enumerate(zip(outputs, lengths.tolist(), strict=True))
        ]


class OneAttention(Translator):
    """A translator with one attention layer, whose logits are W_o dropout(tanh(W_c states))."""

    combine: nn.Linear
    to_logits: nn.Linear
    attention: Attention

    def read_out(self, states: Tensor) -> Tensor:
        logits: Tensor = self.to_logits(self.dropout(torch.tanh(self.combine(states))))
        return logits

    def weights(self) -> Tensor:
        weights = self.attention.attention_weights
        assert weights is not None  # the layer was just called
        return weights
