"""Answers of each score to the examples get labels, and their weights become whole percents."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anyscore.lab.data.tokens import SPECIALS, detokenise
from anyscore.lab.forms import numbers

_END = SPECIALS[2]
# Marks that cannot be seen, by the short names their code charts use.
_UNSEEN = {
    "\u00ad": "SHY",
    "\u061c": "ALM",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u2060": "WJ",
    "\ufeff": "BOM",
}
_SIDE = 64  # tokens; longer examples are shown as lists, cut at _LONGEST
_LONGEST = 200
_CELLS = 30_000  # of all heatmaps together, which keeps the page small


@dataclass(frozen=True)
class Label:
    """A token's printed text, and its name for screen readers."""

    text: str
    name: str


@dataclass(frozen=True)
class Look:
    """An output token, and the source tokens it looked at most: place, token and percent."""

    token: Label
    at: tuple[tuple[int, Label, int], ...]


@dataclass(frozen=True)
class Answer:
    """An answer of a score.

    Attributes:
        score: its name.
        text: of the answer.
        right: whether the answer is right; None if unknown.
        columns: a label for each token of the output.
        cells: a row for each source token, in percent; empty if there are too many.
        looks: of each token of the output, where there are no cells.
        left_out: how many looks there are beyond those.
    """

    score: str
    text: str
    right: bool | None
    columns: tuple[Label, ...]
    cells: tuple[tuple[int | None, ...], ...]
    looks: tuple[Look, ...]
    left_out: int


@dataclass(frozen=True)
class Example:
    """A test item and its answers.

    Attributes:
        source: its text.
        references: the right answers.
        rows: a label for each token of the source.
        answers: of the scores.
        upright: whether tokens of the output are long and stand on end.
    """

    source: str
    references: tuple[str, ...]
    rows: tuple[Label, ...]
    answers: tuple[Answer, ...]
    upright: bool

    @property
    def right(self) -> int:
        """The number of right answers."""
        return sum(answer.right is True for answer in self.answers)


def examples(comparison: dict[str, Any], order: Sequence[str]) -> list[Example]:
    """Collect the examples of a comparison, the answers in the order of `order`."""
    cells_left, shown = _CELLS, []
    for example in comparison.get("examples", []):
        answers = {name: example["answers"][name] for name in order if name in example["answers"]}
        cells = sum(len(example["source"]) * len(answer["weights"]) for answer in answers.values())
        sides = [len(example["source"]), *(len(answer["weights"]) for answer in answers.values())]
        drawn = max(sides) <= _SIDE and cells <= cells_left
        cells_left -= cells * drawn
        shown.append(_example(example, answers, comparison["task"], drawn))
    return shown


def _example(
    example: dict[str, Any], answers: dict[str, Any], task: dict[str, Any], drawn: bool
) -> Example:
    """Label the tokens of an example and of its answers."""
    source_unit = task.get("source_unit", task.get("unit", ""))
    target_unit = task.get("target_unit", task.get("unit", ""))
    rows = tuple(label(token, source_unit) for token in example["source"])
    labelled = tuple(_answer(name, a, rows, target_unit, drawn) for name, a in answers.items())
    return Example(
        text(example["source"], source_unit),
        tuple(example.get("references", [])),
        rows,
        labelled,
        any(len(column.text) > 2 for answer in labelled for column in answer.columns),
    )


def _answer(
    score: str, answer: dict[str, Any], rows: tuple[Label, ...], unit: str, drawn: bool
) -> Answer:
    """Label the tokens of an answer, and put its weights into cells or looks."""
    tokens = answer["output"][:-1] if answer["output"][-1:] == [_END] else answer["output"]
    weights = answer["weights"]
    columns = [label(token, unit) for token in tokens][: len(weights)]
    columns += [label(_END, unit)] * (len(weights) - len(columns))
    percents = [[_percent(w) for w in row] for row in weights]
    cells = [tuple(row[k] if k < len(row) else None for row in percents) for k in range(len(rows))]
    looks = (
        []
        if drawn
        else [Look(c, heaviest(p, rows)) for c, p in zip(columns, percents, strict=True)]
    )
    return Answer(
        score,
        text(tokens, unit),
        answer.get("right"),
        tuple(columns),
        tuple(cells) if drawn else (),
        tuple(looks[:_LONGEST]),
        max(0, len(looks) - _LONGEST),
    )


def heaviest(
    percents: Sequence[int | None], rows: Sequence[Label]
) -> tuple[tuple[int, Label, int], ...]:
    """Return the three source tokens with most weight, of those with at least one percent."""
    heavy = [(p, k) for k, p in enumerate(percents[: len(rows)]) if p]
    heavy.sort(key=lambda found: (-found[0], found[1]))
    return tuple((k + 1, rows[k], p) for p, k in heavy[:3])


def _percent(weight: object) -> int | None:
    """Return a weight in whole percents; None if it is not a number."""
    values = numbers([weight])
    return round(100 * values[0]) if values else None


def text(tokens: Sequence[str], unit: str) -> str:
    """Return the text of tokens; of an unknown unit, the tokens with spaces between."""
    try:
        return detokenise(tokens, unit)
    except ValueError:
        return " ".join(tokens)


def label(token: str, unit: str) -> Label:
    """Label a token beside a heatmap."""
    if token == _END:
        return Label("⏎", "end of output")
    shown = text([token], unit)
    if len(shown) != 1:
        return Label(shown, shown)
    category = unicodedata.category(shown)
    if shown == " ":
        return Label("␣", "space")
    if category[0] in "ZC":
        code = f"U+{ord(shown):04X}"
        short = "␣" if category[0] == "Z" else _UNSEEN.get(shown, code)
        return Label(short, unicodedata.name(shown, code).lower())
    if category[0] == "M":  # a vowel sign or accent needs something to sit on
        return Label(f"◌{shown}", f"◌{shown}")
    return Label(shown, shown)
