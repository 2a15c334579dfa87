"""Text to tokens and back without loss, and tokens to numbers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby

from anyscore.lab.data.options import Unit as Unit

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")

GLUE = "\uffed"  # opens a word token that stood right after the one before, with no space
_ESCAPE = "\uffee"  # opens a word token that stood apart but itself begins with GLUE or _ESCAPE
_APOSTROPHES = "'’"

SPACE = "\u2581"  # opens the first subword of a word
_MARKS = re.compile(f"[{SPACE}{_ESCAPE}]")  # get `_ESCAPE` before them where the text has them
_MARKED = re.compile(f"{_ESCAPE}(.)|{SPACE}", re.DOTALL)


def token_noun(unit: str) -> str:
    """Return the noun for a token of a unit."""
    return "piece" if unit == "bpe" else unit


def normalise(text: str) -> str:
    """Return `text` in Unicode NFC, each run of whitespace one space, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def tokenise(text: str, unit: str) -> list[str]:
    """Return the tokens of `normalise(text)`: its characters (code points), its words, ready ones.

    Ready tokens ("token") are divided by spaces; a "label" is the whole text as one token.

    A word is a run of letters, digits and marks of any script. Every punctuation mark or symbol is
    a token; repeated ones, as in "...", are one. An apostrophe inside a word closes its left half:
    "J'ai" is "J'" and "ai". A token without a space before it opens with `GLUE`, so that
    `detokenise` loses nothing.

    Raises:
        ValueError: there is no such unit, or it is "bpe", which must be trained (see `tokenisers`).
    """
    text = normalise(text)
    if unit == "character":
        return list(text)
    if unit == "token":
        return text.split()
    if unit == "label":
        return [text] if text else []
    if unit != "word":
        raise ValueError(f"unit must be character, word, token or label, got {unit!r}")
    tokens = []
    for chunk in text.split(" "):
        for number, piece in enumerate(_pieces(chunk)):
            if number:
                tokens.append(GLUE + piece)
            elif piece[0] in (GLUE, _ESCAPE):
                tokens.append(_ESCAPE + piece)
            else:
                tokens.append(piece)
    return tokens


def detokenise(tokens: Iterable[str], unit: str) -> str:
    """Return the text of tokens: `detokenise(tokenise(text, unit), unit) == normalise(text)`.

    The equation holds for "bpe" as well.

    Raises:
        ValueError: there is no such unit.
    """
    if unit == "character":
        return "".join(tokens)
    if unit in ("token", "label"):
        return " ".join(tokens)
    if unit == "bpe":
        return _unmarked("".join(tokens))
    if unit != "word":
        raise ValueError(f"unit must be character, word, token, bpe or label, got {unit!r}")
    parts: list[str] = []
    for token in tokens:
        glued = token.startswith(GLUE)
        if parts and not glued:
            parts.append(" ")
        parts.append(token[1:] if glued or token.startswith(_ESCAPE) else token)
    return "".join(parts)


def marked(text: str) -> str:
    """Return `normalise(text)` as subwords are made of it: each word opens with `SPACE`."""
    text = _MARKS.sub(rf"{_ESCAPE}\g<0>", normalise(text))
    return "".join(SPACE + word for word in text.split())


def _unmarked(text: str) -> str:
    """Return the text that `marked` was given, in its normal form."""
    plain = _MARKED.sub(lambda match: match[1] or " ", text)
    return plain.removeprefix(" ")


@lru_cache(maxsize=4096)
def _kind(character: str) -> str:
    r"""Return "" for characters inside words; each punctuation mark or symbol is its own kind.

    Not `\\w`: in `re` that leaves out the vowel signs of Hindi or Thai.
    """
    return character if unicodedata.category(character)[0] in "PS" else ""


def _pieces(chunk: str) -> Iterator[str]:
    """Cut `chunk`, which holds no space, into words and punctuation."""
    word = ""
    runs = [(kind, "".join(group)) for kind, group in groupby(chunk, _kind)]
    for number, (kind, run) in enumerate(runs):
        if not kind:
            word = run
        elif word and run in _APOSTROPHES and number + 1 < len(runs) and not runs[number + 1][0]:
            yield word + run
            word = ""
        else:
            if word:
                yield word
            word = ""
            yield run
    if word:
        yield word


class Vocabulary:
    """Tokens numbered from 4 on, after `PAD`, `BOS`, `EOS` and `UNK`.

    A token of the text that happens to be spelt like a special, "<pad>" say, is an ordinary token
    with a number of its own.

    Args:
        tokens: the ordinary tokens in order.

    Raises:
        ValueError: a token comes twice.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = (*SPECIALS, *tokens)
        self._numbers = {token: n for n, token in enumerate(self._tokens) if n >= len(SPECIALS)}
        if len(self._numbers) + len(SPECIALS) != len(self._tokens):
            raise ValueError("a token stands twice in the vocabulary; give each once")

    @classmethod
    def build(
        cls, texts: Iterable[Iterable[str]], *, size: int | None = None, min_count: int = 1
    ) -> Vocabulary:
        """Build the vocabulary of tokenised `texts`, which must be of training data only.

        The more frequent tokens come first, equals in the order of their text: the same texts in
        any order give the same numbers.

        Args:
            texts: sequences of tokens.
            size: the most tokens, the most frequent ones; None keeps all.
            min_count: how often a token must be seen to be kept.
        """
        counts = Counter(token for tokens in texts for token in tokens)
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        return cls([token for token in ranked if counts[token] >= min_count][:size])

    def __len__(self) -> int:
        """Return the count of numbers, specials included."""
        return len(self._tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._tokens == other._tokens

    def __hash__(self) -> int:
        return hash(self._tokens)

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the number of each token; `UNK` for an unknown one. No BOS or EOS is added."""
        return [self._numbers.get(token, UNK) for token in tokens]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Return the tokens of `numbers` up to the first `EOS`, without `PAD` and `BOS`.

        Raises:
            IndexError: a number is not in the vocabulary.
        """
        tokens = []
        for number in numbers:
            if number == EOS:
                break
            if not 0 <= number < len(self._tokens):
                raise IndexError(f"expected numbers 0 to {len(self._tokens) - 1}, got {number}")
            if number not in (PAD, BOS):
                tokens.append(self._tokens[number])
        return tokens

    def to_json(self) -> list[str]:
        """Return the ordinary tokens in order, for a JSON file."""
        return list(self._tokens[len(SPECIALS) :])
