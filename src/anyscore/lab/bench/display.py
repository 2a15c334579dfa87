"""A benchmark on the terminal: what goes on, a table for each comparison, a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from anyscore.lab.bench.gpu_limits import Chip
from anyscore.lab.bench.run import BENCH_FILE, PLOT_FILE, TABLE_FILE, Watcher
from anyscore.lab.bench.tables import Grid, one, summary, threads
from anyscore.lab.console import PlainConsole
from anyscore.lab.phrases import counted, visible


class TerminalWatcher(Watcher):
    """A line that says what goes on, and a table for whatever is measured.

    Where the output is not a terminal there are only the tables.
    """

    def __init__(self, console: PlainConsole) -> None:
        self.console = console
        self.progress = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=4,  # drawing takes time from what is measured
            disable=not console.is_terminal,
        )
        self.line = self.progress.add_task("", total=None)
        self.part = ""

    def stop(self) -> None:
        """Take the line away."""
        self.progress.stop()

    def begins(self, record: dict[str, Any]) -> None:
        machine, plan = record["machine"], record["plan"]
        self._say(
            f"{machine['processor']}, {threads(machine)}, PyTorch {machine['torch']}; "
            f"anyscore runs {plan['route']}: {plan['reason']}"
        )
        if record["not_installed"] and record["settings"]["rivals"] is None:
            said = ", ".join(record["not_installed"])
            if "keops" in record["not_installed"]:
                said += "; pip install 'anyscore[bench]' brings keops"
            self._say(f"Not installed, so left out: {said}.")
        if machine["load"] > 0.5 * machine["cores"]:
            self._say(
                f"This machine is busy (load {machine['load']:.1f} on "
                f"{counted(machine['cores'], 'core')}): ratios will spread.",
                style="yellow",
            )
        self._say("Ctrl-C stops early and writes what was measured.\n")
        self.progress.start()

    def part_begins(self, name: str, shows: str) -> None:
        self.part = name
        self._say(f"{name}: {shows}", style="bold")

    def busy(self, text: str) -> None:
        self.progress.update(self.line, description=visible(f"{self.part}: {text}"))

    def note(self, text: str) -> None:
        self._say(f"{text}\n", style="yellow")

    def measured(self, result: dict[str, Any], record: dict[str, Any]) -> None:
        show(self.console, one(result, Chip(**record["chip"]) if record["chip"] else None))

    def interrupted(self) -> None:
        self._say("Stopped. Writing what was measured; Ctrl-C again gives that up.", "yellow")

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, highlight=False, soft_wrap=True)


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
