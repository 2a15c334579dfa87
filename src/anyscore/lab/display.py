"""A comparison on the terminal: bar, lines, table, words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console, JustifyMethod
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
from anyscore.lab.pace import Pace
from anyscore.lab.summary import paces_shown, ranked, summarise
from anyscore.lab.wording import percent, visible

_WIDE = 60  # columns from which the bar has room for the steps and the time gone by


class TerminalWatcher(Watcher):
    """A progress bar with the time left over all scores, and a line for each epoch.

    Where the output is not a terminal there is no bar, only the lines.
    """

    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.folder = folder
        self.epochs = 0
        wide = console.width >= _WIDE
        self.progress = Progress(
            TextColumn("{task.description:11}"),
            BarColumn(bar_width=None),
            *((MofNCompleteColumn(), TimeElapsedColumn()) if wide else ()),
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
        self.console.print(
            visible(text), style=style, markup=False, highlight=False, soft_wrap=True
        )


def show_outcome(console: Console, metrics: dict[str, Any], folder: Path) -> None:
    """The table, best score first, the summary and where the report is."""
    if metrics["scores"]:
        console.print(_table(metrics, console))
        console.print()
    words = Table.grid(padding=(0, 1))
    for sentence in summarise(metrics):
        words.add_row("•", escape(sentence))
    console.print(words, highlight=False)
    report = visible(str(folder / REPORT_FILE))
    console.print(f"\nReport: {report}", markup=False, highlight=False, soft_wrap=True)


def _table(metrics: dict[str, Any], console: Console) -> Table:
    """As many columns as the terminal has room for; the report has them all."""
    columns = _columns(metrics)
    unbounded = console.options.update(max_width=1000)
    for given_up in ("", "params", "BLEU", "own", "MiB", "chrF", "ms"):
        columns.pop(given_up, None)
        table = Table(caption=_caption(columns))
        for heading in columns:
            side: JustifyMethod = "left" if heading == "score" else "right"
            table.add_column(heading, justify=side, no_wrap=True)
        for cells in zip(*columns.values(), strict=True):
            best = table.row_count == 0 and bool(ranked(metrics))
            table.add_row(*cells, style="bold" if best else "")
        if table.__rich_measure__(console, unbounded).maximum <= console.width:
            break
    return table


def _caption(columns: dict[str, list[str]]) -> str:
    meanings = {
        "ms": "per training step",
        "MiB": "peak",
        "params": "of the model",
        "own": "of the attention",
    }
    return "; ".join(f"{name}: {meaning}" for name, meaning in meanings.items() if name in columns)


def _columns(metrics: dict[str, Any]) -> dict[str, list[str]]:
    """The cells below each heading, best score first."""
    paces = paces_shown(metrics)
    records = [*ranked(metrics), *(r for r in metrics["scores"] if r["test"] is None)]
    columns: dict[str, list[str]] = {"score": [record["name"] for record in records]}
    columns["exact"] = [
        f"{record['test']['exact_match']:.1%}"
        if record["test"] is not None
        else ("failed" if "failure" in record else "stopped")
        for record in records
    ]
    for heading, key in (("chrF", "chrf"), ("BLEU", "bleu")):
        columns[heading] = [_number(record["test"] and record["test"][key]) for record in records]
    if paces:
        share = next(iter(paces.values())).share
        columns[f"to {percent(share, 0)}"] = [_pace(paces.get(r["name"])) for r in records]
    columns["ms"] = [_number(record["step_ms"]) for record in records]
    columns["MiB"] = [_number(record["peak_memory_mib"]) for record in records]
    for heading, key in (("params", "parameters"), ("own", "score_parameters")):
        columns[heading] = [f"{r[key]:,}" if r["parameters"] else "" for r in records]
    return columns


def _pace(found: Pace | None) -> str:
    if found is None:
        return ""
    if found.epochs is None:
        return "never"
    return f"{found.epochs:.1f} ep." if found.seconds is None else f"{found.seconds:.1f} s"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
