"""A task is sequence pairs from files, split so that nothing leaks.

All texts are kept in Unicode NFC with runs of whitespace as one space (`tokens.normalise`). Two
encodings of one source are then one source.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anyscore.lab.data.opening import readable_name
from anyscore.lab.data.options import (
    FEWEST_SOURCES,
    MAX_TOKENS,
    STDIN,
    DataOptions,
    Unit,
    built_in_task,
)
from anyscore.lab.data.pairs import Example as Example
from anyscore.lab.data.pairs import Reader, group
from anyscore.lab.data.summary import summarise
from anyscore.lab.data.tokenisers import Tokeniser, make_tokenisers
from anyscore.lab.data.tokens import normalise
from anyscore.lab.data.units import choose_unit as choose_unit
from anyscore.lab.data.units import close_share, find_units
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted

MOST_HELD_OUT = 1000  # in validation and test each: more only makes a comparison slower


@dataclass(frozen=True)
class Task:
    """Examples to train, validate and test on, and the units of their tokens.

    Attributes:
        unit: of both sides, or of the targets where `source_unit` names another for the sources.
        tokenisers: of sources and targets, if they are already made; else `encode` makes them.
        summary: facts of the data (see `summary.summarise`); may be empty.
        max_tokens: `encode` leaves out an example with a longer side.
    """

    name: str
    description: str
    unit: Unit
    train: list[Example]
    valid: list[Example]
    test: list[Example]
    source_unit: Unit | None = None
    tokenisers: tuple[Tokeniser, Tokeniser] | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = MAX_TOKENS

    @property
    def units(self) -> tuple[Unit, Unit]:
        """The unit of the sources and that of the targets."""
        return self.source_unit or self.unit, self.unit


Split = tuple[list[Example], list[Example], list[Example]]


def load_task(options: DataOptions, model: str = "recurrent") -> Task:
    """Read the task of a file of pairs; without a path make the model's (see `built_in_task`).

    The parts that have no file of their own are cut from the training data, by `split_seed`: no
    source is then on two sides. Files of validation and test are used as published, a row an item.
    Sources that training has too stay, and the summary counts them.

    Raises:
        InputError: something is wrong with the options or with the content of the files.
    """
    options.check()
    if options.path is None:
        return {"dates": _dates, "sorting": _sorting}[built_in_task(model)](options)
    readers = {part: Reader(*files, options) for part, files in options.parts.items()}
    kept = group(
        readers["train"],
        limit=options.limit,
        seed=options.split_seed,
        counts=readers["train"].counts,
        memory=readers["train"].memory(limited=True),
    )
    published: dict[str, list[Example]] = {
        part: _rows(readers[part]) for part in ("valid", "test") if part in readers
    }
    try:
        parts = split(kept, published, options.split_seed)
    except InputError as error:
        rows = readers["train"].counts["rows"]
        hint = f" (all {rows:,} rows repeat them: is it the right column?)"
        raise InputError(
            f"{readable_name(options.path)}: {error}{hint if rows >= FEWEST_SOURCES else ''}"
        ) from None
    task = _task(
        _name(options), _description(options), parts, find_units(options, kept), options, readers
    )
    share = close_share(options, kept)
    return task if share is None else replace(task, summary=task.summary | {"recurring": share})


def _task(
    name: str,
    description: str,
    parts: Split,
    units: tuple[Unit, Unit],
    options: DataOptions,
    readers: dict[str, Reader],
) -> Task:
    """Make a task of its parts: make tokenisers, summarise."""
    train = parts[0]
    tokenisers = make_tokenisers(units, train, options.subwords)
    return Task(
        name,
        description,
        units[1],
        *parts,
        source_unit=units[0] if units[0] != units[1] else None,
        tokenisers=tokenisers,
        summary=summarise(parts, tokenisers, options, readers),
        max_tokens=options.max_tokens,
    )


def _dates(options: DataOptions) -> Task:
    from anyscore.lab.data import dates  # Babel is needed for this task only

    parts = dates.make_dates(options.split_seed, pairs=options.limit or dates.PAIRS)
    description = f"Dates in {dates.LANGUAGES} languages → ISO 8601"
    return _task("dates", description, parts, find_units(options, parts[0]), options, {})


def _sorting(options: DataOptions) -> Task:
    from anyscore.lab.data import sorting

    parts = sorting.make_sorting(options.split_seed, pairs=options.limit or sorting.PAIRS)
    if options.unit == "auto":
        options = replace(options, unit="token")
    low, high = sorting.LENGTHS
    description = f"{low} to {high} numbers below {sorting.NUMBERS} → in order"
    return _task("sorting", description, parts, find_units(options, parts[0]), options, {})


def split(examples: list[Example], published: Mapping[str, list[Example]], seed: int) -> Split:
    """Split examples into training, validation and test, about 80 : 10 : 10, by `seed`.

    Validation and test hold at least 1 and at most `MOST_HELD_OUT` each; parts in `published` stay
    as they are. No source is on two sides, since each has one example.

    Raises:
        InputError: there are fewer than `FEWEST_SOURCES` distinct sources.
    """
    missing = 2 - len(published)
    if missing and len(examples) < FEWEST_SOURCES:
        count = counted(len(examples), "distinct source")
        raise InputError(
            f"too few pairs to split into training, validation and test: found {count}, "
            f"at least {FEWEST_SOURCES} are needed"
        )
    if missing:
        examples = list(examples)
        random.Random(seed).shuffle(examples)
    size = held_out_size(len(examples))
    rest = len(examples) - missing * size
    cut = iter([examples[start : start + size] for start in range(rest, len(examples), size)])
    valid, test = (
        published[part] if part in published else next(cut) for part in ("valid", "test")
    )
    return examples[:rest], valid, test


def held_out_size(count: int) -> int:
    """Return how many of `count` examples go to validation, and as many again to test."""
    return min(MOST_HELD_OUT, max(1, count // 10))


def _rows(reader: Reader) -> list[Example]:
    """Read one example for each row, as published."""
    examples, memory = [], reader.memory(limited=False)
    for source, target in reader:
        examples.append(Example(normalise(source), (normalise(target),)))
        memory.keep(source)
        memory.keep(target)
    return examples


def _name(options: DataOptions) -> str:
    """Return the name of a task after its file."""
    assert options.path is not None
    name = Path(readable_name(options.path)).name
    return "stdin" if str(options.path) == STDIN else name.split(".")[0] or name


def _description(options: DataOptions) -> str:
    """Describe the origin of the pairs in a few words."""
    assert options.path is not None
    names = [Path(readable_name(p)).name for p in (options.path, options.target_path) if p]
    if len(names) == 2:
        return " → ".join(names)
    source = 1 if options.source is None else options.source
    target = 2 if options.target is None else options.target
    return f"{names[0]}: column {source} → column {target}"
