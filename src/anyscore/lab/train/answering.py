"""Asking a model for answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from anyscore.lab.data.encoding import Encoded, Item
from anyscore.lab.data.tokens import BOS, EOS
from anyscore.lab.train.batches import Sequences, in_order
from anyscore.lab.train.model import Model

_TOGETHER = 256  # sources answered side by side


@dataclass(frozen=True)
class Answer:
    """What the model says to one source.

    Attributes:
        tokens: the output, "</s>" excluded; "<unk>" stays.
        complete: whether it ended by itself, with "</s>".
        weights: (rows, T_k), a row per token and one for "</s>"; None if not asked for.
    """

    tokens: tuple[str, ...]
    complete: bool
    weights: Tensor | None = None


def answers(
    model: Model, data: Encoded, items: Sequence[Item], *, return_weights: bool = False
) -> list[Answer]:
    """The model's greedy output for each item, in the order of `items`."""
    model.eval()
    sources = Sequences([item.numbers for item in items], next(model.parameters()).device)
    found: dict[int, Answer] = {}
    for rows in in_order(sources.lengths, _TOGETHER):
        outputs, weights = model.greedy(
            *sources.take(rows),
            start=BOS,
            end=EOS,
            limit=data.limit,
            return_weights=return_weights,
        )
        for place, (i, numbers) in enumerate(zip(rows.tolist(), outputs, strict=True)):
            found[i] = Answer(
                tokens=tuple(data.target_vocabulary.decode(numbers)),
                complete=numbers[-1] == EOS,
                weights=weights[place] if return_weights else None,
            )
    return [found[i] for i in range(len(items))]
