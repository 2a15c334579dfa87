"""Sequence pairs from a file, grouped by source, split so that nothing leaks, as one task.

All texts are kept in Unicode NFC with runs of whitespace as one space (`tokens.normalise`), so
that two spellings of one source are one source.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anyscore.lab.errors import InputError
from anyscore.lab.table import Column, read_columns
from anyscore.lab.tokens import Unit, normalise

FEWEST_SOURCES = 10  # below that, a tenth is not one example
MOST_HELD_OUT = 1000  # in validation and test each: more only makes a comparison slower


@dataclass(frozen=True, slots=True)
class Example:
    """A source and every target it was seen with, in the order seen.

    In training each reference makes a pair of its own; in testing any of them is right.
    """

    source: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class Task:
    """Examples to train on, to watch and to test on, and the unit that tokens are made of."""

    name: str
    description: str
    unit: Unit
    train: list[Example]
    valid: list[Example]
    test: list[Example]


Split = tuple[list[Example], list[Example], list[Example]]


def load_task(
    path: str | Path | None,
    *,
    source: Column | None = None,
    target: Column | None = None,
    unit: Literal["auto", "character", "word"] = "auto",
    seed: int = 0,
    limit: int | None = None,
) -> Task:
    """The task of a file of pairs (see `read_pairs`), or with None that of dates (see `dates`).

    `limit` keeps that many distinct sources, chosen by `seed`. `unit="auto"` is `choose_unit` for
    a file, characters for dates. Raises InputError for anything wrong with what was given.
    """
    if limit is not None and limit < FEWEST_SOURCES:
        raise InputError(
            f"a limit of {limit} leaves too few pairs to split: at least {FEWEST_SOURCES} distinct "
            "sources are needed"
        )
    if path is None:
        if source is not None or target is not None:
            raise InputError("columns can be chosen only in a file of pairs, and none was given")
        from anyscore.lab import dates  # Babel is needed for this task only

        train, valid, test = dates.make_dates(seed, pairs=limit or dates.PAIRS)
        return Task(
            name="dates",
            description=f"Dates in {dates.LANGUAGES} languages → ISO 8601",
            unit="character" if unit == "auto" else unit,
            train=train,
            valid=valid,
            test=test,
        )
    examples = read_pairs(path, source, target)
    if limit is not None and limit < len(examples):
        examples = random.Random(seed).sample(examples, limit)
    try:
        train, valid, test = split(examples, seed)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    name = Path(path).name
    source, target = _columns(source, target)
    return Task(
        name=name.split(".")[0] or name,
        description=f"{name}: column {source} → column {target}",
        unit=choose_unit(train) if unit == "auto" else unit,
        train=train,
        valid=valid,
        test=test,
    )


def read_pairs(
    path: str | Path, source: Column | None = None, target: Column | None = None
) -> list[Example]:
    """The examples of a UTF-8 table, one per distinct source, in the order of the file.

    `source` and `target` are columns, by number from 1 or by the name in the first line; columns 1
    and 2 if left out. Tabs divide the columns, or commas where the name ends in .csv; either may
    end in .gz besides. Blank lines are skipped, further columns ignored, repeated pairs counted
    once. The file is read line by line.

    Raises InputError, naming the line, for a file that cannot be read, that is not UTF-8, that
    lacks a column, or where one side of a pair is empty.
    """
    source, target = _columns(source, target)
    return _group(read_columns(path, source=source, target=target))


def split(examples: Iterable[Example], seed: int) -> Split:
    """Training, validation and test examples, about 80 : 10 : 10, chosen by `seed`.

    Validation and test hold at least 1 and at most `MOST_HELD_OUT` each. Examples with the same
    source are joined first, so no source is on two sides. The same examples in the same order and
    the same seed give the same split. Raises InputError for fewer than `FEWEST_SOURCES` distinct
    sources.
    """
    examples = _group((e.source, reference) for e in examples for reference in e.references)
    if len(examples) < FEWEST_SOURCES:
        found = "1 distinct source" if len(examples) == 1 else f"{len(examples)} distinct sources"
        raise InputError(
            f"too few pairs to split into training, validation and test: found {found}, "
            f"at least {FEWEST_SOURCES} are needed"
        )
    random.Random(seed).shuffle(examples)
    held_out = held_out_size(len(examples))
    first, second = len(examples) - 2 * held_out, len(examples) - held_out
    return examples[:first], examples[first:second], examples[second:]


def held_out_size(count: int) -> int:
    """How many of `count` go to validation, and as many again to test."""
    return min(MOST_HELD_OUT, max(1, count // 10))


def choose_unit(examples: Sequence[Example]) -> Unit:
    """Words where words are what recurs, else characters.

    Words, if on both sides the median text has two or more of them (divided by spaces), and three
    quarters of all words stand there more than once. So sentences are read by words; single words,
    numbers, dates and scripts without spaces by characters, and so are sentences too few for their
    words to be learnt. Looks at the first 10,000 examples.
    """
    sample = examples[:10_000]
    for texts in ([e.source for e in sample], [r for e in sample for r in e.references]):
        words = [text.split(" ") for text in texts]
        counts = Counter(word for text in words for word in text)
        recurring = sum(count for count in counts.values() if count > 1)
        if statistics.median(map(len, words)) < 2 or recurring < 0.75 * sum(counts.values()):
            return "character"
    return "word"


def _columns(source: Column | None, target: Column | None) -> tuple[Column, Column]:
    return 1 if source is None else source, 2 if target is None else target


def _group(pairs: Iterable[tuple[str, str]]) -> list[Example]:
    """One example per distinct source, with its distinct targets, both in the order first seen."""
    references: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        references.setdefault(normalise(source), {})[normalise(target)] = None
    return [Example(source, tuple(targets)) for source, targets in references.items()]
