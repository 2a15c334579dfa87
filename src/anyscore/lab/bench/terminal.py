"""The terminal shows a line for the present step, and two lines for each result."""

from __future__ import annotations

from typing import Any

from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from anyscore.lab.bench.report import described, memory, problems, table_line, times, work_of
from anyscore.lab.bench.run import Watcher
from anyscore.lab.console import PlainConsole
from anyscore.lab.lines import Lines
from anyscore.lab.phrases import counted, visible


class TerminalWatcher(Lines, Watcher):
    """A line for the present step, and a table that grows."""

    def __init__(self, console: PlainConsole) -> None:
        step = TextColumn("{task.description}", markup=False)
        # Drawing takes time from the calls.
        super().__init__(console, SpinnerColumn(), TimeElapsedColumn(), step, refresh_per_second=4)
        self.score = ""

    def begins(self, record: dict[str, Any]) -> None:
        machine, plan = record["machine"], record["plan"]
        self.line(f"{described(record)}; anyscore runs {plan['route']}: {plan['reason']}")
        if machine["load"] > 0.5 * machine["cores"]:
            self.line(
                f"This machine is busy (load {machine['load']:.1f} on "
                f"{counted(machine['cores'], 'core')}): ratios will vary more.",
                style="yellow",
            )
        self.line("Ctrl-C stops early and writes the results so far.\n")
        self.progress.start()

    def busy(self, text: str) -> None:
        self.progress.update(self.task, description=visible(text))

    def measured(self, result: dict[str, Any], record: dict[str, Any]) -> None:
        if result["score"] != self.score:
            self.score = result["score"]
            names = [e["name"] for e in result["entrants"]]
            self.line(table_line(f"{self.score}, time ÷ anyscore's", names), style="bold")
        self.line(table_line(work_of(result), times(result)))
        if memory(result):
            self.line(table_line("  MiB", memory(result)))
        for problem in problems(result):
            self.line(f"  {problem}", style="yellow")

    def left_out(self, names: list[str]) -> None:
        self.line(f"Left out, as the time was over: {'; '.join(names)}", style="yellow")

    def interrupted(self) -> None:
        self.line("Stopped. Writing the results so far; Ctrl-C again discards them.", "yellow")
