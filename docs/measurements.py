"""Write the tables of pages from the files of measurements/.

    python docs/measurements.py

A block of a page begins with the comment `<!-- measurements: NAME, SELECTED -->` and ends with
`<!-- end -->`. NAME is a file without `.json`; without its date it is the newest of that name that
has SELECTED. SELECTED is a quantity: then lines are workloads, and columns are variants. Or it is a
workload: then lines are variants, and columns are quantities. Or it is a key of the file's "texts".
A block `<!-- measurements: NAME, SELECTED, or none -->` says "Not measured." until a file has it.
The block `<!-- measurements: workloads -->` has the named workloads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "measurements"
OR_NONE = ", or none"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"^(<!-- measurements: ([^>]+?) -->\n).*?^(<!-- end -->)", re.DOTALL | re.MULTILINE
)
_HEADINGS = {
    "eager": "plain PyTorch",
    "blocks": "PyTorch in blocks",
    "compile": "`torch.compile`",
    "flex": "FlexAttention",
    "cdist": "`torch.cdist`",
    "jax": "`jax.jit`",
    "keras": "Keras",
    "dot": "PyTorch's dot product",
    "dot-compile": "compiled or FlexAttention",
    "dot-jax": "JAX's",
    "dot-onnxruntime": "ONNX Runtime's",
    "scaled_dot": "`ScaledDot`",
    "gaussian": "`Gaussian`",
    "laplace": "`Laplace`",
    "gatv2": "`GATv2`",
    "additive": "`Additive`",
    "anyscore, gaussian": "`Gaussian`",
    "anyscore, laplace": "`Laplace`",
    "anyscore, gatv2": "`GATv2`",
    "anyscore, additive": "`Additive`",
    "anyscore, attention": "attention by anyscore",
}
_PACKAGES = {"torch": "PyTorch", "jax": "JAX", "python": "Python", "keops": "KeOps"}
_PACKAGES |= {"tensorflow": "TensorFlow", "keras": "Keras", "mxnet": "MXNet", "triton": "Triton"}
_PACKAGES |= {"numpy": "NumPy", "onnxruntime": "ONNX Runtime"}


def main() -> None:
    """Write the blocks of all pages."""
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))


def filled(text: str) -> str:
    """Return a page with its blocks as the files of measurements say."""
    return _BLOCK.sub(lambda found: f"{found[1]}{block(found[2])}\n\n{found[3]}", text)


def block(name: str) -> str:
    """Return the text of a block.

    Raises ValueError: there is no such file, or nothing of that name in it.
    """
    if name == "workloads":
        return _workloads()
    file, _, selected = name.removesuffix(OR_NONE).partition(", ")
    awaited = name.endswith(OR_NONE)
    for measured in read_all(file):
        if selected in measured.get("texts", {}):
            return str(measured["texts"][selected])
        rows = [row for row in measured["rows"] if selected in (row["quantity"], row["workload"])]
        if rows:
            return _table(measured, rows, selected)
    if awaited:
        return "Not measured."
    read(file)  # which raises if there is none
    raise ValueError(f"{file} measures nothing that is called {selected!r}")


def _table(measured: dict[str, Any], rows: list[dict[str, Any]], selected: str) -> str:
    """Return a caption, and the table of rows of a quantity or a workload."""
    of_quantity = rows[0]["quantity"] == selected
    line, column = ("workload", "variant") if of_quantity else ("variant", "quantity")
    usual, cells = rows[0]["dtype"], {}
    for row in rows:
        is_named = row["dtype"] in (usual, None, row[column])
        other = "" if is_named else f", {row['dtype']}"
        cells[heading(row[line]) + other, row[column]] = shown(row)
    lines, columns = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    order = list(_HEADINGS)  # implementations without a heading, such as anyscore, come first
    columns.sort(key=lambda name: order.index(name) if name in order else -1)
    units = {column.partition(": ")[2] for column in columns}
    heads = [x.partition(": ")[0] if len(units) == 1 and any(units) else x for x in columns]
    table = [["", *map(heading, heads)], ["---", *["---:"] * len(columns)]]
    table += [[one, *(cells.get((one, other), "–") for other in columns)] for one in lines]
    return f"{caption(measured, rows)}\n\n{as_markdown(table)}"


def read(name: str) -> dict[str, Any]:
    """Return the file of this name and date, or the newest of this name.

    Raises ValueError: there is none.
    """
    if not (found := read_all(name)):
        raise ValueError(f"measurements/ has no file {name}.json, and none with a date behind it")
    return found[0]


def read_all(name: str) -> list[dict[str, Any]]:
    """Return the files of this name, or of this name and date, the newest first."""
    dated = re.compile(rf"{re.escape(name)}(-\d{{4}}-\d\d-\d\d)?")
    found = sorted((x for x in FOLDER.glob("*.json") if dated.fullmatch(x.stem)), reverse=True)
    return [json.loads(x.read_text(encoding="utf-8")) for x in found]


def caption(measured: dict[str, Any], rows: Iterable[dict[str, Any]]) -> str:
    """Return the machine, versions, date and commit of rows; a field that is not known is named."""
    machine, published = measured["machine"], measured["published"]
    parts = [", ".join(x for x in (machine["processor"], machine["load"]) if x)]
    missing = [] if machine["processor"] else ["processor"]
    if machine.get("device", "cpu") == "cpu":
        known = {"instruction set": machine["instructions"], "threads": machine["threads"]}
        missing += [name for name, x in known.items() if x is None]
        parts += [machine["instructions"]] if machine["instructions"] else []
        parts += [_counted(machine[x], x) for x in ("threads", "cores") if machine[x]][:1]
    parts += [
        ", ".join(dict.fromkeys(x["dtype"] for x in rows if x["dtype"] not in (None, x["variant"])))
    ]
    parts += [f"{_PACKAGES.get(x, x)} {y}" for x, y in measured["versions"].items() if y]
    missing += [_PACKAGES.get(x, x) for x, y in measured["versions"].items() if not y]
    parts += [_day(measured["date"])] if measured["date"] else []
    parts += [f"commit {measured['commit']}"] if measured["commit"] else []
    missing += [key for key in ("date", "commit") if not measured[key]]
    text = "; ".join(x for x in parts if x) + "."
    if missing:
        text += f" Not noted: {', '.join(missing)}."
    if published:
        text += f" First published in commit {published}."
    return f"*{text}{' ' + measured['note'] if measured['note'] else ''}*"


def _counted(count: int, things: str) -> str:
    return f"{count} {things if count != 1 else things.removesuffix('s')}"


def _day(text: str) -> str:
    """Return a date as 1 January 2026."""
    day = date.fromisoformat(text)
    return f"{day.day} {day:%B %Y}"


def shown(row: dict[str, Any]) -> str:
    """Return the cell of a row: its number, and the spread if there is one."""
    median, spread = row.get("largest", row.get("median")), row.get("spread")
    around = "" if spread is None else "–".join(map(number, spread))
    if median is None:
        return around
    return f"{number(median)}{f' ({around})' if around else ''}"


def number(x: float) -> str:
    """Return three digits, or all digits before the point."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def heading(name: str) -> str:
    """Return a variant, quantity or workload in the words of pages."""
    known, comma, gradients = name.partition(", with gradients")
    return (_HEADINGS.get(known, known) + comma + gradients).replace("|", "\\|")


def as_markdown(table: Iterable[Iterable[str]]) -> str:
    """Return a table whose second line says how columns are aligned."""
    return "\n".join(f"| {' | '.join(line)} |" for line in table)


def _workloads() -> str:
    """Return the table of named workloads."""
    found = json.loads((FOLDER / "workloads.json").read_text(encoding="utf-8"))
    table = [["workload", "batch", "queries", "keys", "width of the score", "of the values", ""]]
    table += [["---", *["---:"] * 5, "---"]]
    table += [[name, *(f"{n:,}" for n in x["sizes"]), x["is"]] for name, x in found.items()]
    return as_markdown(table)


if __name__ == "__main__":
    main()
