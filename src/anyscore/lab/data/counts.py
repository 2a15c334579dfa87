"""Counts of texts: in memory, and on disk where memory is too small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from anyscore.lab.data.disk import Database

_MOST = 2**28  # bytes of those in memory
_PER_TEXT = 150  # bytes, besides its characters
_TOGETHER = 10**4  # that are counted before memory is looked at


class Counts:
    """Texts and how often each came; exact, however many texts there are."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._counts: Counter[str] = Counter()
        self._database: Database | None = None
        texts = iter(texts)
        while batch := list(islice(texts, _TOGETHER)):
            self._counts.update(batch)
            characters = sum(map(len, batch)) / len(batch)
            if len(self._counts) * (_PER_TEXT + characters) > _MOST:
                self._store()
        if self._database is not None:
            self._store()

    def ranked(self, size: int | None = None, least: int = 1) -> list[str]:
        """Return the texts that came `least` times or more, the frequent first, equals in order.

        Args:
            size: the most texts; None for no limit.
        """
        if self._database is None:
            ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
            return [text for text, count in ranked if count >= least][:size]
        rows = self._database.rows(
            "SELECT text, sum(times) AS count FROM counts GROUP BY text HAVING count >= ? "
            "ORDER BY count DESC, text LIMIT ?",
            least,
            -1 if size is None else size,
        )
        return [text for text, _ in rows]

    def facts(self) -> tuple[int, int, int]:
        """Return how many texts came, how many different ones, and how often the commonest."""
        counts = self._counts.values()
        if self._database is None:
            return sum(counts), len(counts), max(counts, default=0)
        (row,) = self._database.rows(
            "SELECT sum(count), count(*), max(count) FROM "
            "(SELECT sum(times) AS count FROM counts GROUP BY text)"
        )
        return row[0], row[1], row[2]

    def _store(self) -> None:
        """Move the counts from memory to disk."""
        if self._database is None:
            self._database = Database()
            self._database.do("CREATE TABLE counts (text TEXT, times INTEGER)")
        self._database.add("INSERT INTO counts VALUES (?, ?)", self._counts.items())
        self._counts.clear()
