"""A comparison on the terminal: progress bar, lines, table, sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from anyscore.lab.comparison import Comparison
from anyscore.lab.console import PlainConsole
from anyscore.lab.engine import Event
from anyscore.lab.phrases import counted, present, visible
from anyscore.lab.rounds import Plan
from anyscore.lab.session import REPORT_FILE, Watcher
from anyscore.lab.trials import Trial

_WIDE = 60  # columns from which the bar has room for the time gone by


class TerminalWatcher(Watcher):
    """Shows a progress bar over all trials, a line for each, a table after each round.

    Where the output is not a terminal there is no bar. Where it cannot be written any more, the
    trials go on.

    Args:
        lines: said of the data before anything else.
        steps: of training in a trial.
    """

    def __init__(self, console: PlainConsole, folder: Path, lines: list[str], steps: int) -> None:
        self.console, self.folder, self.lines, self.steps = console, folder, lines, steps
        self.searching = 0
        self.muted = False
        self.done: dict[Trial, float] = {}
        wide = console.width >= _WIDE
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            *((TimeElapsedColumn(),) if wide else ()),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("", total=None)

    def searches(self, scores: Sequence[str], trainings: int) -> None:
        """Say that the searches begin, and start the bar."""
        self._introduce()
        self.searching = self.steps * trainings
        self._line(
            f"Searching the learning rate of {', '.join(scores)} on the validation set, "
            f"{counted(trainings, 'training')} each"
        )
        self.progress.update(self.bar, total=self.searching * len(scores))
        self.progress.start()

    def searched(self, event: Event) -> None:
        """Show an event of a search."""
        self._advance(event, f"{event.trial.score}, search:", self.searching)

    def chosen(self, numbers: Mapping[str, Mapping[str, Any]]) -> None:
        """Say which numbers the searches chose."""
        for score, settings in numbers.items():
            width = f", width {settings['hidden']}" if "hidden" in settings else ""
            self._line(f"{score}: learning rate {settings['learning_rate']:.2g}{width}")

    def _introduce(self) -> None:
        """Say once what the data are."""
        lines, self.lines = self.lines, []
        for line in lines:
            self._line(line)

    def begins(self, comparison: Comparison, plan: Plan, about: Mapping[str, Any]) -> None:
        """Say what is to be trained, and start the bar."""
        self._introduce()
        trials = plan.trials
        finished = sum(comparison.has(trial) for trial in trials)
        trials_text = f"{counted(len(plan.scores), 'score')} × {counted(plan.seeds, 'seed')}"
        if plan.extra:
            trials_text += f", and {counted(len(plan.extra), 'trial')} at other learning rates"
        self._line(f"{', '.join(plan.scores)}: {trials_text}, {counted(self.steps, 'step')} each")
        if finished:
            self._line(f"{present(finished, len(trials))} already, in {self.folder}")
        else:
            self._line(f"Into {self.folder}; the same command again goes on where it stopped")
        self._line("Ctrl-C stops early and reports what is finished.\n")
        self.done.clear()
        self.progress.reset(self.bar, total=self.steps * (len(trials) - finished))
        if finished < len(trials):
            self.progress.start()

    def event(self, event: Event) -> None:
        """Show an event of a trial."""
        self._advance(event, _named(event.trial), self.steps)

    def _advance(self, event: Event, name: str, steps: int) -> None:
        """Show an event of a trial or search of so many steps."""
        if event.kind == "progress":
            if "steps" in event.details and "step" in event.details:
                self.done[event.trial] = steps * event.details["step"] / event.details["steps"]
        elif event.kind == "failed":
            self._line(f"{name} FAILED: {event.details['failure']}", style="bold red")
            self.done[event.trial] = steps
        elif event.kind == "finished":
            self._line(f"{name} done")
            self.done[event.trial] = steps
        self.progress.update(
            self.bar, completed=sum(self.done.values()), description=visible(event.trial.score)
        )

    def verdict(self, verdict: dict[str, Any]) -> None:
        """Print the standings and the first sentence after a round."""
        self._print(standings(verdict))
        for sentence in verdict["sentences"][:1]:
            self._line(sentence)

    def interrupted(self) -> None:
        """Say that Ctrl-C was seen."""
        self._line("Stopped. Writing what is finished; Ctrl-C again gives that up.", style="yellow")

    def stop(self) -> None:
        """Take the bar away."""
        self.progress.stop()

    def _line(self, text: str, style: str = "") -> None:
        self._print(text, style=style, highlight=False, soft_wrap=True)

    def _print(self, *content: Any, **options: Any) -> None:
        """Print, unless the output cannot be written any more."""
        if self.muted:
            return
        try:
            self.console.print(*content, **options)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk is no reason to lose the training
            self.muted = True


def _named(trial: Trial) -> str:
    """Name a trial at the beginning of a line."""
    rate = "" if trial.learning_rate is None else f", learning rate {trial.learning_rate:g}"
    return f"{trial.score}, seed {trial.seed}{rate}:"


def show_outcome(
    console: PlainConsole, record: dict[str, Any], folder: Path, *, quiet: bool = False
) -> None:
    """Print the standings, the verdict in words and the place of the report.

    Args:
        quiet: leave the standings out.
    """
    verdict = record["verdict"]
    if verdict["standings"] and not quiet:
        table = standings(verdict, record.get("step_ms", {}))
        room = console.options.update(max_width=1000)
        if table.__rich_measure__(console, room).maximum > console.width:
            table = standings(verdict)  # the report has the rest
        console.print(table)
        console.print()
    failed = [x for x in record["trials"] if "failure" in x]
    words = Table.grid(padding=(0, 1))
    for sentence in verdict["sentences"]:
        words.add_row("•", sentence)
    if failed:
        words.add_row("•", _failures(failed))
    if record["interrupted"]:
        words.add_row("•", "Interrupted: this covers the trials that had finished.")
    console.print(words, highlight=False)
    console.print(f"\nReport: {folder / REPORT_FILE}", highlight=False, soft_wrap=True)


def _failures(failed: list[dict[str, Any]]) -> str:
    """Name the first trial that failed, and count the others."""
    first = failed[0]
    rest = "" if len(failed) == 1 else f" (and {len(failed) - 1} more: see the report)"
    return f"{first['score']} with seed {first['seed']} failed: {first['failure']}{rest}."


def standings(
    verdict: Mapping[str, Any], costs: Mapping[str, Mapping[str, float]] | None = None
) -> Table:
    """Make the table of scores, best first.

    Args:
        costs: of a training step by score, in milliseconds, for another column.
    """
    table = Table()
    table.add_column("score", no_wrap=True)
    table.add_column(verdict["title"], justify="right", no_wrap=True)
    table.add_column(f"{100 * verdict['level']:.3g} %", justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    if costs:
        table.add_column("ms a step", justify="right", no_wrap=True)
    for number, standing in enumerate(verdict["standings"]):
        interval = (
            "" if standing["low"] is None else f"{standing['low']:.1f} to {standing['high']:.1f}"
        )
        cells = [
            standing["score"],
            f"{standing['mean']:.1f}",
            interval,
            str(len(standing["seeds"])),
        ]
        if costs:
            cost = costs.get(standing["score"])
            cells.append("" if cost is None else f"{cost['median']:.1f}")
        table.add_row(*cells, style="" if number else "bold")
    return table
