"""A task's texts as token numbers, ready for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anyscore.lab.batches import Pair
from anyscore.lab.data import Example, Task
from anyscore.lab.errors import InputError
from anyscore.lab.tokens import EOS, Unit, Vocabulary, tokenise

MAX_TOKENS = 100
"""An example with a longer side is left out: attention costs the product of the two lengths."""

_MOST_KINDS = 10_000  # of tokens in a vocabulary: the softmax over more would be most of the cost


@dataclass(frozen=True)
class Item:
    """One source to be answered and every answer that counts as right.

    Attributes:
        source: its tokens; `numbers` are the same in the vocabulary.
        references: the texts as they came.
        answers: the tokens of each.
    """

    source: tuple[str, ...]
    numbers: tuple[int, ...]
    references: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Encoded:
    """A task in numbers. Vocabularies are made of the training pairs alone.

    Attributes:
        train, valid_pairs: every source with each of its targets.
        valid, test: every source once.
        limit: how many tokens an output may have.
        left_out: how many examples had a side of more than `MAX_TOKENS` tokens.
    """

    unit: Unit
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    train: list[Pair]
    valid_pairs: list[Pair]
    valid: list[Item]
    test: list[Item]
    limit: int
    left_out: int


@dataclass(frozen=True)
class _Tokens:
    example: Example
    source: tuple[str, ...]
    targets: tuple[tuple[str, ...], ...]

    @property
    def fits(self) -> bool:
        return all(1 <= len(side) <= MAX_TOKENS for side in (self.source, *self.targets))


def encode(task: Task) -> Encoded:
    """Tokenise, build the vocabularies, number the tokens.

    Raises:
        InputError: when nothing is left to train on or to test.
    """
    parts = []
    left_out = 0
    for examples in (task.train, task.valid, task.test):
        tokens = [_tokens(example, task.unit) for example in examples]
        kept = [item for item in tokens if item.fits]
        left_out += len(tokens) - len(kept)
        parts.append(kept)
    train, valid, test = parts
    if not (train and valid and test):
        way_out = ", or --unit word" if task.unit == "character" else ""
        raise InputError(
            f"nearly every pair has a side of more than {MAX_TOKENS} {task.unit}s, and too few are "
            f"left to train on; give shorter pairs{way_out}"
        )
    # Source tokens seen once stand for the unknown, so that the model has met it before the test.
    source_vocabulary = Vocabulary.build(
        (item.source for item in train), size=_MOST_KINDS, min_count=2
    )
    target_vocabulary = Vocabulary.build(
        (target for item in train for target in item.targets), size=_MOST_KINDS
    )

    def pairs(items: Sequence[_Tokens]) -> list[Pair]:
        return [
            Pair(
                tuple(source_vocabulary.encode(item.source)),
                (*target_vocabulary.encode(target), EOS),
            )
            for item in items
            for target in item.targets
        ]

    def items(part: Sequence[_Tokens]) -> list[Item]:
        return [
            Item(
                item.source,
                tuple(source_vocabulary.encode(item.source)),
                item.example.references,
                item.targets,
            )
            for item in part
        ]

    longest = max(len(target) for item in train for target in item.targets)
    return Encoded(
        unit=task.unit,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        train=pairs(train),
        valid_pairs=pairs(valid),
        valid=items(valid),
        test=items(test),
        limit=longest + longest // 4 + 2,
        left_out=left_out,
    )


def _tokens(example: Example, unit: Unit) -> _Tokens:
    return _Tokens(
        example,
        tuple(tokenise(example.source, unit)),
        tuple(tuple(tokenise(reference, unit)) for reference in example.references),
    )
