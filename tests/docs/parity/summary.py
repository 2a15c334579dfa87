"""Summarise the results of `parity.run` in measurements/, and write each cell to a table.

python -m parity.summary numpy.json torch.json ... --cells build/parity/cells.csv

`make parity` does so; `python docs/measurements.py` then writes docs/parity.md anew.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "measurements"
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}
NAMES |= {"mxnet": "MXNet"}
HEAD = (
    "framework", "implementation", "dtype", "score", "shape", "mask", "extra", "NaN where masked",
    "queries without keys", "values", "gradients", "share of budget", "outside", "refused",
)  # fmt: skip
VALUES, GRADIENTS, SHARE = "values: eps", "gradients: eps", "share of the budget: %"
Cells = list[tuple[str, dict[str, Any]]]
"""Each cell with the name of its framework."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="results of parity.run")
    parser.add_argument("--cells", type=Path, required=True, help="a table of all cells, to write")
    parser.add_argument("--out", type=Path, help="a file for the summary in place of the usual one")
    given = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in given.files]
    with given.cells.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEAD, *table(results)])
    found = summary(results)
    path = given.out or FOLDER / f"parity-{found['date']}.json"
    path.write_text(text(found), encoding="utf-8")
    print(path)


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a file of measurements; several results may belong to one framework.

    Its rows have the largest error of a framework or of an extra in a dtype, and its place.
    """
    cells = cells_of(results)
    machines = {result["machine"] for result in results}
    versions = {name: x for result in results for name, x in result["versions"].items()}
    return {
        "date": min(result["date"] for result in results),
        "commit": next(iter({result.get("commit") for result in results}), None),
        "published": None,
        "machine": {
            "processor": None,
            "instructions": ", ".join(sorted(machines)),
            "threads": None,
            "cores": None,
            "load": None,
        },
        "versions": versions,
        "command": "make parity",
        "note": None,
        "texts": {"cells": "\n".join([verdict(cells), "", refused(cells), sampled(cells)]).strip()},
        **shown(cells),
        "rows": [*of_frameworks(cells), *of_extras(cells)],
    }


def cells_of(results: list[dict[str, Any]]) -> Cells:
    return [(NAMES[result["framework"]], cell) for result in results for cell in result["cells"]]


def text(found: dict[str, Any]) -> str:
    """Return a file of measurements, with a line for each row and list."""
    lines = [f" {json.dumps(k)}: {json.dumps(x, ensure_ascii=False)}" for k, x in found.items()]
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in found["rows"])
    return "{\n" + ",\n".join([*lines[:-1], f' "rows": [\n{rows}\n ]']) + "\n}\n"


def shown(cells: Cells) -> dict[str, list[str]]:
    """Return the names of measured scores, masks and extras, see `age.lacking`."""
    rows = list(dict.fromkeys(tuple(cell["row"]) for _, cell in cells))
    textbook = [row for row in rows if not row[3]]
    extras = (", ".join((extra, *at)) for _, *at, extra in rows if extra)
    return {
        "scores": list(dict.fromkeys(row[0] for row in textbook)),
        "masks": list(dict.fromkeys(row[2] for row in textbook)),
        "extras": list(dict.fromkeys(extras)),
    }


def verdict(cells: Cells) -> str:
    """Return the number of cells, and each kind of mistake with one example."""
    run = sum(cell["refused"] is None for _, cell in cells)
    kinds: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for name, cell in cells:
        if cell["outside"]:
            kinds[name, cell["impl"], cell["dtype"], _score(cell)].append(cell)
    if not kinds:
        return f"**All {run:,} cells are within their budget.**"
    wrong = [
        f"- {', '.join(kind)}: {len(found):,} cells, as {_where(found[0])}: "
        f"{_code(found[0]['outside'][0])}"
        for kind, found in sorted(kinds.items())
    ]
    count = sum(map(len, kinds.values()))
    return "\n".join([f"**{count:,} of {run:,} cells are outside their budget:**", "", *wrong])


def sampled(cells: Cells) -> str:
    """Return the frameworks and dtypes with fewer rows: unmeasured rows may be worse."""
    rows: dict[tuple[str, str], set[Any]] = defaultdict(set)
    for name, cell in cells:
        rows[name, cell["dtype"]].add(tuple(cell["row"]))
    every = max(map(len, rows.values()), default=0)
    few: dict[str, list[str]] = defaultdict(list)
    for (name, dtype), found in rows.items():
        if len(found) < every:
            few[name].append(f"{len(found):,} in {dtype}")
    said = "; ".join(f"{name}: {', '.join(counts)}" for name, counts in few.items())
    return f"Only a sample of the {every:,} calls was measured of {said}." if few else ""


def refused(cells: Cells) -> str:
    """Return the number of cells that did not run, by framework."""
    counts = Counter(name for name, cell in cells if cell["refused"] is not None)
    if not counts:
        return "No cell was refused."
    said = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"The library refused {counts.total():,} cells with a reason: {said}."


def of_frameworks(cells: Cells) -> Iterator[dict[str, Any]]:
    """Yield the largest errors of each framework, by any implementation."""
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for name, cell in cells:
        groups[name, cell["dtype"]].append(cell)
    for quantity in (VALUES, GRADIENTS, SHARE):
        yield from _largest(groups, quantity)


def of_extras(cells: Cells) -> Iterator[dict[str, Any]]:
    """Yield the largest errors of each extra, in all frameworks."""
    groups: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for _, cell in cells:
        if cell["row"][3]:
            groups[cell["row"][3], cell["dtype"]].append(cell)
    for quantity in (VALUES, GRADIENTS):
        yield from _largest(groups, f"beyond, {quantity}")


def _largest(groups: dict[tuple[str, str], list[Any]], quantity: str) -> Iterator[dict[str, Any]]:
    for (workload, dtype), cells in groups.items():
        run = [cell for cell in cells if cell["refused"] is None]
        if quantity == SHARE:
            every = [(100 * cell["used"], _where(cell)) for cell in run]
        else:
            every = [
                (number, f"{name.removeprefix('gradient of ')}: {_where(cell)}")
                for cell in run
                for name, number in _numbers(cell, quantity.endswith(GRADIENTS)).items()
            ]
        if every:
            largest, at = max(every, key=lambda one: one[0])
            yield {
                "workload": workload, "variant": dtype, "dtype": dtype, "quantity": quantity,
                "largest": float(f"{largest:.3g}"), "at": at,
            }  # fmt: skip


def table(results: list[dict[str, Any]]) -> Iterator[Iterable[Any]]:
    """Yield a line for each cell: the worst of its values and of its gradients, in eps."""
    for name, cell in cells_of(results):
        both = [_numbers(cell, gradients) for gradients in (False, True)]
        worst = [max(x.values(), default="") for x in both]
        about = cell["nan"], cell["empty"], *worst, cell["used"]
        problems = "; ".join(cell["outside"]), cell["refused"] or ""
        yield name, cell["impl"], cell["dtype"], *cell["row"], *about, *problems


def _numbers(cell: dict[str, Any], gradients: bool) -> dict[str, float]:
    found = cell["errors"].items()
    return {name: x for name, x in found if name.startswith("gradient") == gradients}


def _where(cell: dict[str, Any]) -> str:
    _, shape, mask, _ = cell["row"]
    names = _score(cell), *([] if shape == "heads" else [shape]), mask
    return f"{', '.join(names)} ({cell['impl']})"


def _score(cell: dict[str, Any]) -> str:
    """Return the score of a cell, and the extra."""
    score, *_, extra = cell["row"]
    return f"{score} + {extra}" if extra else str(score)


def _code(words: str) -> str:
    short = words if len(words) <= 160 else f"{words[:160]}…"
    return f"`{short.replace('`', chr(39))}`"


if __name__ == "__main__":
    main()
