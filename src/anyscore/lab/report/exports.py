"""A comparison is written for other programs: as tables, as pictures, and whole as JSON."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyscore.lab.errors import RunFailure
from anyscore.lab.forms import numbers
from anyscore.lab.records import as_json
from anyscore.lab.report import scores
from anyscore.lab.report.charts import curves_picture, forest_picture
from anyscore.lab.report.curves import learning_curves
from anyscore.lab.report.forest import WORDS, forest
from anyscore.lab.report.rates import learning_rate, searched
from anyscore.lab.run_folder import write_whole

Cell = str | int | float | None
Table = tuple[list[str], list[list[Cell]]]


def export(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Write a comparison's tables and pictures into `folder`, which is made if missing.

    CSV: the tables `scores`, `differences`, `trials`, `epochs` and, after a search, `searches`.
    LaTeX: the first two. PNG: `forest.png` and `curves.png`, if there is something to draw.
    `comparison.json` is the record itself. Each file is written whole or not at all.

    Returns:
        The paths of the files.

    Raises:
        RunFailure: the folder cannot be made, or a file not written.
    """
    tables = {
        "scores": score_table(comparison),
        "differences": difference_table(comparison),
        "trials": trial_table(comparison),
        "epochs": epoch_table(comparison),
    }
    if comparison.get("searches"):
        tables["searches"] = search_table(comparison)
    files = {f"{name}.csv": to_csv(table) for name, table in tables.items()}
    files |= {f"{name}.tex": to_latex(tables[name]) for name in ("scores", "differences")}
    files["comparison.json"] = as_json(comparison, indent=1) + b"\n"
    verdict = comparison["verdict"]
    order = [line.name for line in scores.lines(comparison)]
    pictures = {
        "forest.png": forest_picture(forest(verdict), verdict),
        "curves.png": curves_picture(learning_curves(comparison, order)),
    }
    files |= {name: picture for name, picture in pictures.items() if picture is not None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise RunFailure(f"{folder}: cannot be made ({reason}); give another folder") from None
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def score_table(comparison: dict[str, Any]) -> Table:
    """Make the table of scores, best first."""
    verdict = comparison["verdict"]
    lines = scores.lines(comparison)
    judged = verdict.get("title", "mean")
    others = scores.measures(lines, verdict.get("measure", ""))
    header = ["score", judged, "low", "high", "seeds", *(title for _, title, _ in others)]
    header += ["ms per step", "ms low", "ms high", "memory MiB", "parameters", "of the score"]
    rows = []
    for line in lines:
        standing = line.standing or {}
        row: list[Cell] = [line.name, *(standing.get(name) for name in ("mean", "low", "high"))]
        row.append(len(standing.get("seeds") or {}))
        row += [line.measures.get(name) for name, _, _ in others]
        row += [(line.step_ms or {}).get(name) for name in ("median", "low", "high")]
        row += [line.costs.get(name) for name in scores.COSTS]
        rows.append(row)
    return header, rows


def difference_table(comparison: dict[str, Any]) -> Table:
    """Make the table of differences, a row for each pair of scores."""
    names = ["better", "worse", "difference", "low", "high", "p", "holm"]
    rows: list[list[Cell]] = []
    for difference in comparison["verdict"].get("differences", []):
        word = difference.get("verdict", "undecided")
        rows.append([*(difference.get(name) for name in names), WORDS.get(word, word)])
    return [*names[:-1], "p after Holm", "verdict"], rows


def trial_table(comparison: dict[str, Any]) -> Table:
    """Make the table of trials."""
    trials = comparison["trials"]
    tests = list(dict.fromkeys(name for trial in trials for name in trial.get("test") or {}))
    facts = ["best_epoch", *scores.COSTS, "failure"]
    rows = []
    for trial in trials:
        row: list[Cell] = [trial["score"], trial["seed"], learning_rate(trial, comparison)]
        row += [(trial.get("test") or {}).get(name) for name in tests]
        rows.append([*row, *(trial.get(name) for name in facts)])
    return ["score", "seed", "learning_rate", *tests, *facts], rows


def epoch_table(comparison: dict[str, Any]) -> Table:
    """Make the table of learning curves, a row for each epoch of each trial."""
    names = ["epoch", "steps", "train_loss", "valid_loss", "valid_exact_match", "seconds"]
    rows = [
        [
            trial["score"],
            trial["seed"],
            learning_rate(trial, comparison),
            *(epoch.get(name) for name in names),
        ]
        for trial in comparison["trials"]
        for epoch in trial.get("epochs") or []
    ]
    return ["score", "seed", "learning_rate", *names], rows


def search_table(comparison: dict[str, Any]) -> Table:
    """Make the table of searches, a row for each training before the trials."""
    names = ["score", "learning_rate", "hidden", "valid_loss", "state", "failure"]
    rows: list[list[Cell]] = [
        [training.get(name) for name in names] for training in searched(comparison)
    ]
    return names, rows


def to_csv(table: Table) -> bytes:
    """Write a table as CSV that spreadsheets read correctly.

    The file opens with UTF-8's byte order mark; Excel assumes another encoding without it. A text
    that a spreadsheet would compute, such as one with "=" first, gets an apostrophe before it.
    """
    stream = io.StringIO()
    writer = csv.writer(stream)
    header, rows = table
    writer.writerow(map(_csv_cell, header))
    writer.writerows(map(_csv_cell, row) for row in rows)
    return stream.getvalue().encode("utf-8-sig", errors="replace")


def to_latex(table: Table) -> bytes:
    """Write a table as a LaTeX ``tabular`` for the package ``booktabs``, in plain ASCII."""
    header, rows = table
    kinds = [
        "l" if any(isinstance(row[i], str) for row in rows) or not rows else "r"
        for i in range(len(header))
    ]
    lines = ["% \\usepackage{booktabs}", f"\\begin{{tabular}}{{{''.join(kinds)}}}", "\\toprule"]
    lines += [_latex_row(header), "\\midrule", *map(_latex_row, rows), "\\bottomrule"]
    return "\n".join([*lines, "\\end{tabular}", ""]).encode("ascii")


def _latex_row(cells: Sequence[Cell]) -> str:
    return " & ".join(_latex_cell(cell) for cell in cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return escape_latex(cell)
    finite = numbers([cell])
    if not finite:
        return "--"
    if isinstance(cell, int):
        return f"{cell:,}".replace(",", "{,}")
    if 0 < abs(finite[0]) < 0.001:
        digits, power = f"{finite[0]:.1e}".split("e")
        return f"${digits} \\cdot 10^{{{int(power)}}}$"
    return f"${finite[0]:.3f}$" if abs(finite[0]) < 1 else f"${finite[0]:.1f}$"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # would be an argument of the \\ or of the command before it
    "]": "{]}",
    "-": "{-}",  # no ligatures: "--" is two hyphens
} | {character: "\\" + character for character in "&%$#_{}"}


def escape_latex(text: str) -> str:
    """Escape `text` for LaTeX, in ASCII: every engine prints it, and no part is a command.

    A letter with accents is written without them, and any other character outside of ASCII by its
    code point, as in U+4E2D.
    """
    parts = []
    for character in " ".join(text.split()):
        plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
        if character.isascii():
            parts.append(_LATEX.get(character, character if character.isprintable() else ""))
        elif plain.isalnum():
            parts.append(plain)
        else:
            parts.append(f"U+{ord(character):04X}")
    return "".join(parts)


def _csv_cell(cell: Cell) -> Cell:
    if isinstance(cell, float):
        return float(f"{cell:.6g}")
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\x00", "\ufffd")
    first = unicodedata.normalize("NFKC", text[:1])  # some take wide letters for narrow ones
    return f"'{text}" if first in ("=", "+", "-", "@", "\t", "\r", "\n") else text
