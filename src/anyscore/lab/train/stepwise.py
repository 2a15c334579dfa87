"""Models that predict token after token share an interface, and greedy decoding."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from anyscore.lab.data.tokens import BOS, EOS, PAD
from anyscore.lab.train.model import Decoded, Model


class Stepwise(Model):
    """A model that predicts the next token from the tokens so far and its memory."""

    @abstractmethod
    def read_out(self, states: Tensor) -> Tensor:
        """Return the logits (..., V) of the token that follows each of the states (..., ·)."""

    @abstractmethod
    def begin(self, source: Tensor, lengths: Tensor) -> Any:
        """Encode sources (B, T_k) of the lengths (B,); return the memory for `follow`."""

    @abstractmethod
    def follow(self, token: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Read tokens (B, 1); return states (B, 1, ·) and the next memory."""

    @abstractmethod
    def weights(self) -> Tensor:
        """Return the attention weights (B, 1, T_k) of the last call of `follow`."""

    @abstractmethod
    def reorder(self, memory: Any, rows: Tensor) -> Any:
        """Return the memory in the order of `rows` (B,).

        A row's source equals the source of the replaced row.
        """

    def step(self, token: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Read tokens (B, 1); return the next one's log-probabilities (B, V) and the next memory.

        Padding and the start token have probability 0.
        """
        states, memory = self.follow(token, memory)
        logits = self.read_out(states)[:, 0]
        logits[:, [PAD, BOS]] = -torch.inf
        return logits.log_softmax(-1), memory

    @torch.no_grad()
    def greedy(
        self, source: Tensor, lengths: Tensor, *, limit: int, return_weights: bool = False
    ) -> list[Decoded]:
        """Take the likeliest token of each step; see `Model.greedy`."""
        memory = self.begin(source, lengths)
        token = torch.full((len(source), 1), BOS, device=source.device)
        done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        tokens: list[Tensor] = []
        logps: list[Tensor] = []
        weights_by_step: list[Tensor] = []
        for _ in range(limit):
            logp, memory = self.step(token, memory)
            best, token = logp.max(-1, keepdim=True)
            tokens.append(token)
            logps.append(best)
            if return_weights:
                weights_by_step.append(self.weights().cpu())
            done |= token.squeeze(1) == EOS
            if done.all():
                break
        maps = torch.cat(weights_by_step, dim=1) if return_weights else None
        outputs = []
        rows = zip(torch.cat(tokens, 1).tolist(), torch.cat(logps, 1).cpu(), lengths, strict=True)
        for i, (row, nats, length) in enumerate(rows):
            count = row.index(EOS) + 1 if EOS in row else len(row)
            weights = None if maps is None else maps[i, :count, :length]
            outputs.append(Decoded(row[:count], float(nats[:count].sum()), weights))
        return outputs
