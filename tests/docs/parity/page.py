"""Write docs/parity.md from the results of `parity.run`, as `make parity` does.

python -m parity.page numpy.json torch.json ... --out docs/parity.md
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from parity.age import MEASURED
from parity.extras import EXTRAS
from parity.words import AGAIN, BEYOND, INTRODUCTION, TITLE

Groups = dict[tuple[str, str, str], list[Any]]
DETAILED = ("float32", "bfloat16")
"""The dtypes whose every cell is shown; the summary shows the other dtypes."""
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
NAMES |= {"mxnet": "MXNet"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what parity.run wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", default=TITLE, help="of a page of some rows, see parity.run")
    given = parser.parse_args()
    page = render([json.loads(path.read_text(encoding="utf-8")) for path in given.files])
    page = page.replace(TITLE, given.title, 1)
    beside = given.out.with_suffix(".part")
    beside.write_text(page, encoding="utf-8")
    os.replace(beside, given.out)


def render(results: list[dict[str, Any]]) -> str:
    """Return the page; several results may belong to one framework."""
    by_framework: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        by_framework[result["framework"]] += result["cells"]
    parts = [INTRODUCTION, verdict(by_framework), "## The worst of each", summary(by_framework)]
    parts += [BEYOND, of_extras(by_framework)] if of_extras(by_framework) else []
    parts += [
        sampled(by_framework),
        refused(by_framework),
        AGAIN,
        "## Measured with",
        measured(results),
    ]
    parts += ["## All cells", f"In {' and '.join(DETAILED)}; the other dtypes are above."]
    parts += [details(name, cells) for name, cells in by_framework.items()]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def verdict(by_framework: dict[str, list[Any]]) -> str:
    """Return the number of cells, and each kind of mistake with one example."""
    cells = [(name, cell) for name, found in by_framework.items() for cell in found]
    wrong = [(name, cell) for name, cell in cells if cell["outside"]]
    run = sum(cell["refused"] is None for _, cell in cells)
    if not wrong:
        return f"**All {run:,} cells are within their budget.**"
    kinds: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for name, cell in wrong:
        kinds[NAMES[name], cell["impl"], cell["dtype"], _score(cell)].append(cell)
    rows = [
        (*kind, len(found), _where(found[0]), _code(found[0]["outside"][0]))
        for kind, found in sorted(kinds.items())
    ]
    head = ("framework", "implementation", "dtype", "score", "cells", "one of them", "what is off")
    return f"**{len(wrong):,} of {run:,} cells are outside their budget:**\n\n" + table(head, rows)


def summary(by_framework: dict[str, list[Any]]) -> str:
    """Return the worst values and gradients of each framework, implementation and dtype."""
    groups: Groups = defaultdict(list)
    for name, cells in by_framework.items():
        for cell in cells:
            groups[NAMES[name], cell["impl"], cell["dtype"]].append(cell)
    return worst(("framework", "implementation", "dtype"), groups)


def of_extras(by_framework: dict[str, list[Any]]) -> str:
    """Return the worst values and gradients of each extra, framework and dtype."""
    groups: Groups = defaultdict(list)
    for name, cells in by_framework.items():
        for cell in cells:
            if cell["row"][3]:
                groups[cell["row"][3], NAMES[name], cell["dtype"]].append(cell)
    ordered = sorted(groups.items(), key=lambda one: list(EXTRAS).index(one[0][0]))
    return worst(("beyond", "framework", "dtype"), dict(ordered)) if ordered else ""


def worst(head: tuple[str, ...], groups: Groups) -> str:
    """Return a table with a line for each group with measured cells."""
    rows = []
    for group, every in groups.items():
        cells = [cell for cell in every if cell["refused"] is None]
        if cells:
            found = *_worst(cells, False), *_worst(cells, True), _percent(cells)
            rows.append((*group, len(cells), *found))
    return table((*head, "cells", "values", "of", "gradients", "of", "most of a budget"), rows)


def sampled(by_framework: dict[str, list[Any]]) -> str:
    """Return the frameworks and dtypes with fewer rows: unmeasured rows may be worse."""
    rows: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for name, cells in by_framework.items():
        for cell in cells:
            rows[NAMES[name], cell["dtype"]].add(tuple(cell["row"]))
    every = max(map(len, rows.values()), default=0)
    few = [f"{' '.join(key)} ({len(x)} rows)" for key, x in rows.items() if len(x) < every]
    return f"**Only a sample** of the {every:,} rows: {', '.join(few)}." if few else ""


def refused(by_framework: dict[str, list[Any]]) -> str:
    """Return the reasons why cells did not run, each reason once."""
    reasons: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for name, cells in by_framework.items():
        for cell in cells:
            if cell["refused"] is not None:
                reasons[NAMES[name], cell["impl"], _score(cell), cell["refused"]] += 1
    rows = [(*key[:3], count, _code(key[3])) for key, count in reasons.items()]
    head = ("framework", "implementation", "score", "cells", "what it says")
    return "Refused are\n\n" + table(head, rows) if rows else ""


def measured(results: list[dict[str, Any]]) -> str:
    rows = dict.fromkeys(
        (
            NAMES[result["framework"]],
            ", ".join(f"{name} {number}" for name, number in result["versions"].items()),
            result["machine"],
        )
        for result in results
    )
    dates = [result["date"] for result in results if "date" in result]
    when = [MEASURED.format(min(dates))] if dates else []
    made = table(("framework", "versions", "machine, instructions of the core"), rows)
    return "\n\n".join([*when, made])


def details(name: str, cells: list[Any]) -> str:
    """Return the folded tables of `grid` for each dtype and implementation."""
    parts = []
    for dtype in DETAILED:
        for impl in dict.fromkeys(cell["impl"] for cell in cells):
            some = [c for c in cells if (c["dtype"], c["impl"]) == (dtype, impl)]
            if some:
                parts += [f"#### {NAMES[name]}, {impl}, {dtype}", grid(some)]
    body = "\n\n".join(parts)
    return f"<details>\n<summary>{NAMES[name]}</summary>\n\n{body}\n\n</details>"


def grid(cells: list[Any]) -> str:
    """Return tables of masks × scores for heads, then other shapes, then extras."""
    tables = []
    for label, name in GRIDS.items():
        some = [cell for cell in cells if name(*cell["row"][1:])]
        scores = list(dict.fromkeys(cell["row"][0] for cell in some))
        lines: dict[str, dict[str, Any]] = defaultdict(dict)
        for cell in some:
            score, *rest = cell["row"]
            lines[name(*rest)][score] = cell
        rows = []
        for line, found in lines.items():
            marks = "NaN " * any(c["nan"] for c in found.values())
            marks += "∅" * any(c["empty"] for c in found.values())
            shown = (short(found[score]) if score in found else "" for score in scores)
            rows.append((line, marks.strip(), *shown))
        if rows:
            tables.append(table((label, "", *scores), rows))
    return "\n\n".join(tables)


GRIDS: dict[str, Callable[[str, str, str], str]] = {
    "mask, heads (2, 3)": lambda shape, mask, extra: (
        mask if (shape, extra) == ("heads", "") else ""
    ),
    "shape, mask": lambda shape, mask, extra: (
        f"{shape}, {mask}" if shape != "heads" and not extra else ""
    ),
    "beyond the textbook, shape, mask": lambda shape, mask, extra: (
        f"{extra}, {shape}, {mask}" if extra else ""
    ),
}
"""The tables of cells: a head, and the name of a line from shape, mask and extra."""


def short(cell: dict[str, Any]) -> str:
    """Return 0.5/3: the worst of the values and the worst of the gradients."""
    if cell["refused"] is not None:
        return "–"
    both = [_numbers(cell, gradients) for gradients in (False, True)]
    numbers = "/".join(_short(max(x.values())) for x in both if x)
    return f"**✗** {numbers}".strip() if cell["outside"] else numbers


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"|{'|'.join(map(str, line))}|" for line in lines)


def _worst(cells: list[Any], gradients: bool) -> tuple[str, str]:
    """Return the largest multiple, and its result and cell."""
    every = [
        (number, name, cell) for cell in cells for name, number in _numbers(cell, gradients).items()
    ]
    if not every:
        return "–", ""
    number, name, cell = max(every, key=lambda one: one[0])
    return _short(number), f"{name.removeprefix('gradient of ')}: {_where(cell)}"


def _numbers(cell: dict[str, Any], gradients: bool) -> dict[str, float]:
    found = cell["errors"].items()
    return {name: x for name, x in found if name.startswith("gradient") == gradients}


def _percent(cells: list[Any]) -> str:
    most = max(cells, key=lambda cell: cell["used"])
    return f"{most['used']:.0%}: {_where(most)}"


def _where(cell: dict[str, Any]) -> str:
    _, shape, mask, _ = cell["row"]
    return f"{_score(cell)}, {mask}" if shape == "heads" else f"{_score(cell)}, {shape}, {mask}"


def _score(cell: dict[str, Any]) -> str:
    """Return the score of a cell, and the extra."""
    score, *_, extra = cell["row"]
    return f"{score} + {extra}" if extra else str(score)


def _short(x: float) -> str:
    """Return x with one decimal below ten, without an idle zero."""
    if 0 < x < 0.05:
        return "<.1"
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}".removesuffix(".0")


def _code(text: str) -> str:
    short = text if len(text) <= 160 else f"{text[:160]}…"
    return f"`{short.replace('`', chr(39)).replace('|', '/')}`"


if __name__ == "__main__":
    main()
