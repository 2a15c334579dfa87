"""The terminal shows the present step, a table for each comparison, and a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from anyscore.lab.bench.run import BENCH_FILE, TABLE_FILE
from anyscore.lab.bench.terminal import TerminalWatcher
from anyscore.lab.console import PlainConsole
from benchmarks.gpu_limits import Chip
from benchmarks.run import PLOT_FILE, Watcher
from benchmarks.tables import Grid, one, summary


class TableWatcher(TerminalWatcher, Watcher):
    """A line for the present step, and a table for each comparison."""

    part = ""

    def begins(self, record: dict[str, Any]) -> None:
        missing = ", ".join(record["not_installed"])
        if missing and record["settings"]["rivals"] is None:
            self.line(
                f"Not installed, so left out: {missing}; "
                "pip install -r benchmarks/requirements.txt brings them."
            )
        super().begins(record)

    def part_begins(self, name: str, shows: str) -> None:
        self.part = name
        self.line(f"{name}: {shows}", style="bold")

    def busy(self, text: str) -> None:
        super().busy(f"{self.part}: {text}")

    def note(self, text: str) -> None:
        self.line(f"{text}\n", style="yellow")

    def measured(self, result: dict[str, Any], record: dict[str, Any]) -> None:
        show(self.console, one(result, Chip(**record["chip"]) if record["chip"] else None))


def show(console: PlainConsole, grid: Grid) -> None:
    """A table, and below it what could not be measured, and why."""
    console.print(grid.title, highlight=False)
    table = Table()
    for number, heading in enumerate(grid.headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in grid.rows:
        table.add_row(*row)
    if grid.rows:
        console.print(table, highlight=False)
    for note in grid.notes:
        console.print(f"  {note}", highlight=False, style="yellow")
    console.print()


def show_summary(console: PlainConsole, record: dict[str, Any], folder: Path) -> None:
    """The table of speed, unless on a GPU, and that of the targets; and where everything is."""
    grids = summary(record)
    shown = [] if record["chip"] else grids[:1]
    for grid in shown + (grids[-1:] if record.get("targets") else []):
        show(console, grid)
    if not record["results"]:
        console.print("Nothing was measured.")
        return
    names = [name for name in (BENCH_FILE, TABLE_FILE, PLOT_FILE) if (folder / name).exists()]
    console.print(f"{', '.join(names)} in {folder}", highlight=False, soft_wrap=True)
