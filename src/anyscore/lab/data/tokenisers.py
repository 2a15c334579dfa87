"""Tokenisers turn a side's texts into tokens and back, and survive JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from anyscore.lab.data.options import DataOptions, Unit
from anyscore.lab.data.pairs import Example
from anyscore.lab.data.tokens import SPACE, detokenise, marked, tokenise
from anyscore.lab.errors import InputError
from anyscore.lab.extras import check_installed

LEARNT_FROM = 10**7
"""Subwords are made of so many first characters of a side's texts."""

_UNKNOWN = "\0"  # a character that no text holds


class Tokeniser:
    """Text to tokens and back by a rule alone: characters, words, ready tokens, labels.

    Attributes:
        unit: the unit of a token.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit: Unit = unit

    def tokenise(self, text: str) -> list[str]:
        """Return the tokens of `normalise(text)` (see `tokens.tokenise`)."""
        return tokenise(text, self.unit)

    def detokenise(self, tokens: Iterable[str]) -> str:
        """Return the text of tokens: `detokenise(tokenise(text)) == normalise(text)`."""
        return detokenise(tokens, self.unit)

    def to_json(self) -> dict[str, Any]:
        """Return plain data from which `tokeniser_from_json` makes an equal tokeniser."""
        return {"unit": self.unit}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokeniser) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.unit)


class Subwords(Tokeniser):
    """Byte-pair encoding: characters joined into the pieces that recur in the training data.

    Words (what spaces divide) are cut at punctuation before pieces are joined. A character that
    training did not have is a token of its own, so that nothing is lost.

    Args:
        state: as the package tokenizers writes it.

    Raises:
        InputError: the state is damaged.
    """

    def __init__(self, state: object) -> None:
        super().__init__("bpe")
        self._state = state
        try:
            self._tokenizer = _package().Tokenizer.from_str(json.dumps(state))
        except InputError:
            raise
        except Exception as error:  # the package raises Exception itself
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"the subwords cannot be read ({reason}); the run folder is damaged: train again"
            ) from None

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> Subwords:
        """Learn `size` pieces, single characters among them, from texts.

        The same texts give the same pieces. Texts beyond the first `LEARNT_FROM` characters are not
        read: pieces that recur have come by then, and counting more of them takes memory.
        """
        package = _package()
        tokenizer = package.Tokenizer(package.models.BPE(unk_token=_UNKNOWN))
        split = package.pre_tokenizers
        tokenizer.pre_tokenizer = split.Sequence(
            [split.Split(SPACE, "merged_with_next"), split.Punctuation("isolated")]
        )
        trainer = package.trainers.BpeTrainer(
            vocab_size=size, show_progress=False, special_tokens=[_UNKNOWN]
        )
        tokenizer.train_from_iterator((marked(text) for text in _first(texts)), trainer)
        return cls(json.loads(tokenizer.to_str()))

    def tokenise(self, text: str) -> list[str]:
        """Return the pieces of `normalise(text)`."""
        text = marked(text)
        # By place, so that an unknown character is itself.
        return [text[start:stop] for start, stop in self._tokenizer.encode(text).offsets]

    def to_json(self) -> dict[str, Any]:
        """Return plain data from which `tokeniser_from_json` makes an equal tokeniser."""
        return {"unit": "bpe", "tokenizer": self._state}


def make_tokenisers(
    units: tuple[Unit, Unit], train: Sequence[Example], subwords: int = DataOptions.subwords
) -> tuple[Tokeniser, Tokeniser]:
    """Make the tokenisers of sources and targets.

    Args:
        units: of sources and targets.
        train: the training examples; read for "bpe" only.
        subwords: how many kinds of token "bpe" may have.
    """
    sides = (e.source for e in train), (r for e in train for r in e.references)
    source, target = (
        Subwords.train(texts, subwords) if unit == "bpe" else Tokeniser(unit)
        for unit, texts in zip(units, sides, strict=True)
    )
    return source, target


def tokeniser_from_json(value: object) -> Tokeniser:
    """Make the tokeniser that `to_json` wrote.

    Raises:
        InputError: `value` is damaged.
    """
    name = value.get("unit") if isinstance(value, dict) else None
    for unit in get_args(Unit):
        if name == unit and isinstance(value, dict):
            return Subwords(value.get("tokenizer")) if unit == "bpe" else Tokeniser(unit)
    raise InputError(
        f"expected a tokeniser of the unit {', '.join(get_args(Unit))}, found {name!r}; "
        "the run folder is damaged: train again"
    )


def check_subwords() -> None:
    """Raise InputError if the package that makes subwords is missing."""
    otherwise = ", or choose another unit"
    check_installed("tokenizers", "the unit bpe", extra="lab", otherwise=otherwise)


def _first(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts until `LEARNT_FROM` characters were read."""
    read = 0
    for text in texts:
        yield text
        read += len(text)
        if read >= LEARNT_FROM:
            return


def _package() -> Any:
    """Import the package tokenizers."""
    check_subwords()
    # Its threads gain nothing here, and a process that forks after using them complains.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers

    return tokenizers
