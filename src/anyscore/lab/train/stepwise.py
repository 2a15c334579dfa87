"""Models that say one token after the other: what they are asked, and the likeliest token first."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from anyscore.lab.data.tokens import BOS, EOS, PAD
from anyscore.lab.train.model import Model, Said


class Stepwise(Model):
    """A model that is given the tokens said so far, and what it remembers, to say the next."""

    @abstractmethod
    def read_out(self, states: Tensor) -> Tensor:
        """States (..., ·) → logits (..., V) of the token that follows each."""

    @abstractmethod
    def begin(self, source: Tensor, lengths: Tensor) -> Any:
        """What `follow` is given with the first token, of sources (B, T_k) of the lengths (B,)."""

    @abstractmethod
    def follow(self, token: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Tokens (B, 1) and what is remembered → states (B, 1, ·), what is remembered then."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Where the last call of `follow` looked, (B, 1, T_k)."""

    @abstractmethod
    def reorder(self, memory: Any, rows: Tensor) -> Any:
        """What is remembered in the rows (B,), each of the same source as the row it replaces."""

    def step(self, token: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Tokens (B, 1) → log-probabilities (B, V) of the next, and what is remembered then.

        Neither padding nor the start is ever said.
        """
        states, memory = self.follow(token, memory)
        logits = self.read_out(states)[:, 0]
        logits[:, [PAD, BOS]] = -torch.inf
        return logits.log_softmax(-1), memory

    @torch.no_grad()
    def greedy(
        self, source: Tensor, lengths: Tensor, *, limit: int, return_weights: bool = False
    ) -> list[Said]:
        memory = self.begin(source, lengths)
        token = torch.full((len(source), 1), BOS, device=source.device)
        done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        tokens: list[Tensor] = []
        likely: list[Tensor] = []
        looked: list[Tensor] = []
        for _ in range(limit):
            found, memory = self.step(token, memory)
            best, token = found.max(-1, keepdim=True)
            tokens.append(token)
            likely.append(best)
            if return_weights:
                looked.append(self.weights().cpu())
            done |= token.squeeze(1) == EOS
            if done.all():
                break
        maps = torch.cat(looked, dim=1) if return_weights else None
        said = []
        rows = zip(torch.cat(tokens, 1).tolist(), torch.cat(likely, 1).cpu(), lengths, strict=True)
        for i, (row, nats, length) in enumerate(rows):
            count = row.index(EOS) + 1 if EOS in row else len(row)
            weights = None if maps is None else maps[i, :count, :length]
            said.append(Said(row[:count], float(nats[:count].sum()), weights))
        return said
