"""A terminal shows attention weights as a heatmap of shades; as a list where there is no room."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from anyscore.lab.phrases import visible
from anyscore.lab.report.alignments import Label, heaviest, label
from anyscore.lab.translate.translations import Translation

_SHADES = ((70, "██"), (40, "▓▓"), (20, "▒▒"), (5, "░░"), (0, "  "))
"""Shades, each from so many percent on."""
_LONGEST = 24  # columns for a token's name


def heatmap(translation: Translation, units: tuple[str, str], width: int) -> list[str]:
    """Draw the weights of a translation, a column for each token of the output or of the source.

    If neither fits, draw a line for each token of the output, with the source tokens of largest
    weight.

    Args:
        units: the units of tokens (source, output).
        width: columns of the terminal.

    Returns:
        Lines, at most `width` columns wide.
    """
    rows = [[round(100 * w) for w in row] for row in translation.rows]
    if not rows:
        return []
    source = [label(token, units[0]) for token in translation.tokens]
    output = [label(token, units[1]) for token in translation.output]
    across = _grid(source, output, list(map(list, zip(*rows, strict=True))), width)
    grid = across or _grid(output, source, rows, width)
    return grid or [
        set_cell_size(line, width) if cell_len(line) > width else line
        for line in _list(source, output, rows)
    ]


def _grid(
    down: Sequence[Label], across: Sequence[Label], cells: list[list[int]], width: int
) -> list[str]:
    """Draw a row for each of `down`; nothing where `across` has no room."""
    names, heads = ([_name(x) for x in side] for side in (down, across))
    left = max(map(cell_len, names))
    sizes = [max(2, cell_len(head)) for head in heads]
    if left + sum(size + 1 for size in sizes) > width:
        return []
    lines = [
        " ".join([" " * left, *(set_cell_size(h, n) for h, n in zip(heads, sizes, strict=True))])
    ]
    for name, row in zip(names, cells, strict=True):
        shades = [set_cell_size(_shade(x), n) for x, n in zip(row, sizes, strict=True)]
        lines.append(" ".join([" " * (left - cell_len(name)) + name, *shades]))
    return [line.rstrip() for line in lines]


def _list(source: Sequence[Label], output: Sequence[Label], rows: list[list[int]]) -> list[str]:
    """Draw a line for each token of the output."""
    names = [_name(x) for x in output]
    left = max(map(cell_len, names))
    lines = []
    for name, row in zip(names, rows, strict=True):
        heaviest_text = [
            f"{_name(x)} ({percent} % at token {place})"
            for place, x, percent in heaviest(row, source)
        ]
        lines.append(f"{set_cell_size(name, left)} ← {', '.join(heaviest_text)}")
    return lines


def _name(x: Label) -> str:
    text = visible(x.text)
    return text if cell_len(text) <= _LONGEST else f"{set_cell_size(text, _LONGEST - 1)}…"


def _shade(percent: int) -> str:
    return next(shade for least, shade in _SHADES if percent >= least)
