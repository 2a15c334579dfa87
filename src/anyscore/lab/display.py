"""A comparison on the terminal: bar, lines, table, words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from anyscore.lab.compare import REPORT_FILE, Watcher
from anyscore.lab.encoding import MAX_TOKENS
from anyscore.lab.summary import ranked, summarise


class TerminalWatcher(Watcher):
    """A progress bar with the time left over all scores, and a line for each epoch.

    Where the output is not a terminal there is no bar, only the lines.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.folder = folder
        self.epochs = 0
        self.progress = Progress(
            TextColumn("{task.description:11}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("", total=None)

    def stop(self) -> None:
        """Take the bar away."""
        self.progress.stop()

    def begins(self, metrics: dict[str, Any], steps: int, left_out: int) -> None:
        task, settings, machine = metrics["task"], metrics["settings"], metrics["machine"]
        self.epochs = settings["epochs"]
        self._line(
            f"{task['description']}: {task['train']:,} pairs to train on, {task['valid']:,} to "
            f"watch, {task['test']:,} to test on; tokens are {task['unit']}s",
        )
        if left_out:
            self._line(
                f"Left out: {left_out:,} with a side of more than {MAX_TOKENS} {task['unit']}s",
            )
        scores = settings["scores"]
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        self._line(
            f"{', '.join(scores)}: {epochs} each, seed {settings['seed']}, "
            f"on {machine['device']} ({machine['threads']} threads), into {self.folder}",
        )
        self._line("Ctrl-C stops early and reports what is finished.\n")
        self.progress.update(self.bar, total=steps, description="timing")
        self.progress.start()

    def score_begins(self, record: dict[str, Any]) -> None:
        self.progress.update(self.bar, description=record["name"])

    def step(self) -> None:
        self.progress.advance(self.bar)

    def epoch(self, record: dict[str, Any], epoch: dict[str, Any]) -> None:
        width = len(str(self.epochs))
        self._line(
            f"{record['name']:11} epoch {epoch['epoch']:{width}}/{self.epochs}   "
            f"loss {epoch['train_loss']:.3f}, validation {epoch['valid_loss']:.3f}   "
            f"exact {epoch['valid_exact_match']:6.1%}   {epoch['seconds']:.1f} s",
        )

    def score_ends(self, record: dict[str, Any]) -> None:
        if "failure" in record:
            self._line(f"{record['name']:11} FAILED: {record['failure']}", style="bold red")
            return
        test, step = record["test"], record["step_ms"]
        pace = "" if step is None else f"; {step:.1f} ms per step"
        self._line(
            f"{record['name']:11} tested: exact {test['exact_match']:.1%}, chrF {test['chrf']:.1f},"
            f" BLEU {test['bleu']:.1f}{pace}\n",
            style="bold",
        )

    def interrupted(self) -> None:
        self._line("Stopped. Writing what is finished; Ctrl-C again gives that up.", style="yellow")

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def show_outcome(console: Console, metrics: dict[str, Any], folder: Path) -> None:
    """The table, best score first, the summary and where the report is."""
    if metrics["scores"]:
        console.print(_table(metrics))
        console.print()
    words = Table.grid(padding=(0, 1))
    for sentence in summarise(metrics):
        words.add_row("•", escape(sentence))
    console.print(words, highlight=False)
    report = folder / REPORT_FILE
    console.print(f"\nReport: {report}", markup=False, highlight=False, soft_wrap=True)


def _table(metrics: dict[str, Any]) -> Table:
    table = Table(caption="ms: of a training step. MiB: most held in one. own: the attention's.")
    table.add_column("score", no_wrap=True)
    for heading in ("exact", "chrF", "BLEU", "ms", "MiB", "parameters", "own"):
        table.add_column(heading, justify="right", no_wrap=True)
    tested = ranked(metrics)
    for place, record in enumerate([*tested, *_untested(metrics)]):
        test = record["test"]
        quality = ["failed" if "failure" in record else "not finished", "", ""]
        if test is not None:
            quality = [f"{test['exact_match']:.1%}", f"{test['chrf']:.1f}", f"{test['bleu']:.1f}"]
        table.add_row(
            record["name"],
            *quality,
            _number(record["step_ms"]),
            _number(record["peak_memory_mib"]),
            f"{record['parameters']:,}",
            f"{record['score_parameters']:,}",
            style="bold" if place == 0 and test is not None else "",
        )
    return table


def _untested(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    return [record for record in metrics["scores"] if record["test"] is None]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
