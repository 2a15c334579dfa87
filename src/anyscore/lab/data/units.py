"""The unit that suits a side's texts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from anyscore.lab.data.options import DataOptions, Unit
from anyscore.lab.data.pairs import Example

_RECURRING = 0.75  # of all words; from here on, texts are read by words
_CLOSE = 0.05
_LOOKED_AT = 10_000  # examples, at least, where there are as many


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
    learnt. At least 10,000 examples decide, evenly spread over the file.
    """
    return "word" if all(map(_words_recur, _sides(examples))) else "character"


def close_share(options: DataOptions, examples: Sequence[Example]) -> float | None:
    """Return the share of words that recur, if a few other examples would change the units."""
    if "auto" not in (options.source_unit or options.unit, options.target_unit or options.unit):
        return None
    several = [texts for texts in _sides(examples) if _several_words(texts)]
    share = min(map(_recurring, several), default=1.0)
    return share if len(several) == 2 and abs(share - _RECURRING) < _CLOSE else None


def _sides(examples: Sequence[Example]) -> tuple[list[str], list[str]]:
    """Return the texts of a sample, by side: evenly spread over the examples."""
    sample = examples[:: max(1, len(examples) // _LOOKED_AT)]
    return [e.source for e in sample], [r for e in sample for r in e.references]


def _words_recur(texts: list[str]) -> bool:
    """Return whether texts have several words, most of them repeated."""
    return _several_words(texts) and _recurring(texts) >= _RECURRING


def _several_words(texts: list[str]) -> bool:
    """Return whether the median text has two words or more."""
    return statistics.median(len(text.split(" ")) for text in texts) >= 2


def _recurring(texts: list[str]) -> float:
    """Return the share of words that occur more than once."""
    counts = Counter(word for text in texts for word in text.split(" "))
    return sum(count for count in counts.values() if count > 1) / counts.total()
