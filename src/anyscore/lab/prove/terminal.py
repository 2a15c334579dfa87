"""Proofs on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from anyscore.lab.comparison import Comparison
from anyscore.lab.console import PlainConsole
from anyscore.lab.engine import Event
from anyscore.lab.phrases import counted, present
from anyscore.lab.prove.carry_out import ProofWatcher
from anyscore.lab.prove.proof import Part, Proof
from anyscore.lab.prove.text import SIGNS, bound, interval, number, summary
from anyscore.lab.rounds import Plan
from anyscore.lab.session import Watcher

_STYLES = {"holds": "green", "fails": "bold red", "open": "yellow"}


class TerminalProofs(ProofWatcher):
    """Shows a bar for the part at work, and the outcome of each proof as it is known."""

    def __init__(self, console: PlainConsole) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("", total=None)

    def begins(self, proof: Proof, part: Part) -> Watcher:
        """Return the watcher of a part."""
        return _PartWatcher(self, f"{proof.name}, {part.name}")

    def ended(self, result: dict[str, Any]) -> None:
        """Print the outcome of a proof."""
        self.line(f"{result['name']}: {summary(result)}", _STYLES[result["state"]])

    def line(self, text: str, style: str = "") -> None:
        """Print a line."""
        self.console.print(text, style=style, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar away."""
        self.progress.stop()


class _PartWatcher(Watcher):
    """Shows the progress of one part."""

    def __init__(self, proofs: TerminalProofs, name: str) -> None:
        self.proofs, self.name = proofs, name

    def begins(self, comparison: Comparison, plan: Plan, about: Any) -> None:
        missing = [trial for trial in plan.trials if not comparison.has(trial)]
        finished = len(plan.trials) - len(missing)
        trials_text = f"{counted(len(plan.scores), 'score')} × {counted(plan.seeds, 'seed')}"
        line = f"{self.name}: {trials_text}"
        self.proofs.line(f"{line}, {present(finished, len(plan.trials))}" if finished else line)
        self.proofs.progress.reset(
            self.proofs.bar, total=len(plan.trials), completed=finished, description=self.name
        )
        if missing:
            self.proofs.progress.start()

    def event(self, event: Event) -> None:
        if event.kind == "failed":
            self.proofs.line(f"{event.trial.name} FAILED: {event.details['failure']}", "bold red")
        if event.kind in ("finished", "failed"):
            self.proofs.progress.advance(self.proofs.bar)

    def interrupted(self) -> None:
        self.proofs.line("Stopped. Writing what is finished; Ctrl-C again gives that up.", "yellow")


def show(console: PlainConsole, record: dict[str, Any], report: Path) -> None:
    """Print each claim with its checks, and the place of the report."""
    for result in record["proofs"]:
        console.print()
        console.print(result["title"], style="bold", highlight=False)
        console.print(f"{result['source']}: “{result['words']}”", highlight=False)
        table = Table("", "claim", "bound", "ours", "interval")
        for check in result["checks"]:
            ours = number(check["mean"]), interval(check)
            cells = SIGNS[check["state"]], check["says"], bound(check), *ours
            table.add_row(*cells, style=_STYLES[check["state"]])
        console.print(table)
        sentence = summary(result)
        console.print(f"{sentence[0].upper()}{sentence[1:]}.", highlight=False)
    if record["interrupted"]:
        console.print("Interrupted: this covers the trials that had finished.")
    console.print(f"\nReport: {report}", highlight=False, soft_wrap=True)
