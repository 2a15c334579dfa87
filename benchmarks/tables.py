"""The results of a benchmark as tables: on the terminal while it runs, and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from anyscore.lab.bench.report import introduction, missing, number, shape_of, work_of
from anyscore.lab.bench.work import FORWARD, TRAINING
from benchmarks.gpu_limits import Chip, backward_rate, rate, row_of, share_of_limit
from benchmarks.work import EXACT

Result = dict[str, Any]

_TITLES = {
    "speed": "Time ÷ time of anyscore, medians",
    "memory": "Peak memory growth, MiB",
    "growth": "Growth with T = T_q = T_k",
    "range": "Inputs of extreme magnitude: time ÷ time of normal ones",
    "dot": "A dot product, and other scores in its place: time ÷ time of anyscore's scaled_dot",
    "pairs": "Other scores: time ÷ time of anyscore, forward",
    "beyond": "Beyond attention: time ÷ time of anyscore",
    "graphs": "GATv2 over the edges of a graph: time ÷ time of anyscore",
    "packed": "Packed sequences: time ÷ time of anyscore's",
    "cache": "A step of a cache: time ÷ time of anyscore's",
    "location": "A step of location-sensitive attention: time ÷ time of anyscore's",
    "isa": "Instruction sets: time ÷ time of the best",
    "framework": "Time ÷ time of anyscore, medians",
    "forward": "Forward: time ÷ time of anyscore, medians",
    "training": "Forward and backward: time ÷ time of anyscore, medians",
    "step": "A decoder's step: time ÷ time of anyscore, medians",
    "step, CUDA graph": "A decoder's step as a CUDA graph: time ÷ time of anyscore, medians",
    "kernels": "Kernels: ms",
    "small": "Where the formula fits memory: time ÷ time of anyscore, medians",
}


@dataclass(frozen=True)
class Grid:
    """A table: its title, headings and cells, and the notes below it."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()


def one(result: Result, chip: Chip | None = None) -> Grid:
    """A comparison, or a measurement of memory, all that is known of it.

    chip: of the GPU, where limits are known.
    """
    entrants = result["entrants"]
    notes = [f"{e['name']}: {e['problem']}" for e in entrants if e["problem"]]
    shown = [e for e in entrants if not e["problem"]]
    if result["part"] == "memory":
        rows = [[e["name"], number(e["mib"])] for e in shown]
        return Grid(f"{_title(result)}, peak memory", ["", "MiB"], rows, tuple(notes))
    first = entrants[0]["name"] if entrants else ""
    columns = [
        "",
        f"time ÷ {first}" if len(first) < 12 else "time ÷ first",
        "middle half",
        "rounds",
        "ms",
        "error",
    ]
    rows = [
        [
            e["name"],
            number(e["ratio"] and e["ratio"]["median"]),
            _half(e["ratio"]) if e is not shown[0] else "",
            str(e["ratio"]["rounds"]) if e["ratio"] else "",
            number(e["ms"]),
            "" if e["error"] is None else f"{e['error']:.0e}",
        ]
        for e in shown
    ]
    if any("mib" in e for e in shown):
        columns.append("MiB")
        for row, e in zip(rows, shown, strict=True):
            row.append(number(e.get("mib")))
    if chip is not None:
        columns += ["10¹²/s", "of limit"]
        for row, e in zip(rows, shown, strict=True):
            reached = rate(e) if e["computes"] == result["score"] else None
            share = share_of_limit(e, result, chip)
            row += [number(reached and reached / 1e12), "" if share is None else f"{share:.0%}"]
        notes += [f"{e['name']}: {_about(e)}" for e in shown]
    return Grid(_title(result), columns, rows, tuple(notes))


def _title(result: Result) -> str:
    dtype = "" if result["dtype"] == "float32" else f" {result['dtype']}"
    special = f", {result['title']}" if result["title"] else ""
    return f"{result['score']} ({shape_of(result)}){dtype}, {result['passes']}{special}"


def _about(entry: Result) -> str:
    """Say how one on a GPU was set up, and the ways that its tiles took."""
    facts = {
        "tiles": ", ".join(f"{way} {share:.0%}" for way, share in entry.get("tiles", {}).items()),
        "kernels, ms": "; ".join(f"{x} {number(ms)}" for x, ms in entry.get("kernels", {}).items()),
        "kernels": entry.get("no_kernels", ""),
    }
    return "; ".join([entry["how"], *(f"{name}: {text}" for name, text in facts.items() if text)])


def summary(record: dict[str, Any]) -> list[Grid]:
    """A table for each part: a line for each work, a column for each that took part."""
    grids = []
    for part, title in _TITLES.items():
        results = [r for r in record["results"] if r["part"] == part and r["entrants"]]
        if part == "growth":
            for passes in (FORWARD, TRAINING):
                some = [r for r in results if r["passes"] == passes]
                grids += _growth(some, f"{title}, {passes}") if some else []
        elif results and part == "kernels":
            grids += [_kernels(r, title) for r in results]
        elif results:
            # The ratio of the first to itself is 1 and needs no column.
            base = 0 if part == "memory" else 1
            names = _names(e["name"] for r in results for e in r["entrants"][base:])
            rows = [[_line(r), *(_cell(r, name) for name in names)] for r in results]
            what = "score" if part == "pairs" else "B, T_q, T_k, H, D_v"
            grids.append(Grid(title, [what, *names], rows))
    return grids + ([_targets(record)] if record.get("targets") else [])


def _targets(record: dict[str, Any]) -> Grid:
    """Return the targets beside the reached values; below, the limits by a GPU's instructions."""
    words = {True: "met", False: "MISSED", None: "not measured"}
    rows = [
        [x["name"], x["target"], number(x["value"]), words[x["met"]]] for x in record["targets"]
    ]
    headings = ["", "target", "reached", "met"]
    if not record["chip"]:
        return Grid("Bars", headings, rows)
    chip, results, notes = Chip(**record["chip"]), record["results"], []
    if chip.clock is not None:
        limits = "; ".join(f"{name} {number((x or 0) / 1e12)}" for name, x in chip.limits.items())
        notes.append(f"limits at {chip.clock / 1e6:.0f} MHz, 10¹² triples/s: {limits}")
    alone = backward_rate(results, EXACT)
    limit = chip.limit_of("backward", row_of(results, "training", EXACT).get("tiles"))
    if alone and limit:
        notes.append(f"exact backward alone: {alone / 1e12:.3g}, {alone / limit:.0%} of its limit")
    return Grid("Targets (H200)", headings, rows, tuple(notes))


def markdown(record: dict[str, Any]) -> str:
    """Everything, as it can be pasted into a page."""
    lines = introduction(record, f"{record['settings']['score']}, ")
    if record["cut_short"]:
        lines += ["", f"Cut short by the time: {', '.join(record['cut_short'])}."]
    for grid in summary(record):
        lines += ["", f"## {grid.title}", "", *_markdown(grid)]
        lines += ["", *(f"- {note}" for note in grid.notes)] if grid.notes else []
    lines += ["", "## How each was set up", ""]
    entrants = [e for r in record["results"] for e in r["entrants"]]
    hows = _names(f"{e['name']}: {e['how']}" for e in entrants if e["how"])
    notes = _names(f"{e['name']}: {e['problem']}" for e in entrants if e["problem"])
    lines += [f"- {text}" for text in (*hows, *notes)]
    lines += ["", "## Every measurement"]
    for result in record["results"]:
        grid = one(result, Chip(**record["chip"]) if record.get("chip") else None)
        lines += ["", f"### {grid.title} ({result['part']})", "", *_markdown(grid)]
        lines += ["", *(f"- {note}" for note in grid.notes)] if grid.notes else []
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    """The name of a line of the summary."""
    if result["part"] == "pairs":
        return str(result["score"])
    score = f", {result['score']}" if result["part"] == "packed" else ""
    return f"{work_of(result)}{score}"


def _half(ratio: dict[str, float] | None) -> str:
    return "" if ratio is None else f"{number(ratio['low'])}–{number(ratio['high'])}"


def _cell(result: Result, name: str) -> str:
    for e in result["entrants"]:
        if e["name"] == name:
            if e["problem"]:
                return missing(e)
            weighed = result["part"] == "memory"
            return number(e["mib"] if weighed else e["ratio"] and e["ratio"]["median"])
    return ""


def _growth(results: list[Result], title: str) -> list[Grid]:
    """Milliseconds and MiB by T."""
    names = _names(e["name"] for r in results for e in r["entrants"])
    grids = []
    for key, unit in (("ms", "ms"), ("mib", "MiB of memory")):
        rows = []
        for r in results:
            found = {e["name"]: number(e.get(key)) or "–" for e in r["entrants"]}
            rows.append([f"{r['shape'][1]:,}", *(found.get(name, "") for name in names)])
        grids.append(Grid(f"{title}: {unit}", ["T", *names], rows))
    return grids


def _kernels(result: Result, title: str) -> Grid:
    """Milliseconds of each kernel of each pair, and of the whole call."""
    entrants = result["entrants"]
    times = [{"the whole call": e["ms"]} | e.get("kernels", {}) for e in entrants]
    names = _names(name for found in times for name in found)
    rows = [[name, *(number(found.get(name)) or "–" for found in times)] for name in names]
    reasons = [(e["name"], e["problem"] or e.get("no_kernels")) for e in entrants]
    notes = tuple(f"{name}: {reason}" for name, reason in reasons if reason)
    return Grid(f"{title}, {result['passes']}", ["", *(e["name"] for e in entrants)], rows, notes)


def _markdown(grid: Grid) -> list[str]:
    sides = ["---", *("---:" for _ in grid.headings[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (grid.headings, sides, *grid.rows)]


def _names(names: Iterable[str]) -> list[str]:
    """Each once, in the order of the first time."""
    return list(dict.fromkeys(names))
