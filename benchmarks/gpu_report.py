"""What a GPU could do, the targets, the tables, and the JSON file of `gpu.py`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]


class Cost(NamedTuple):
    """Of one element, (query, key, feature), in instructions of a thread: all that are issued, of
    float32 arithmetic, and of the special function unit: exponentials, reciprocals, tanh.
    """

    issued: float
    float32: float
    special: float


COSTS = {  # of our kernels, counted in the machine code for compute capability 9.0: docs/gpu.md
    "forward": {
        "free": Cost(3.66, 2.75, 0.25),
        "clamped": Cost(4.62, 2.5, 0.5),
        "one by one": Cost(28.3, 20.0, 2.0),
    },
    "backward": {
        "free": Cost(18.5, 12.3, 1.75),
        "clamped": Cost(19.5, 12.0, 2.0),
        "one by one": Cost(97.0, 64.0, 6.0),
    },
}
SPECIAL = 16  # of them an SM does in a cycle
ISSUED = 128  # four schedulers, 32 threads each
LANES = {(8, 0): 64}  # of float32 arithmetic, where they are not ISSUED


@dataclass(frozen=True)
class Chip:
    """A GPU. mhz: its clock under load; max_mhz: the highest; None where nobody says."""

    name: str
    capability: tuple[int, int]
    sms: int
    l2_bytes: int
    memory_bytes: int
    mhz: float | None = None
    max_mhz: float | None = None

    @property
    def clock(self) -> float | None:
        """In Hz, for limits: as fast as it ran, or else as it could."""
        mhz = self.mhz or self.max_mhz
        return None if mhz is None else 1e6 * mhz

    def limit(self, cost: Cost) -> float | None:
        """Elements a second that instructions of this cost allow."""
        if self.clock is None:
            return None
        lanes = LANES.get(self.capability, ISSUED)
        each = min(ISSUED / cost.issued, lanes / cost.float32, SPECIAL / cost.special)
        return self.sms * self.clock * each

    def limit_of(self, kind: str, tiles: dict[str, float] | None) -> float | None:
        """That of "forward" or "backward" where shares of the tiles are computed in these ways."""
        costs = COSTS[kind]
        shares = {way: share for way, share in (tiles or {"free": 1.0}).items() if share}
        if self.clock is None or not set(shares) <= set(costs):
            return None
        return 1 / sum(share / (self.limit(costs[way]) or 1) for way, share in shares.items())

    @property
    def tanh(self) -> float | None:
        """Elements a second if each took one tanh or reciprocal of the processor."""
        return None if self.clock is None else self.sms * self.clock * SPECIAL


def limits(chip: Chip) -> dict[str, float | None]:
    """All of them, elements a second."""
    each = ((kind, way, cost) for kind, costs in COSTS.items() for way, cost in costs.items())
    return {f"{kind}, {way}": chip.limit(cost) for kind, way, cost in each} | {
        "one tanh each": chip.tanh
    }


def smi(fields: Sequence[str], uuid: str = "") -> list[str] | None:
    """Fields that `nvidia-smi` knows of a GPU; None where it does not say."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    command += ["-i", f"GPU-{uuid.removeprefix('GPU-')}"] if uuid else []
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        found = [x.strip() for x in run.stdout.splitlines()[0].split(",")] if run.stdout else []
        return found if len(found) == len(fields) else None
    return None


def number(text: str | None) -> float | None:
    with suppress(TypeError, ValueError):
        return float(text)  # type: ignore[arg-type]
    return None


def row_of(contests: Sequence[Row], key: str, name: str) -> Row:
    """A row by contest and name, {} if there is none."""
    rows = (row for contest in contests if contest["key"] == key for row in contest["rows"])
    return next((row for row in rows if row["name"] == name), {})


def rate(row: Row) -> float | None:
    """Elements a second."""
    return 1000 * row["elements"] / row["ms"]["median"] if row.get("ms") else None


def backward_rate(contests: Sequence[Row], name: str = "anyscore") -> float | None:
    """That of the backward alone: what the forward takes is taken off."""
    forward, both = (row_of(contests, key, name).get("ms") for key in ("forward", "training"))
    if not forward or not both or both["median"] <= forward["median"]:
        return None
    elements = row_of(contests, "training", name)["elements"]
    return 1000 * elements / (both["median"] - forward["median"])


def _fastest(contests: Sequence[Row], key: str, prefix: str) -> float | None:
    """The ratio of the fastest whose name begins so."""
    rows = (row for contest in contests if contest["key"] == key for row in contest["rows"])
    found = [x["ratio"]["median"] for x in rows if x["name"].startswith(prefix) and x["ratio"]]
    return min(found, default=None)


def _growth(contests: Sequence[Row], key: str) -> float | None:
    """Peak memory at 2T over that at T."""
    rows = (row_of(contests, each, "anyscore") for each in (key, f"{key} 2T"))
    small, large = (row.get("peak_bytes") for row in rows)
    return large / small if small and large else None


def targets(contests: Sequence[Row]) -> list[Row]:
    """What an H200 should reach, and what this GPU did."""
    separable = _fastest(contests, "separable", "separable")
    forward = rate(row_of(contests, "forward", "anyscore"))
    found = [
        ("forward, 10¹² elements/s", _scaled(forward), ">", 5),
        ("backward alone, 10¹² elements/s", _scaled(backward_rate(contests)), ">", 1.3),
        ("FlexAttention ÷ ours, forward", _fastest(contests, "forward", "flex"), ">", 3),
        ("FlexAttention ÷ ours, with backward", _fastest(contests, "training", "flex"), ">", 5),
        ("exact ÷ separable, rank 8", separable and 1 / separable, ">", 3),
        ("memory at 2T ÷ T, forward", _growth(contests, "forward"), "<", 2.1),
        ("memory at 2T ÷ T, with backward", _growth(contests, "training"), "<", 2.1),
    ]
    return [
        {
            "name": name,
            "target": f"{'≥' if sign == '>' else '≤'} {goal:g}",
            "value": value,
            "met": None if value is None else value >= goal if sign == ">" else value <= goal,
        }
        for name, value, sign, goal in found
    ]


def _scaled(x: float | None) -> float | None:
    return None if x is None else x / 1e12


def digits(x: float | None, unit: str = "") -> str:
    """Three digits, "–" for nothing.

    >>> digits(1234.5), digits(0.01234), digits(None)
    ('1,234', '0.0123', '–')
    """
    if x is None:
        return "–"
    return (f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}") + unit


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first to the left and others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(
            zip(row, widths, strict=True)))  # fmt: skip
        lines.append("  ".join((first, *others)).rstrip())
    return "\n".join(lines)


HEADS = "", "ms", "quartiles", "÷ ours", "10¹²/s", "of limit", "peak MiB", "error"


def table(contest: Row, chip: Chip) -> str:
    """One contest as text; those without times, and how others work, are said below."""
    rows, notes = [HEADS], []
    for row in contest["rows"]:
        ms, reached = row["ms"], rate(row)
        kind = "forward" if "tiles" in row and not row["training"] else None
        limit = chip.limit_of(kind, row["tiles"]) if kind else None
        exact = row.get("computes", "additive") == "additive"
        rows.append((
            row["name"],
            digits(ms and ms["median"]),
            f"{digits(ms['low'])} – {digits(ms['high'])}" if ms else "–",
            digits(row["ratio"] and row["ratio"]["median"]),
            digits(_scaled(reached)) if exact else "–",
            f"{reached / limit:.0%}" if reached and limit else "–",
            digits(row["peak_bytes"] and row["peak_bytes"] / 2**20),
            f"{max(row['errors'].values()):.1e}" if row["errors"] else "–",
        ))  # fmt: skip
        shares = ", ".join(f"{way} {share:.0%}" for way, share in row.get("tiles", {}).items())
        about = f"{row.get('how', '')}{'; tiles: ' if shares else ''}{shares}"
        notes.append(f"  {row['name']}: {row['problem'] or about}")
    return "\n".join([contest["title"], aligned(rows), *notes])


def summary(contests: Sequence[Row], chip: Chip) -> str:
    """Limits, the backward alone, and the targets beside what was reached."""
    lines = []
    if chip.clock is not None:
        each = "; ".join(f"{name} {digits(_scaled(x))}" for name, x in limits(chip).items())
        lines.append(f"Limits at {chip.clock / 1e6:.0f} MHz, 10¹² elements/s: {each}")
    alone = backward_rate(contests)
    limit = chip.limit_of("backward", row_of(contests, "training", "anyscore").get("tiles"))
    if alone and limit:
        lines.append(f"Backward alone: {alone / 1e12:.3g}, {alone / limit:.0%} of its limit")
    words = {True: "met", False: "MISSED", None: "not measured"}
    rows = [("targets (H200)", "target", "reached", "")]
    for x in targets(contests):
        rows.append((x["name"], x["target"], digits(x["value"]), words[x["met"]]))
    return "\n".join([*lines, aligned(rows)])


def write(path: str | None, report: Row) -> None:
    """As JSON, beside and renamed: whoever reads it finds a whole one."""
    if path is None:
        return
    beside = Path(f"{path}.part")
    beside.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(beside, path)
