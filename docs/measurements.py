"""Write the tables of pages, and the chart of benchmarks, from the files of measurements/.

    python docs/measurements.py

A block of a page begins with the comment `<!-- measurements: NAME, SELECTED -->` and ends with
`<!-- end -->`. NAME is a file without `.json`; without its date it is the newest of that name.
SELECTED is a quantity: then lines are workloads, and columns are variants. Or it is a workload:
then lines are variants, and columns are quantities. Or it is a key of the file's "texts". The block
`<!-- measurements: workloads -->` has the named workloads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "measurements"
CHART = ROOT / "docs" / "benchmarks.svg"
CHARTED = "xeon", "speed: time ÷ anyscore", ("eager", "compile", "dot")
"""The file, the quantity and the variants of the chart."""
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
    """Write the blocks of all pages, and the chart."""
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))
    CHART.write_text(chart(), encoding="utf-8")


def filled(text: str) -> str:
    """Return a page with its blocks as the files of measurements say."""
    return _BLOCK.sub(lambda found: f"{found[1]}{block(found[2])}\n\n{found[3]}", text)


def block(name: str) -> str:
    """Return the text of a block.

    Raises ValueError: there is no such file, or nothing of that name in it.
    """
    if name == "workloads":
        return _workloads()
    file, _, selected = name.partition(", ")
    measured = read(file)
    if selected in measured.get("texts", {}):
        return str(measured["texts"][selected])
    rows = [row for row in measured["rows"] if selected in (row["quantity"], row["workload"])]
    if not rows:
        raise ValueError(f"{file} measures nothing that is called {selected!r}")
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
    dated = re.compile(rf"{re.escape(name)}(-\d{{4}}-\d\d-\d\d)?")
    found = max((x for x in FOLDER.glob("*.json") if dated.fullmatch(x.stem)), default=None)
    if found is None:
        raise ValueError(f"measurements/ has no file {name}.json, and none with a date behind it")
    measured: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return measured


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


COLOURS = {"eager": "#56B4E9", "compile": "#0072B2", "dot": "#E69F00"}
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
_WIDTH, _LEFT, _PANEL, _BAR, _GROUP, _TOP = 940, 150, 330, 15, 58, 92
_RANGE = 0.2, 100.0


def chart() -> str:
    """Return the chart as SVG: bars from 1, the time of anyscore, on a logarithmic scale."""
    file, quantity, variants = CHARTED
    measured = read(file)
    rows = [x for x in measured["rows"] if x["quantity"] == quantity]
    names = list(dict.fromkeys(_plain(row["workload"]) for row in rows))
    height = _TOP + _GROUP * len(names) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 24, "Additive attention: time of others, where anyscore takes 1", size=17),
    ]
    x = _LEFT
    for variant in variants:
        label = _HEADINGS[variant].replace("`", "")
        parts += [f'<rect x="{x}" y="38" width="13" height="13" fill="{COLOURS[variant]}"/>']
        parts += [_text(x + 19, 49, label)]
        x += 40 + 8 * len(label)
    for panel, title in enumerate(("forward", "with gradients")):
        left = _LEFT + panel * (_PANEL + 80)
        some = [row for row in rows if row["workload"].endswith(", with gradients") == bool(panel)]
        parts += [_text(left, 78, title, size=15)]
        parts += _bars(left, some, names, variants)
        bottom, one = _TOP + _GROUP * len(names), left + _at(1)
        parts += [f'<path d="M{one:.1f} {_TOP - 6}V{bottom}" stroke="#000" stroke-width="1.5"/>']
        parts += [_text(one - 6, bottom + 18, "← faster", anchor="end")]
        parts += [_text(one + 6, bottom + 18, "slower than anyscore →")]
    for place, name in enumerate(names):
        parts += [_text(_LEFT - 30, _TOP + _GROUP * place + 28, name, anchor="end", size=14)]
    machine = measured["machine"]
    when = measured["date"] or "date not noted"
    said = f"{machine['processor']}, {machine['threads']} threads, float32, {when}; log scale"
    parts += [_text(_WIDTH - 14, height - 6, said, anchor="end", size=11)]
    return "\n".join([*parts, "</svg>", ""])


def _bars(
    left: float, rows: list[dict[str, Any]], names: list[str], variants: tuple[str, ...]
) -> Iterator[str]:
    for row in rows:
        if row["variant"] not in variants:
            continue
        place = names.index(_plain(row["workload"]))
        y = _TOP + _GROUP * place + (_BAR + 1) * variants.index(row["variant"])
        value = row["median"]
        low, high = sorted((_at(1), _at(value)))
        label = f"{value:.0f}×" if value >= 10 else f"{value:.2f}×"
        yield (
            f'<rect x="{left + low:.1f}" y="{y}" width="{high - low:.1f}" height="{_BAR}" '
            f'fill="{COLOURS[row["variant"]]}"/>'
        )
        if value >= 1:
            yield _text(left + high + 5, y + 12, label)
        else:
            yield _text(left + low - 5, y + 12, label, anchor="end")


def _plain(workload: str) -> str:
    """Return the name of a workload without its conditions."""
    return workload.partition(", ")[0]


def _at(value: float) -> float:
    """Return the place of a value on the axis of a panel."""
    low, high = map(math.log, _RANGE)
    return _PANEL * (math.log(value) - low) / (high - low)


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    main()
