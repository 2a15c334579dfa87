"""A task's texts as token numbers, ready for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import intern

from anyscore.lab.data.numbers import NumberedPairs
from anyscore.lab.data.options import Unit
from anyscore.lab.data.task import Example, Task
from anyscore.lab.data.tokenisers import Tokeniser, make_tokenisers
from anyscore.lab.data.tokens import EOS, SPECIALS, UNK, Vocabulary, token_noun
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import plural

_MOST_KINDS = 10_000  # of tokens in a vocabulary: the softmax over more would be most of the cost


@dataclass(frozen=True)
class Item:
    """A source to be answered, and every answer that counts as right.

    Attributes:
        source: the tokens of the source.
        numbers: the numbers of these tokens in the source vocabulary.
        references: the right answers as texts.
        answers: the tokens of each right answer.
    """

    source: tuple[str, ...]
    numbers: tuple[int, ...]
    references: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Encoded:
    """A task in numbers. Vocabularies and subwords are made of the training pairs alone.

    Attributes:
        source_tokeniser, target_tokeniser: text to tokens and back, for each side.
        source_vocabulary, target_vocabulary: tokens to numbers and back, for each side.
        train, valid_pairs: every source with each of its targets.
        valid, test: every source once.
        limit: the most tokens of an output.
        too_long: by part, how many examples were left out because a side had too many tokens, or
            none.
        out_of_reach: how many test items no model can answer: each right answer holds a token that
            the training targets lack. With `places`, the source lacks it.
        places: whether targets are numbers of places in their source, as a pointer network's are: 4
            for the first token, 3 (`UNK`) for a token that is not there. The target vocabulary is
            not used then.
    """

    source_tokeniser: Tokeniser
    target_tokeniser: Tokeniser
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    train: NumberedPairs
    valid_pairs: NumberedPairs
    valid: list[Item]
    test: list[Item]
    limit: int
    too_long: dict[str, int]
    out_of_reach: int
    places: bool = False

    @property
    def left_out(self) -> int:
        """The number of examples that were too long."""
        return sum(self.too_long.values())

    @property
    def unit(self) -> Unit:
        """The unit of the targets."""
        return self.target_tokeniser.unit


@dataclass(frozen=True, slots=True)
class _Tokens:
    """An example as tokens."""

    example: Example
    source: tuple[str, ...]
    targets: tuple[tuple[str, ...], ...]

    def fits(self, most: int) -> bool:
        """Return whether each side has 1 to `most` tokens."""
        return all(1 <= len(side) <= most for side in (self.source, *self.targets))


def encode(task: Task, *, places: bool = False) -> Encoded:
    """Tokenise a task, build its vocabularies, and number its tokens.

    Args:
        places: number the tokens of targets by their place in the source.

    Raises:
        InputError: nothing is left to train on or to test.
    """
    source, target = task.tokenisers or make_tokenisers(task.units, task.train)
    parts = {"train": task.train, "valid": task.valid, "test": task.test}
    fitting, too_long = {}, {}
    for name, examples in parts.items():
        tokens = (_tokens(example, source, target) for example in examples)
        fitting[name] = [item for item in tokens if item.fits(task.max_tokens)]
        too_long[name] = len(examples) - len(fitting[name])
    if not all(fitting.values()):
        nouns = dict.fromkeys(map(token_noun, task.units))
        units = " or ".join(noun if task.max_tokens == 1 else plural(noun) for noun in nouns)
        way_out = ", or --unit word" if "character" in task.units else ""
        raise InputError(
            f"nearly every pair has a side of more than {task.max_tokens} {units}, and too few are "
            f"left to train on; give shorter pairs{way_out}"
        )
    # Source tokens seen once become the unknown token, so that the model trains on it before the
    # test.
    source_vocabulary = Vocabulary.build(
        (item.source for item in fitting["train"]), size=_MOST_KINDS, min_count=2
    )
    target_vocabulary = Vocabulary.build(
        (target for item in fitting["train"] for target in item.targets), size=_MOST_KINDS
    )

    def numbered(source: Sequence[str], target: Sequence[str]) -> list[int]:
        return _places(source, target) if places else target_vocabulary.encode(target)

    def pairs(part: str) -> NumberedPairs:
        sides = [(item.source, target) for item in fitting[part] for target in item.targets]
        return NumberedPairs(
            (source_vocabulary.encode(source) for source, _ in sides),
            ([*numbered(*side), EOS] for side in sides),
        )

    def items(part: str) -> list[Item]:
        return [
            Item(
                item.source,
                tuple(source_vocabulary.encode(item.source)),
                item.example.references,
                item.targets,
            )
            for item in fitting[part]
        ]

    train = pairs("train")
    return Encoded(
        source_tokeniser=source,
        target_tokeniser=target,
        source_vocabulary=source_vocabulary,
        target_vocabulary=target_vocabulary,
        train=train,
        valid_pairs=pairs("valid"),
        valid=items("valid"),
        test=items("test"),
        limit=limit_for(int(train.targets.lengths.max()) - 1),  # without the end
        too_long=too_long,
        out_of_reach=sum(
            all(UNK in numbered(item.source, target) for target in item.targets)
            for item in fitting["test"]
        ),
        places=places,
    )


def limit_for(longest: int) -> int:
    """Return the most tokens of an output, where the longest target in training has so many."""
    return longest + longest // 4 + 2


def _places(source: Sequence[str], target: Sequence[str]) -> list[int]:
    """Return the number of the first place in the source of each token of a target."""
    first = {token: place for place, token in reversed(list(enumerate(source, len(SPECIALS))))}
    return [first.get(token, UNK) for token in target]


def _tokens(example: Example, source: Tokeniser, target: Tokeniser) -> _Tokens:
    """Tokenise an example; equal tokens are one string, which takes less memory."""
    return _Tokens(
        example,
        tuple(map(intern, source.tokenise(example.source))),
        tuple(tuple(map(intern, target.tokenise(text))) for text in example.references),
    )
