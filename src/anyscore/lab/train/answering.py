"""Answers of a trained model to sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from anyscore.lab.data.encoding import Item
from anyscore.lab.data.tokens import EOS, Vocabulary
from anyscore.lab.train.batches import Sequences, in_order
from anyscore.lab.train.beam import beam_search
from anyscore.lab.train.model import Model
from anyscore.lab.train.stepwise import Stepwise

_TOGETHER = 256  # outputs that grow side by side


class Known(Protocol):
    """The facts that reading a model's answers takes: of the data, or of a run that was kept."""

    @property
    def limit(self) -> int:
        """The most tokens of an output."""

    @property
    def target_vocabulary(self) -> Vocabulary:
        """The vocabulary of the targets."""


@dataclass(frozen=True)
class Answer:
    """A model's answer to one source.

    Attributes:
        tokens: the output, without "</s>"; "<unk>" stays.
        complete: whether the output ended by itself, with "</s>".
        log_probability: of the tokens, "</s>" included, in nats.
        weights: attention weights (rows, T_k), a row per token and one for "</s>"; None if not
            asked for.
    """

    tokens: tuple[str, ...]
    complete: bool
    log_probability: float
    weights: Tensor | None = None


def answers(
    model: Model,
    known: Known,
    items: Sequence[Item],
    *,
    beam: int = 1,
    return_weights: bool = False,
) -> list[Answer]:
    """Answer each item; return the answers in the order of `items`.

    Args:
        model: is put in evaluation mode.
        known: vocabulary of the targets and limit of an output.
        beam: how many outputs are followed side by side (see `beam`); with 1, or a model of labels,
            the likeliest token is taken each time.
        return_weights: whether answers have attention weights.
    """
    model.eval()
    sources = Sequences([item.numbers for item in items], next(model.parameters()).device)
    by_item: dict[int, Answer] = {}
    for rows in in_order(sources.lengths, max(1, _TOGETHER // beam)):
        source, lengths = sources.take(rows)
        if beam > 1 and isinstance(model, Stepwise):
            decoded = beam_search(
                model, source, lengths, width=beam, limit=known.limit, return_weights=return_weights
            )
        else:
            decoded = model.greedy(
                source, lengths, limit=known.limit, return_weights=return_weights
            )
        for i, (numbers, nats, weights) in zip(rows.tolist(), decoded, strict=True):
            by_item[i] = Answer(
                tuple(model.tokens(numbers, items[i].source, known.target_vocabulary)),
                numbers[-1] == EOS,
                nats,
                weights,
            )
    return [by_item[i] for i in range(len(items))]
