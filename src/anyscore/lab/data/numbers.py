"""Pairs as token numbers in flat arrays, which processes of trials are sent quickly."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Pair:
    """A source and one of its targets as token numbers; the target ends with EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Ragged:
    """Sequences of token numbers of different lengths, one after the other.

    Attributes:
        tokens: of all sequences, int16: vocabularies and places are fewer.
        lengths: of the sequences (N,), int32.
    """

    tokens: npt.NDArray[Any]
    lengths: npt.NDArray[Any]

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        tokens, lengths = array("h"), array("i")
        for sequence in sequences:
            tokens.extend(sequence)
            lengths.append(len(sequence))
        self.tokens, self.lengths = np.asarray(tokens), np.asarray(lengths)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        start = 0
        for length in self.lengths.tolist():
            yield tuple(self.tokens[start : start + length].tolist())
            start += length


class NumberedPairs:
    """Pairs as two flat arrays, from which `train.batches` takes batches.

    Attributes:
        sources, targets: of the pairs.
    """

    def __init__(self, sources: Iterable[Sequence[int]], targets: Iterable[Sequence[int]]) -> None:
        self.sources, self.targets = Ragged(sources), Ragged(targets)

    def __len__(self) -> int:
        return len(self.sources.lengths)

    def __iter__(self) -> Iterator[Pair]:
        return map(Pair, self.sources, self.targets)
