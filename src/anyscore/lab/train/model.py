"""What every model of the laboratory can do, and how their parameters are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from anyscore.lab.train.batches import Batch
from anyscore.layers import find_score, has_hidden
from anyscore.torch import Attention


class Model(nn.Module, ABC):
    """A model whose attention layers take any score, from source tokens to target tokens.

    Attributes:
        score: a name that `anyscore.torch.Attention` knows.
    """

    score: str

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Nats per target token of the batch, the ends included."""

    @abstractmethod
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
        """What the model says to each source (B, T_k), of the `lengths` (B,), at most `limit` long.

        Returns:
            For each source its output tokens, with `end` as the last one if the model ends by
            itself; and, when asked, its attention weights (T_q, T_k) on the CPU, a row per token.
        """

    def score_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are the score's own."""
        return {
            f"{path}.{name}": parameter
            for path, module in self.named_modules()
            if isinstance(module, Attention)
            for name, parameter in module.named_parameters()
        }

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that every score has."""
        own = self.score_parameters()
        return {name: x for name, x in self.named_parameters() if name not in own}

    def draw(self) -> None:
        """Draw all parameters anew; from the same seed the shared ones are the same for all scores.

        The scores' come last: what they draw must not move what all share.
        """
        for module in sorted(_drawn(self), key=lambda module: isinstance(module, Attention)):
            module.reset_parameters()


def single_attention(score: str, hidden: int) -> Attention:
    """An attention layer of one head over queries and keys of the width `hidden`."""
    width = hidden if has_hidden(find_score(score)) else None
    return Attention(score, hidden=width, d_q=hidden, d_k=hidden)


def _drawn(module: nn.Module) -> Iterator[Any]:
    """The modules inside that draw their parameters."""
    for child in module.children():
        if hasattr(child, "reset_parameters"):
            yield child
        else:
            yield from _drawn(child)
