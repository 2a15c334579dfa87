"""A run of record: medians as a file of `measurements/`, from which pages are made.

`docs/measurements.py` writes the tables of pages from these files; docs/benchmarks_method.md
describes them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from anyscore.kernels.cpu import isa
from anyscore.lab.info import describe_machine
from anyscore.lab.run_folder import write_whole
from benchmarks.gpu_limits import Chip, rate, share_of_limit

FOLDER = Path(__file__).parents[1] / "measurements"
WORKLOADS_FILE = FOLDER / "workloads.json"
PACKAGES = (
    "anyscore", "numpy", "torch", "triton", "jax", "tensorflow", "keras", "mxnet", "pykeops",
    "onnxruntime", "torch-geometric",
)  # fmt: skip
Row = dict[str, Any]
_OF_PART = {
    "ranges": "forward by the size of the numbers",
    "training ranges": "training by the size of the numbers",
    "separable": "separable, numbers within ± 2",
}
"""Workloads that are named by their part."""
_TOGETHER = {"step": "step: ", "cache": "step: ", "graphs": "graphs: "}
"""Parts whose workloads are lines of one table, the table of a quantity."""
_WAYS = {
    "free": "of the tiles with one reciprocal for four features",
    "clamped": "clamped, one reciprocal for two features",
    "one by one": "by tanh itself",
}


def row(
    workload: str, variant: str, dtype: str | None, quantity: str, ratio: dict[str, float]
) -> Row:
    """Return a row; `ratio` has a median and, of several rounds, their middle half."""
    spread = [_short(ratio[x]) for x in ("low", "high")] if "low" in ratio else None
    named = {"workload": workload, "variant": variant, "dtype": dtype, "quantity": quantity}
    return named | {"median": _short(ratio["median"]), "spread": spread}


def rows_of(record: dict[str, Any]) -> list[Row]:
    """Return the rows of a record of `python -m benchmarks`, see `run.bench`."""
    if record.get("chip"):
        chip = Chip(**record["chip"])
        return [row for result in record["results"] for row in _rows_on_gpu(result, chip)]
    return [row for result in record["results"] for row in _rows(result)]


def _rows_on_gpu(result: dict[str, Any], chip: Chip) -> Iterator[Row]:
    """Yield rows of a GPU."""
    part = result["part"].partition(",")[0]
    of, together = _OF_PART.get(part) or workload(result), _TOGETHER.get(part, "")
    first = result["entrants"][0]["name"] if result["entrants"] else ""
    base = "anyscore" if first == "anyscore" else "the first"
    for entry in result["entrants"]:
        if entry["problem"]:
            continue
        dtype, ms = entry["dtype"], entry["spread"] or {"median": entry["ms"]}
        variant = entry["name"].removesuffix(f", {dtype}")
        if part == "kernels":
            times = {f"the whole call, {result['passes']}": ms}
            times |= {name: {"median": x} for name, x in entry.get("kernels", {}).items()}
            for name, x in times.items():
                if x["median"]:
                    yield row(name, variant, dtype, "kernels: ms", x)
            continue
        if "ranges" in part:
            variant = variant.removeprefix("anyscore, ") + _ways(entry.get("tiles", {}))
        ratio = {"median": 1} if entry["name"] == first else entry["ratio"] or {"median": None}
        rates = rate(entry) if entry["computes"] == result["score"] else None
        share = share_of_limit(entry, result, chip)
        quantities: dict[str, Any] = {
            "ms": ms,
            f"÷ {base}": ratio,
            "MiB beside inputs": {"median": entry["mib"]},
            "10¹² elements/s": {"median": rates and rates / 1e12},
            "% of what instructions allow": {"median": share and 100 * share},
        }
        for quantity, x in quantities.items():
            if x["median"]:
                yield row(of, variant, dtype, together + quantity, x)


def _ways(tiles: dict[str, float]) -> str:
    """Return the shares of the ways that tiles took."""
    shares = [f"{100 * share:.0f} % {_WAYS[way]}" for way, share in tiles.items() if share]
    return f": {', '.join(shares)}" if shares else ""


def _rows(result: dict[str, Any]) -> Iterator[Row]:
    first = result["entrants"][0]["name"] if result["entrants"] else ""
    for entry in result["entrants"]:
        if entry["problem"]:
            continue
        of, variant = workload(result), entry["name"]
        if result["part"] == "growth":  # a line for each length
            of = f"{result['shape'][1]:,} tokens"
            variant += ", with gradients" * ("backward" in result["passes"])
        found = {"ms": entry.get("ms"), "MiB": entry.get("mib")}
        quantities = {unit: {"median": x} for unit, x in found.items() if x}
        if entry.get("ratio"):
            quantities[f"time ÷ {first}"] = entry["ratio"]
        for unit, x in quantities.items():
            dtype = entry.get("dtype", result["dtype"])
            yield row(of, variant, dtype, f"{result['part']}: {unit}", x)


def workload(result: dict[str, Any]) -> str:
    """Name the work of a result: by `workloads.json`, else by its sizes."""
    sizes = {tuple(x["sizes"]): name for name, x in workloads().items()}
    named = sizes.get(tuple(result["shape"]), ", ".join(map(str, result["shape"])))
    if "edges" in result:
        named = f"graph of {result['edges']:,} edges"
    prepared = ", keys prepared" * bool(result["prepared"])
    gradients = ", with gradients" * ("backward" in result["passes"])
    usual = "edges" in result or result["score"] in ("additive", "scaled_dot")
    score = "" if usual else f"{result['score']}, "
    title = f", {result['title']}" if result["title"] else ""
    return f"{score}{named}{prepared}{gradients}{title}"


def workloads() -> dict[str, Any]:
    """Return the named workloads: batch, queries, keys, width and width of values, and a text."""
    found: dict[str, Any] = json.loads(WORKLOADS_FILE.read_text(encoding="utf-8"))
    return found


def write(
    name: str,
    rows: Sequence[Row],
    machine: dict[str, Any],
    command: str | None = None,
    folder: Path | None = None,
    note: str | None = None,
) -> Path:
    """Write NAME-DATE.json to measurements/ or another folder, and return its path.

    machine: processor, instructions, threads, and "cuda" as device for a GPU. note: sentences below
    the table.
    """
    versions = {package: _version(package) for package in PACKAGES}
    today = date.today().isoformat()
    known = {
        "processor": None, "instructions": None, "threads": None, "cores": os.cpu_count(),
        "load": None,
    }  # fmt: skip
    about = {
        "date": today,
        "commit": commit(),
        "published": None,
        "machine": known | {key: x for key, x in machine.items() if key in (*known, "device")},
        "versions": {package: x for package, x in versions.items() if x},
        "command": command,
        "note": note,
    }
    path = (folder or FOLDER) / f"{name}-{today}.json"
    write_whole(path, text(about, rows).encode())
    return path


def note_of(record: dict[str, Any]) -> str | None:
    """Return sentences about parts of a record that are missing."""
    said = ["Interrupted."] if record["interrupted"] else []
    for words, key in (("Cut short", "cut_short"), ("Left out", "left_out")):
        said += [f"{words}: {', '.join(record[key])}."] if record[key] else []
    return " ".join(said) or None


def script_options(description: str | None) -> argparse.Namespace:
    """Read the options of a script that measures PyTorch on a CPU, and apply them.

    --threads: PyTorch's threads. --record: the name that `write_script` writes under, or none.
    """
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--record", metavar="NAME", help="see python -m benchmarks --help")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    return given


def write_script(given: argparse.Namespace, module: str, rows: Sequence[Row]) -> None:
    """Write the rows of a script, such as "benchmarks.options", if its --record asks for it."""
    if given.record:
        machine = describe_machine("cpu") | {"instructions": isa()}
        write(given.record, rows, machine, " ".join([f"python -m {module}", *sys.argv[1:]]))


def text(about: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return a file of measurements, with a line for each row."""
    head = json.dumps(about, ensure_ascii=False, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in rows)
    return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'


def commit() -> str | None:
    """Return the commit of the checkout, marked where files differ from it; None without git."""
    command = ["git", "-C", str(FOLDER.parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return found.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _short(x: float) -> float:
    """Return four digits of a number, which says more than its spread."""
    return float(f"{x:.4g}")
