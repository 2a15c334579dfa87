"""The pairs of one part, read from a table or two parallel files, grouped by source, sampled."""

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
from anyscore.lab.data.memory import Memory
from anyscore.lab.data.opening import Input
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.table import find_format, read_rows
from anyscore.lab.data.tokens import normalise


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
        counts: how many "rows" had a pair, how many were "empty" and left out, how many values were
            "numbers" or "lists".
    """

    def __init__(
        self, path: str | Path, target_path: str | Path | None, options: DataOptions
    ) -> None:
        self.inputs = [Input(p) for p in (path, target_path) if p is not None]
        self.options = options
        self.files: list[dict[str, Any]] = []
        self.counts: Counter[str] = Counter()

    def memory(self, *, limited: bool) -> Memory:
        """Return a counter of the texts that are kept of these pairs.

        Args:
            limited: whether `options.limit` bounds them.
        """
        table = self.inputs[0]
        if limited and self.options.limit is not None:  # the share tells nothing about the whole
            return Memory(table.name)
        return Memory(table.name, lambda: table.share, limited=limited)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs in the order of the file.

        Raises:
            InputError: a line cannot be read (the message names it), or there is no pair at all.
        """
        for pair in self._lines() if len(self.inputs) == 2 else self._table():
            self.counts["rows"] += 1
            yield pair
        if not self.counts["rows"]:
            raise self.inputs[0].without_pairs()
        self.files = [source.facts for source in self.inputs]

    def _table(self) -> Iterator[tuple[str, str]]:
        (table,), options = self.inputs, self.options
        with table.opened() as stream:
            format = find_format(table, options.format)
            columns = Columns(table, format, options.source, options.target, options.skip_empty)
            yield from columns.pairs(read_rows(table, stream, format))
        self.counts.update(columns.counts)

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
                    self.counts["empty"] += 1


def group(
    pairs: Iterable[tuple[str, str]],
    *,
    limit: int | None = None,
    seed: int = 0,
    counts: Counter[str] | None = None,
    memory: Memory | None = None,
) -> list[Example]:
    """Make one example per distinct source, with its distinct targets, in the order first seen.

    `limit` keeps that many distinct sources, each with the same probability, and no others in
    memory. A source is kept if the checksum of `seed` and its text is among the `limit` least: the
    order of the pairs does not matter.

    Args:
        pairs: source and target.
        limit: the most sources; None keeps all.
        seed: of the choice.
        counts: its "repeated" grows by the number of repeated pairs.
        memory: counts the texts that are kept.

    Raises:
        InputError: memory will not hold the pairs.
    """
    memory = memory or Memory()
    kept: dict[str, dict[str, int]] = {}  # by source, how often each target came
    greatest: list[tuple[int, str]] = []  # a heap of minus the checksum
    for pair in pairs:
        source, target = map(normalise, pair)
        if source not in kept:
            if limit is not None:
                out = _driven_out(source, seed, limit, greatest)
                if out == source:
                    continue
                for text in () if out is None else (out, *kept.pop(out)):
                    memory.forget(text)
            kept[source] = {}
            memory.keep(source)
        if target not in kept[source]:
            kept[source][target] = 0
            memory.keep(target)
        kept[source][target] += 1
    if counts is not None:
        counts["repeated"] += sum(n - 1 for targets in kept.values() for n in targets.values())
    return [Example(source, tuple(targets)) for source, targets in kept.items()]


def _driven_out(source: str, seed: int, limit: int, greatest: list[tuple[int, str]]) -> str | None:
    """Return the source that a new one drives out of the `limit` kept ones, maybe itself."""
    # Eight bytes that order sources by chance, in a way that `seed` decides.
    checksum = hashlib.blake2b(f"{seed}\0{source}".encode(), digest_size=8).digest()
    entry = -int.from_bytes(checksum, "big"), source
    if len(greatest) < limit:
        heapq.heappush(greatest, entry)
        return None
    return heapq.heappushpop(greatest, entry)[1]
