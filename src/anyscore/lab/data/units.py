"""The unit that suits a side's texts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from anyscore.lab.data.options import DataOptions, Unit
from anyscore.lab.data.pairs import Example

_LOOKED_AT = 10_000  # examples


def find_units(options: DataOptions, examples: Sequence[Example]) -> tuple[Unit, Unit]:
    """Return the units of sources and targets: the chosen ones, or those the texts suggest."""
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
    """Choose words where words are what recurs, else characters.

    Words, if on both sides the median text has two or more of them (divided by spaces), and three
    quarters of all words stand there more than once. So sentences are read by words; single words,
    numbers, dates and scripts without spaces by characters, and so are sentences too few for their
    words to be learnt. Looks at the first 10,000 examples.
    """
    return "word" if all(map(_words_recur, _sides(examples))) else "character"


def _sides(examples: Sequence[Example]) -> tuple[list[str], list[str]]:
    """Return the texts of a sample, by side."""
    sample = list(examples[:_LOOKED_AT])
    return [e.source for e in sample], [r for e in sample for r in e.references]


def _words_recur(texts: list[str]) -> bool:
    """Tell whether texts have several words, most of which come more than once."""
    words = [text.split(" ") for text in texts]
    counts = Counter(word for text in words for word in text)
    recurring = sum(count for count in counts.values() if count > 1)
    return statistics.median(map(len, words)) >= 2 and recurring >= 0.75 * sum(counts.values())
