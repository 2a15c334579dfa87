"""The unit that suits a side's texts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from anyscore.lab.data.options import DataOptions, Unit
from anyscore.lab.data.pairs import Example

_LOOKED_AT = 10_000  # examples


def find_units(options: DataOptions, examples: Sequence[Example]) -> tuple[Unit, Unit]:
    """Return the units of sources and targets: the chosen ones, or by the texts for "auto"."""
    chosen = (options.source_unit or options.unit, options.target_unit or options.unit)
    if chosen == ("auto", "auto"):
        # The dates are a few texts of digits and names: characters, however many there are.
        both: Unit = "character" if options.path is None else choose_unit(examples)
        return both, both
    sides = _sides(examples)
    source, target = (
        ("word" if _words_recur(texts) else "character") if unit == "auto" else unit
        for unit, texts in zip(chosen, sides, strict=True)
    )
    return source, target


def choose_unit(examples: Sequence[Example]) -> Unit:
    """Choose words if words recur, else characters.

    Words recur if, on both sides, the median text has two or more, and three quarters of all words
    occur more than once. So sentences are read by words. Single words, numbers, dates and scripts
    without spaces are read by characters, and so are sentences too few for their words to be
    learnt. The first 10,000 examples decide.
    """
    return "word" if all(map(_words_recur, _sides(examples))) else "character"


def _sides(examples: Sequence[Example]) -> tuple[list[str], list[str]]:
    """Return the texts of a sample, by side."""
    sample = list(examples[:_LOOKED_AT])
    return [e.source for e in sample], [r for e in sample for r in e.references]


def _words_recur(texts: list[str]) -> bool:
    """Return whether texts have several words, most of them repeated."""
    words = [text.split(" ") for text in texts]
    counts = Counter(word for text in words for word in text)
    recurring = sum(count for count in counts.values() if count > 1)
    return statistics.median(map(len, words)) >= 2 and recurring >= 0.75 * sum(counts.values())
