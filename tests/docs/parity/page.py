"""Make docs/parity.md of what `parity.run` found, as `make parity` does.

python -m parity.page numpy.json torch.json ... --out docs/parity.md
"""

from __future__ import annotations

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from parity.age import MEASURED

DETAILED = ("float32", "bfloat16")
"""The dtypes whose every cell is shown; the others are in the summary."""
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
NAMES |= {"mxnet": "MXNet"}

TITLE = "# The parity table"
INTRODUCTION = """\
# The parity table

Every score × mask × dtype × implementation × framework, values and gradients, held against an \
oracle in float64. This page is generated; do not edit it.

A **cell** is one call of `attention`. Its output, weights and log-sum-exp are compared with the \
papers' formulas, computed by loops over single numbers in float64 from the same inputs, rounded \
to the cell's dtype as they are; and the gradients of query, key, value and every parameter, of \
a random functional of output and log-sum-exp, with those of float64 automatic differentiation, \
one query at a time over the keys that it attends. NumPy has no gradients.

**What a mask lets nobody attend is NaN**: keys, values, and the queries that attend nothing, \
wherever there are any (marked NaN). Where it leaves queries without keys (marked ∅), output, \
weights and gradients must be 0 exactly and the log-sum-exp −∞.

The **unit** is the dtype's eps (the distance from 1 to the next number) times the largest entry \
of the exact result: 0.5 is one rounding of it. Shown is the largest error of any entry, `values/\
gradients`, each the worst of its results. Where the sum that makes a gradient cancels, it is \
small against its terms, and the multiple is large.

The **budget** starts from that of the tests (`tests/helpers/budget.py`): twice the error of the \
same formula in PyTorch's plain operations in the same dtype (for all frameworks), plus a band of \
16 units, and for gradients the roundings of their terms. It differs in two places. In half \
precision the band is 4 units. And gradients of values are also allowed the rounding of the \
log-sum-exp, from which the [backward](kernel.md) makes the weights again. Zeros, NaN, infinities, \
shapes and dtypes must be as they should. **✗** marks a cell outside its budget, – one that is \
refused with a reason.
"""

AGAIN = """\
## How to make it anew

`make parity` measures every cell, and goes on where it was stopped: an hour and a half, most of \
it JAX's. `make clean` lets it begin anew. Each framework runs in a process of its own; MXNet in \
an environment of its own.
"""


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
    """The page; results of one framework may come in parts."""
    by_framework: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        by_framework[result["framework"]] += result["cells"]
    parts = [INTRODUCTION, verdict(by_framework), "## The worst of each", summary(by_framework)]
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
    """How many cells there are, and each kind of trouble with one example."""
    cells = [(name, cell) for name, found in by_framework.items() for cell in found]
    wrong = [(name, cell) for name, cell in cells if cell["outside"]]
    run = sum(cell["refused"] is None for _, cell in cells)
    if not wrong:
        return f"**All {run:,} cells are within their budget.**"
    kinds: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for name, cell in wrong:
        kinds[NAMES[name], cell["impl"], cell["dtype"], cell["row"][0]].append(cell)
    rows = [
        (*kind, len(found), _where(found[0]), _code(found[0]["outside"][0]))
        for kind, found in sorted(kinds.items())
    ]
    head = ("framework", "implementation", "dtype", "score", "cells", "one of them", "what is off")
    return f"**{len(wrong):,} of {run:,} cells are outside their budget:**\n\n" + table(head, rows)


def summary(by_framework: dict[str, list[Any]]) -> str:
    """Framework × implementation × dtype: the worst values and gradients, and where."""
    groups: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
    for name, cells in by_framework.items():
        for cell in cells:
            if cell["refused"] is None:
                groups[NAMES[name], cell["impl"], cell["dtype"]].append(cell)
    rows = [
        (*group, len(cells), *_worst(cells, False), *_worst(cells, True), _percent(cells))
        for group, cells in groups.items()
    ]
    head = ("framework", "implementation", "dtype", "cells", "values", "of", "gradients", "of")
    return table((*head, "most of a budget"), rows)


def sampled(by_framework: dict[str, list[Any]]) -> str:
    """Where fewer rows were measured than elsewhere: the worst of those may be worse."""
    rows: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for name, cells in by_framework.items():
        for cell in cells:
            rows[NAMES[name], cell["dtype"]].add(tuple(cell["row"]))
    every = max(map(len, rows.values()), default=0)
    few = [f"{' '.join(key)} ({len(x)} rows)" for key, x in rows.items() if len(x) < every]
    return f"**Only a sample** of the {every:,} rows: {', '.join(few)}." if few else ""


def refused(by_framework: dict[str, list[Any]]) -> str:
    """Why cells were not run, each reason once."""
    reasons: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for name, cells in by_framework.items():
        for cell in cells:
            if cell["refused"] is not None:
                reasons[NAMES[name], cell["impl"], cell["row"][0], cell["refused"]] += 1
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
    """Folded: for each dtype and implementation masks × scores, then other shapes."""
    parts = []
    for dtype in DETAILED:
        for impl in dict.fromkeys(cell["impl"] for cell in cells):
            some = [c for c in cells if (c["dtype"], c["impl"]) == (dtype, impl)]
            if some:
                parts += [f"#### {NAMES[name]}, {impl}, {dtype}", grid(some)]
    body = "\n\n".join(parts)
    return f"<details>\n<summary>{NAMES[name]}</summary>\n\n{body}\n\n</details>"


def grid(cells: list[Any]) -> str:
    heads = [cell for cell in cells if cell["row"][1] == "heads"]
    others = [cell for cell in cells if cell["row"][1] != "heads"]
    tables = []
    for label, some in (("mask, heads (2, 3)", heads), ("shape, mask", others)):
        scores = list(dict.fromkeys(cell["row"][0] for cell in some))
        lines: dict[str, dict[str, Any]] = defaultdict(dict)
        for cell in some:
            score, shape, mask = cell["row"]
            lines[mask if shape == "heads" else f"{shape}, {mask}"][score] = cell
        rows = []
        for line, found in lines.items():
            marks = "NaN " * any(c["nan"] for c in found.values())
            marks += "∅" * any(c["empty"] for c in found.values())
            shown = (short(found[score]) if score in found else "" for score in scores)
            rows.append((line, marks.strip(), *shown))
        if rows:
            tables.append(table((label, "", *scores), rows))
    return "\n\n".join(tables)


def short(cell: dict[str, Any]) -> str:
    """0.5/3: the worst of the values and the worst of the gradients."""
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
    """The largest multiple, and of what it is."""
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
    score, shape, mask = cell["row"]
    return f"{score}, {mask}" if shape == "heads" else f"{score}, {shape}, {mask}"


def _short(x: float) -> str:
    """One decimal below ten, none that is idle."""
    if 0 < x < 0.05:
        return "<.1"
    return f"{x:.0f}" if x >= 9.95 else f"{x:.1f}".removesuffix(".0")


def _code(text: str) -> str:
    short = text if len(text) <= 160 else f"{text[:160]}…"
    return f"`{short.replace('`', chr(39)).replace('|', '/')}`"


if __name__ == "__main__":
    main()
