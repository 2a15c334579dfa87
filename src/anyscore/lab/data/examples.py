"""Examples in a list, or in a temporary database where memory does not hold them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import overload

from anyscore.lab.data.disk import Database

_END = "\n"  # no text of a pair holds one
_MOST = 2**62  # that SQLite can count to


@dataclass(frozen=True, slots=True)
class Example:
    """A source and every target it was seen with, in the order seen.

    In training each reference makes a pair of its own; in testing any of them is right.
    """

    source: str
    references: tuple[str, ...]


class StoredExamples(Sequence[Example]):
    """Examples on disk. A slice is a view of a part, and copies nothing."""

    def __init__(self, database: Database, numbers: range) -> None:
        self._database, self._numbers = database, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> StoredExamples: ...

    def __getitem__(self, index: int | slice) -> Example | StoredExamples:
        chosen = self._numbers[index]
        if isinstance(chosen, range):
            return StoredExamples(self._database, chosen)
        return next(iter(StoredExamples(self._database, range(chosen, chosen + 1))))

    def __iter__(self) -> Iterator[Example]:
        if self._numbers.step != 1:
            yield from (self[i] for i in range(len(self)))
            return
        rows = self._database.rows(
            "SELECT source, targets FROM examples WHERE ? <= number AND number < ? ORDER BY number",
            self._numbers.start,
            self._numbers.stop,
        )
        for source, targets in rows:
            yield Example(source, tuple(targets.split(_END)))

    def ordered(self, order: Sequence[int]) -> StoredExamples:
        """Put all examples into the order of these numbers, for good."""
        places = array("q", order)
        for place, number in enumerate(order):
            places[number] = place
        self._database.function("place", places.__getitem__)
        self._database.do("ALTER TABLE examples RENAME TO before")
        _number(self._database, "before ORDER BY place(number - 1)")
        self._database.do("DROP TABLE before")
        return self


def shuffled(examples: Sequence[Example], seed: int) -> Sequence[Example]:
    """Return the examples in an order drawn from `seed`, the same in memory and on disk."""
    order = array("q", range(len(examples)))
    random.Random(seed).shuffle(order)
    if isinstance(examples, StoredExamples):
        return examples.ordered(order)
    return [examples[number] for number in order]


def store(
    pairs: Iterable[tuple[str, str, int, bytes]], limit: int | None
) -> tuple[StoredExamples, int]:
    """Gather pairs on disk as examples, one for each source.

    Args:
        pairs: source, target, how often the pair came, checksum of the source.
        limit: keep so many sources, those of the least checksums; None keeps all.

    Returns:
        The examples in the order first seen, and the number of pairs that were repeated.
    """
    database = Database()
    database.do("CREATE TABLE pairs (source TEXT, target TEXT, times INTEGER, checksum BLOB)")
    database.add("INSERT INTO pairs VALUES (?, ?, ?, ?)", pairs)
    # SQLite sorts outside memory, so equal sources need never have been near each other.
    database.do(
        "CREATE TABLE grouped"
        " (seen INTEGER, source TEXT, checksum BLOB, targets TEXT, repeated INTEGER)"
    )
    rows = database.rows(
        "SELECT rowid, source, checksum, target, times FROM pairs ORDER BY source, rowid"
    )
    database.add(
        "INSERT INTO grouped VALUES (?, ?, ?, ?, ?)",
        (_joined(same) for _, same in groupby(rows, itemgetter(1))),
    )
    database.do("DROP TABLE pairs")
    if limit is not None:
        database.do(
            "DELETE FROM grouped WHERE rowid NOT IN "
            "(SELECT rowid FROM grouped ORDER BY checksum, source DESC LIMIT ?)",
            min(limit, _MOST),
        )
    _number(database, "grouped ORDER BY seen")
    ((count, repeated),) = database.rows("SELECT count(*), total(repeated) FROM grouped")
    database.do("DROP TABLE grouped")
    return StoredExamples(database, range(1, count + 1)), int(repeated)


def _joined(same: Iterable[tuple[int, str, bytes, str, int]]) -> tuple[object, ...]:
    """Return the pairs of one source, in the order seen, as one row."""
    targets: dict[str, int] = {}
    first: tuple[int, str, bytes] | None = None
    for number, source, checksum, target, times in same:
        first = first or (number, source, checksum)
        targets[target] = targets.get(target, 0) + times
    assert first is not None
    return *first, _END.join(targets), sum(targets.values()) - len(targets)


def _number(database: Database, ordered: str) -> None:
    """Make the table of examples from the rows that `ordered` names, numbered from 1."""
    database.do("CREATE TABLE examples (number INTEGER PRIMARY KEY, source TEXT, targets TEXT)")
    database.do(f"INSERT INTO examples (source, targets) SELECT source, targets FROM {ordered}")
