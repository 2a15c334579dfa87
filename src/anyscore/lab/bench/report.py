"""The results of `anyscore bench`: on the terminal line by line, and as Markdown."""

from __future__ import annotations

from typing import Any

from anyscore.lab.bench.work import TRAINING
from anyscore.lab.phrases import counted

Record = dict[str, Any]


def number(value: float | None) -> str:
    """Return three digits, or all digits before the point.

    >>> number(0.0123), number(4.56789), number(8324.2), number(None)
    ('0.0123', '4.57', '8,324', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def shape_of(result: Record) -> str:
    """Describe the work: its shape or its graph, and whether keys are prepared."""
    if "edges" in result:
        return f"{result['shape'][2]:,} nodes, {result['edges']:,} edges"
    prepared = ", prepared keys" if result["prepared"] else ""
    return f"{', '.join(map(str, result['shape']))}{prepared}"


def work_of(result: Record) -> str:
    """Describe the work with its passes and its special properties."""
    backward = " + backward" if result["passes"] == TRAINING else ""
    title = f", {result['title']}" if result["title"] else ""
    return f"{shape_of(result)}{backward}{title}"


def described(record: Record) -> str:
    """Describe the machine: its processor, threads, and PyTorch."""
    machine = record["machine"]
    threads = counted(machine["threads"], "thread")
    return f"{machine['processor']}, {threads}, PyTorch {machine['torch']}"


def times(result: Record) -> list[str]:
    """Return the cells of a line: milliseconds of anyscore, and the ratios of others to them."""
    first, *others = result["entrants"]
    ours = f"{number(first['ms'])} ms" if first["ms"] else missing(first)
    return [ours, *(number(e["ratio"]["median"]) if e["ratio"] else missing(e) for e in others)]


def memory(result: Record) -> list[str]:
    """Return the MiB of each; an empty list if no memory was measured."""
    if not any(e.get("mib") for e in result["entrants"]):
        return []
    return [number(e.get("mib")) or "–" for e in result["entrants"]]


def missing(entry: Record) -> str:
    """Return the cell of a contestant without a figure: "wrong", or a dash."""
    return "wrong" if (entry["problem"] or "").startswith("wrong") else "–"


def problems(result: Record) -> list[str]:
    """Name each contestant without time or memory, with the reason."""
    return [f"{e['name']}: {e['problem']}" for e in result["entrants"] if e["problem"]]


def table_line(name: str, cells: list[str]) -> str:
    """Return a line of the terminal's table."""
    return f"{name:<40}" + "".join(f"{cell:>10}" for cell in cells)


def introduction(record: Record, score: str = "") -> list[str]:
    """Return the first lines of a page: versions, machine and settings."""
    lines = [
        "# Benchmark",
        "",
        f"anyscore {record['anyscore']} ({record['plan']['route']}), {described(record)}, "
        f"Python {record['machine']['python']}, {score}{record['settings']['dtype']}, "
        f"{record['made'][:10]}.",
    ]
    if record["interrupted"]:
        lines += ["", "Interrupted: the page has the results so far."]
    if record["left_out"]:
        lines += ["", f"Left out, as the time was over: {'; '.join(record['left_out'])}."]
    return lines


def markdown(record: Record) -> str:
    """Return all results as Markdown."""
    results = record["results"]
    names = [e["name"] for e in results[0]["entrants"]] if results else []
    lines = introduction(record)
    for title, cells in (("Time ÷ time of anyscore, medians", times), ("Memory, MiB", memory)):
        rows = [[r["score"], work_of(r), *cells(r)] for r in results if cells(r)]
        if rows:
            grid = [["score", "B, T_q, T_k, H, D_v", *names], ["---"] * 2 + ["---:"] * len(names)]
            lines += ["", f"## {title}", "", *(f"| {' | '.join(row)} |" for row in grid + rows)]
    hows = [f"{e['name']}: {e['how']}" for r in results for e in r["entrants"] if e["how"]]
    notes = [f"{r['score']}, {work_of(r)}, {text}" for r in results for text in problems(r)]
    lines += ["", "## How each was set up", ""]
    return "\n".join([*lines, *(f"- {text}" for text in dict.fromkeys(hows + notes)), ""])
