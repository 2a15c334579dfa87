"""The interface of the laboratory's models, and how their parameters are drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from anyscore.lab.data.tokens import Vocabulary
from anyscore.lab.train.batches import Batch
from anyscore.lab.train.dropout import Dropout
from anyscore.lab.train.settings import Settings
from anyscore.layers.parameters import find_score, has_hidden
from anyscore.torch import Attention


class Decoded(NamedTuple):
    """A model's output to one source.

    Attributes:
        numbers: of the output's tokens, with `EOS` as the last one if the output ended by itself.
        log_probability: of all tokens, in nats.
        weights: attention weights (T_q, T_k) on the CPU, a row for each token; None if not asked
            for.
    """

    numbers: list[int]
    log_probability: float
    weights: Tensor | None = None


class Model(nn.Module, ABC):
    """A model whose attention layers take any score, from source tokens to target tokens.

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
        self.dropout = Dropout(settings.dropout)
        self._build(settings, target_size)

    @abstractmethod
    def _build(self, settings: Settings, target_size: int) -> None:
        """Make the other layers. Their order is that in which `draw` draws parameters."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor:
        """Return the loss in nats per target token of the batch, the ends included."""

    @abstractmethod
    def greedy(
        self, source: Tensor, lengths: Tensor, *, limit: int, return_weights: bool = False
    ) -> list[Decoded]:
        """Predict outputs to sources (B, T_k) of the `lengths` (B,), the likeliest token each time.

        An output that does not end by itself has `limit` tokens.
        """

    def tokens(
        self, numbers: Sequence[int], source: Sequence[str], vocabulary: Vocabulary
    ) -> list[str]:
        """Decode an output to a source; `vocabulary` is that of the targets."""
        return vocabulary.decode(numbers)

    def score_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are the score's own."""
        return {
            f"{path}.{name}": parameter
            for path, module in self.named_modules()
            if isinstance(module, Attention)
            for name, parameter in module.named_parameters()
        }

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that the models of all scores have."""
        excluded = self.score_parameters()
        return {name: x for name, x in self.named_parameters() if name not in excluded}

    def draw(self) -> None:
        """Draw all parameters anew; one seed gives the shared ones the same values for all scores.

        The scores' parameters come last: their draws must not change the shared parameters.
        """
        for module in sorted(_drawn(self), key=lambda module: isinstance(module, Attention)):
            module.reset_parameters()


def single_attention(score: str, hidden: int) -> Attention:
    """Make an attention layer of one head over queries and keys of the width `hidden`."""
    width = hidden if has_hidden(find_score(score)) else None
    return Attention(score, hidden=width, d_q=hidden, d_k=hidden)


def _drawn(module: nn.Module) -> Iterator[Any]:
    """Yield the modules inside that draw their parameters."""
    for child in module.children():
        if hasattr(child, "reset_parameters"):
            yield child
        else:
            yield from _drawn(child)
