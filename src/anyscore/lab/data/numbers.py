"""Pairs as token numbers in flat arrays, in memory or on disk."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from mmap import mmap
from multiprocessing import context, reduction
from typing import IO, Any, overload

import numpy as np
import numpy.typing as npt

from anyscore.lab.data.disk import failures_told, new_file

_TOGETHER = 2**20  # numbers that are written at once


@dataclass(frozen=True)
class Pair:
    """A source and one of its targets as token numbers; the target ends with EOS."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Numbers:
    """Whole numbers of 16 or 32 bits, in memory or in a temporary file.

    Processes of this machine that are started with numbers in a file share the file.

    Args:
        kind: "h" for 16 bits, "i" for 32.
        file: an open temporary file; None holds the numbers in memory.
    """

    def __init__(self, kind: str, file: IO[bytes] | None = None) -> None:
        self._kind, self._file = kind, file
        self._held = array(kind)
        if file is not None:
            weakref.finalize(self, file.close)

    def extend(self, numbers: Iterable[int]) -> None:
        """Append numbers.

        Raises:
            OverflowError: a number needs more bits.
            RunFailure: the disk is full.
        """
        self._held.extend(numbers)
        if self._file is not None and len(self._held) >= _TOGETHER:
            self._write()

    def array(self) -> npt.NDArray[Any]:
        """Return all numbers (N,), int16 or int32; those in a file are read only when used."""
        self._write()
        if self._file is None or not os.fstat(self._file.fileno()).st_size:
            return np.asarray(self._held)
        return np.frombuffer(mmap(self._file.fileno(), 0), self._kind)

    def _write(self) -> None:
        """Write the numbers in memory to the file, if there is one."""
        if self._file is not None and self._held:
            with failures_told():
                self._file.write(self._held.tobytes())
                self._file.flush()
            self._held = array(self._kind)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            return _in_memory, (self._kind, self._held.tobytes())
        context.assert_spawning(self)
        self._write()
        return _in_file, (self._kind, reduction.DupFd(self._file.fileno()))


def _in_memory(kind: str, content: bytes) -> Numbers:
    numbers = Numbers(kind)
    numbers.extend(array(kind, content))
    return numbers


def _in_file(kind: str, descriptor: Any) -> Numbers:
    return Numbers(kind, os.fdopen(descriptor.detach(), "r+b"))


class Ragged:
    """Sequences of token numbers of different lengths, one after the other.

    Attributes:
        tokens: of all sequences, in 16 bits: vocabularies and places are fewer.
        lengths: of the sequences.
        on_disk: whether both lie in temporary files.
    """

    def __init__(self, sequences: Iterable[Sequence[int]] = (), *, on_disk: bool = False) -> None:
        self.on_disk = on_disk
        self.tokens, self.lengths = (
            Numbers(kind, new_file() if on_disk else None) for kind in ("h", "i")
        )
        for sequence in sequences:
            self.append(sequence)

    def append(self, sequence: Sequence[int]) -> None:
        """Add a sequence at the end."""
        self.tokens.extend(sequence)
        self.lengths.extend((len(sequence),))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        tokens, end = self.tokens.array(), 0
        for length in self.lengths.array():
            start, end = end, end + int(length)
            yield tuple(tokens[start:end].tolist())


class NumberedPairs(Sequence[Pair]):
    """Pairs as two flat arrays, from which `train.batches` takes batches.

    Attributes:
        sources, targets: of the pairs.
        on_disk: whether they lie in temporary files.
    """

    def __init__(self, pairs: Iterable[Pair], *, on_disk: bool = False) -> None:
        self.on_disk = on_disk
        self.sources, self.targets = Ragged(on_disk=on_disk), Ragged(on_disk=on_disk)
        for pair in pairs:
            self.sources.append(pair.source)
            self.targets.append(pair.target)

    def __len__(self) -> int:
        return len(self.sources.lengths.array())

    def __iter__(self) -> Iterator[Pair]:
        return map(Pair, self.sources, self.targets)

    @overload
    def __getitem__(self, index: int) -> Pair: ...

    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...

    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        """Return a few pairs; all pairs before them are gone through."""
        indices = range(len(self))[index]
        if isinstance(indices, int):
            return next(islice(self, indices, None))
        return [self[number] for number in indices]
