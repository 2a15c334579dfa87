"""The pairs of one part: read from a table or two parallel files, grouped by source, sampled."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from anyscore.lab.data.columns import Columns
from anyscore.lab.data.memory import Budget
from anyscore.lab.data.opening import Input
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.table import find_format, read_rows
from anyscore.lab.data.tokens import normalise
from anyscore.lab.errors import InputError


@dataclass(frozen=True, slots=True)
class Example:
    """A source and every target it was seen with, in the order seen.

    In training each reference makes a pair of its own; in testing any of them is right.
    """

    source: str
    references: tuple[str, ...]


class Reader:
    """The pairs of a table, or of two parallel files, one after the other.

    Attributes:
        files: the facts of each file, once it is read to its end.
        met: how many "rows" had a pair, how many were "empty" and left out, how many values were
            "numbers" or "lists".
    """

    def __init__(
        self, path: str | Path, target_path: str | Path | None, options: DataOptions
    ) -> None:
        self.inputs = [Input(p) for p in (path, target_path) if p is not None]
        self.options = options
        self.files: list[dict[str, Any]] = []
        self.met: Counter[str] = Counter()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The pairs as they stand there.

        Raises:
            InputError: naming the line, for what cannot be read, and if there is no pair at all.
        """
        for pair in self._lines() if len(self.inputs) == 2 else self._table():
            self.met["rows"] += 1
            yield pair
        if not self.met["rows"]:
            raise self.inputs[0].without_pairs()
        self.files = [source.facts for source in self.inputs]

    def _table(self) -> Iterator[tuple[str, str]]:
        (table,), options = self.inputs, self.options
        with table.opened() as stream:
            format = find_format(table, options.format)
            columns = Columns(table, format, options.source, options.target, options.skip_empty)
            yield from columns.pairs(read_rows(table, stream, format))
        self.met.update(columns.met)

    def _lines(self) -> Iterator[tuple[str, str]]:
        sources, targets = self.inputs
        with sources.opened() as first, targets.opened() as second:
            both = zip_longest(sources.lines(first), targets.lines(second))
            line = 0
            for line, (one, other) in enumerate(both, 1):
                if one is None or other is None:
                    longer, shorter = (targets, sources) if one is None else (sources, targets)
                    raise shorter.error(
                        f"expected as many lines as in {longer.name}, found only {line - 1}; give "
                        "two files whose lines belong together"
                    )
                pair = one[1].rstrip("\r\n"), other[1].rstrip("\r\n")
                if all(text.strip() for text in pair):
                    yield pair
                elif any(text.strip() for text in pair) and not self.options.skip_empty:
                    empty = targets if pair[0].strip() else sources
                    raise empty.error(
                        "this line is empty, the one beside it is not; fill it in or remove both",
                        line,
                    )
                elif any(text.strip() for text in pair):
                    self.met["empty"] += 1


def group(
    pairs: Iterable[tuple[str, str]],
    *,
    limit: int | None = None,
    seed: int = 0,
    met: Counter[str] | None = None,
) -> list[Example]:
    """One example per distinct source, with its distinct targets, both in the order first seen.

    `limit` keeps that many distinct sources, each as likely as any other, in memory for no more:
    a source is kept if the checksum of `seed` and its text is among the `limit` least, so the same
    sources are kept in whatever order they come. `met` is told how many pairs were "repeated".

    Raises:
        InputError: if memory does not hold what is to be kept.
    """
    references: dict[str, dict[str, int]] = {}
    greatest: list[tuple[int, str]] = []  # a heap of minus the checksum
    budget = Budget()
    try:
        for source, target in pairs:
            source, target = normalise(source), normalise(target)
            known = references.get(source)
            if known is None:
                if limit is not None:
                    out = _driven_out(source, seed, limit, greatest)
                    if out == source:
                        continue
                    for text in () if out is None else (out, *references.pop(out)):
                        budget.forget(text)
                known = references[source] = {}
                budget.keep(source)
            known[target] = known.get(target, 0) + 1
            if known[target] == 1:
                budget.keep(target)
            if budget.spent:
                raise MemoryError
    except MemoryError:
        kept = len(references)
        references.clear()
        raise InputError(
            f"there is not enough memory for all pairs: it was full after {kept:,} distinct "
            "sources; give --limit, fewer than that, to train on a part of them"
        ) from None
    if met is not None:
        met["repeated"] += sum(n - 1 for known in references.values() for n in known.values())
    return [Example(source, tuple(targets)) for source, targets in references.items()]


def _driven_out(source: str, seed: int, limit: int, greatest: list[tuple[int, str]]) -> str | None:
    """Which source a new one drives out of the `limit` that are kept, maybe itself."""
    text = f"{seed}\0{source}".encode()
    entry = -int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"), source
    if len(greatest) < limit:
        heapq.heappush(greatest, entry)
        return None
    return heapq.heappushpop(greatest, entry)[1]
