"""The terminal shows a line for the present step, and two lines for each result."""

from __future__ import annotations

from typing import Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from anyscore.lab.bench.report import described, line, memory, problems, times, work_of
from anyscore.lab.bench.run import Watcher
from anyscore.lab.console import PlainConsole
from anyscore.lab.phrases import counted, visible


class TerminalWatcher(Watcher):
    """A line for the present step, and a table that grows.

    Without a terminal only the table is printed.
    """

    def __init__(self, console: PlainConsole) -> None:
        self.console, self.score = console, ""
        self.progress = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=4,  # drawing takes time from the calls
            disable=not console.is_terminal,
        )
        self.now = self.progress.add_task("", total=None)

    def stop(self) -> None:
        """Remove the line of the present step."""
        self.progress.stop()

    def begins(self, record: dict[str, Any]) -> None:
        machine, plan = record["machine"], record["plan"]
        self.say(f"{described(record)}; anyscore runs {plan['route']}: {plan['reason']}")
        if machine["load"] > 0.5 * machine["cores"]:
            self.say(
                f"This machine is busy (load {machine['load']:.1f} on "
                f"{counted(machine['cores'], 'core')}): ratios will spread.",
                style="yellow",
            )
        self.say("Ctrl-C stops early and writes the results until then.\n")
        self.progress.start()

    def busy(self, text: str) -> None:
        self.progress.update(self.now, description=visible(text))

    def measured(self, result: dict[str, Any], record: dict[str, Any]) -> None:
        if result["score"] != self.score:
            self.score = result["score"]
            names = [e["name"] for e in result["entrants"]]
            self.say(line(f"{self.score}, time ÷ anyscore's", names), style="bold")
        self.say(line(work_of(result), times(result)))
        if memory(result):
            self.say(line("  MiB", memory(result)))
        for problem in problems(result):
            self.say(f"  {problem}", style="yellow")

    def interrupted(self) -> None:
        self.say("Stopped. Writing the results until then; Ctrl-C again gives them up.", "yellow")

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the present step."""
        self.console.print(text, style=style, highlight=False, soft_wrap=True)
