"""The pairs of one part, read from a table or two parallel files, grouped by source, sampled."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from anyscore.lab.data.columns import Columns
from anyscore.lab.data.examples import Example as Example
from anyscore.lab.data.examples import store
from anyscore.lab.data.memory import Budget
from anyscore.lab.data.opening import Input
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.table import find_format, read_rows
from anyscore.lab.data.tokens import normalise
from anyscore.lab.errors import InputError


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

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs as they stand in the file.

        Raises:
            InputError: a line cannot be read (the text names it), or there is no pair at all.
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
) -> Sequence[Example]:
    """Make one example per distinct source, with its distinct targets, in the order first seen.

    `limit` keeps that many distinct sources, each as likely as any other, in memory for no more:
    a source is kept if the checksum of `seed` and its text is among the `limit` least, so the same
    sources are kept in whatever order they come.

    Args:
        pairs: source and target.
        limit: the most sources; None keeps all.
        seed: of the choice.
        counts: its "repeated" grows by the number of pairs that were repeated.

    Returns:
        A list; or examples on disk, equal to that list, where memory does not hold them.

    Raises:
        InputError: memory is full before it was thought to be.
        RunFailure: the disk is full.
    """
    pairs = ((normalise(source), normalise(target)) for source, target in pairs)
    budget = Budget()
    examples: Sequence[Example]
    try:
        references = _gather(pairs, limit, seed, budget)
        if budget.spent:
            first = ((s, t, n) for s, known in references.items() for t, n in known.items())
            then = ((source, target, 1) for source, target in _after(references, pairs))
            rows = ((s, t, n, _checksum(s, seed)) for s, t, n in chain(first, then))
            examples, repeated = store(rows, limit)
        else:
            examples = [Example(source, tuple(targets)) for source, targets in references.items()]
            repeated = sum(n - 1 for known in references.values() for n in known.values())
    except MemoryError:
        raise InputError(
            "there is not enough memory for the pairs; give --limit to train on a part of them"
        ) from None
    if counts is not None:
        counts["repeated"] += repeated
    return examples


def _gather(
    pairs: Iterator[tuple[str, str]], limit: int | None, seed: int, budget: Budget
) -> dict[str, dict[str, int]]:
    """Count by source how often each target came, of all pairs or until the budget is spent.

    Each pair that was taken is counted, unless the `limit` drove its source out for good.
    """
    references: dict[str, dict[str, int]] = {}
    greatest: list[tuple[int, str]] = []  # a heap of minus the checksum
    for source, target in pairs:
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
            break
    return references


def _after(
    references: dict[str, dict[str, int]], pairs: Iterator[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the remaining pairs, once memory is free of those before."""
    references.clear()
    yield from pairs


def _driven_out(source: str, seed: int, limit: int, greatest: list[tuple[int, str]]) -> str | None:
    """Return the source that a new one drives out of the `limit` kept ones, maybe itself."""
    entry = -int.from_bytes(_checksum(source, seed), "big"), source
    if len(greatest) < limit:
        heapq.heappush(greatest, entry)
        return None
    return heapq.heappushpop(greatest, entry)[1]


def _checksum(source: str, seed: int) -> bytes:
    """Return 8 bytes that order sources by chance, in a way that `seed` decides."""
    return hashlib.blake2b(f"{seed}\0{source}".encode(), digest_size=8).digest()
