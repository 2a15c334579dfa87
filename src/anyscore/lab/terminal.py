"""The terminal shows comparisons and proofs: progress bar, lines, tables, sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from anyscore.lab.comparison import Comparison
from anyscore.lab.console import PlainConsole
from anyscore.lab.engine import Event
from anyscore.lab.lines import Lines
from anyscore.lab.phrases import counted, number, percent, present, visible
from anyscore.lab.prove.proof import Part, Proof
from anyscore.lab.prove.runner import ProofWatcher
from anyscore.lab.report.proofs import SIGNS, bound, interval, summary
from anyscore.lab.rounds import Plan
from anyscore.lab.session import REPORT_FILE, Watcher
from anyscore.lab.trials import Trial

_INTERRUPTED = "Interrupted: the results cover the finished trials."
_WIDE = 60  # columns from which the bar has room for the elapsed time


_STATES = {"holds": "green", "fails": "bold red", "open": "yellow"}


class _Bar(Lines):
    """Lines above a progress bar over trials."""

    def __init__(self, console: PlainConsole, *columns: ProgressColumn) -> None:
        description = TextColumn("{task.description}", markup=False)
        super().__init__(
            console, description, BarColumn(bar_width=None), TaskProgressColumn(), *columns
        )

    def failed(self, name: str, event: Event) -> None:
        """Print that a trial failed."""
        self.line(f"{name} FAILED: {event.details['failure']}", style="bold red")

    def interrupted(self) -> None:
        """Print that Ctrl-C stopped the trials."""
        self.line("Stopped. Writing the report; Ctrl-C again ends without it.", style="yellow")


class TerminalWatcher(_Bar, Watcher):
    """Shows a progress bar over all trials, a line for each, a table after each round.

    Args:
        lines: about the data, printed first.
        steps: of training in a trial.
    """

    def __init__(self, console: PlainConsole, folder: Path, lines: list[str], steps: int) -> None:
        wide = (TimeElapsedColumn(),) if console.width >= _WIDE else ()
        super().__init__(console, *wide, TextColumn("left"), TimeRemainingColumn())
        self.folder, self.lines, self.steps = folder, lines, steps
        self.searching = 0
        self.done: dict[Trial, float] = {}
        self.minutes: float | None = None

    def searches(self, scores: Sequence[str], trainings: int) -> None:
        """Announce the searches, and start the progress bar."""
        self._introduce()
        self.searching = self.steps * trainings
        self.line(
            f"Searching the learning rate of {', '.join(scores)} on the validation set, "
            f"{counted(trainings, 'training')} each"
        )
        self.progress.update(self.task, total=self.searching * len(scores))
        self.progress.start()

    def searched(self, event: Event) -> None:
        """Show an event of a search."""
        self._advance(event, f"{event.trial.score}, search:", self.searching)

    def chosen(self, numbers: Mapping[str, Mapping[str, Any]]) -> None:
        """Print the numbers that the searches chose."""
        for score, settings in numbers.items():
            width = f", width {settings['hidden']}" if "hidden" in settings else ""
            self.line(f"{score}: learning rate {settings['learning_rate']:.2g}{width}")

    def _introduce(self) -> None:
        """Describe the data, once."""
        lines, self.lines = self.lines, []
        for line in lines:
            self.line(line)

    def begins(self, comparison: Comparison, plan: Plan, about: Mapping[str, Any]) -> None:
        """Announce the trials, and start the progress bar."""
        self._introduce()
        trials = plan.trials
        finished = sum(comparison.has(trial) for trial in trials)
        trials_text = _planned(plan)
        if plan.extra:
            trials_text += f", and {counted(len(plan.extra), 'trial')} at other learning rates"
        self.line(f"{', '.join(plan.scores)}: {trials_text}, {counted(self.steps, 'step')} each")
        if finished:
            self.line(f"{present(finished, len(trials))} already, in {self.folder}")
        else:
            self.line(f"Folder: {self.folder}; the same command continues a run that was stopped")
        self.line("Ctrl-C stops early and reports the finished trials.\n")
        self.done.clear()
        self.minutes = plan.minutes
        self.progress.reset(self.task, total=self.steps * (len(trials) - finished))
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
            self.failed(name, event)
            self.done[event.trial] = steps
        elif event.kind == "finished":
            self.line(f"{name} done")
            self.done[event.trial] = steps
        self.advance(sum(self.done.values()), visible(event.trial.score), self.minutes)

    def verdict(self, verdict: dict[str, Any]) -> None:
        """Print the standings and the first sentence after a round."""
        self.show(standings(verdict))
        for sentence in verdict["sentences"][:1]:
            self.line(sentence)


class TerminalProofs(_Bar, ProofWatcher):
    """Shows a bar for the part at work, and the outcome of each proof as it is known."""

    def __init__(self, console: PlainConsole) -> None:
        super().__init__(console, TimeElapsedColumn())

    def begins(self, proof: Proof, part: Part) -> Watcher:
        """Return the watcher of a part."""
        return _PartWatcher(self, f"{proof.name}, {part.name}")

    def ended(self, result: dict[str, Any]) -> None:
        """Print the outcome of a proof."""
        self.line(f"{result['name']}: {summary(result)}", _STATES[result["state"]])


class _PartWatcher(Watcher):
    """Shows the progress of one part."""

    def __init__(self, proofs: TerminalProofs, name: str) -> None:
        self.proofs, self.name = proofs, name

    def begins(self, comparison: Comparison, plan: Plan, about: Mapping[str, Any]) -> None:
        finished = sum(comparison.has(trial) for trial in plan.trials)
        line = f"{self.name}: {_planned(plan)}"
        trials = len(plan.trials)
        self.proofs.line(f"{line}, {present(finished, trials)}" if finished else line)
        self.proofs.progress.reset(
            self.proofs.task, total=trials, completed=finished, description=self.name
        )
        if finished < trials:
            self.proofs.progress.start()

    def event(self, event: Event) -> None:
        if event.kind == "failed":
            self.proofs.failed(event.trial.name, event)
        if event.kind in ("finished", "failed"):
            self.proofs.progress.advance(self.proofs.task)

    def interrupted(self) -> None:
        self.proofs.interrupted()


def _planned(plan: Plan) -> str:
    """Return the number of planned trials in words: "2 scores × 3 seeds"."""
    return f"{counted(len(plan.scores), 'score')} × {counted(plan.seeds, 'seed')}"


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
        words.add_row("•", _INTERRUPTED)
    console.print(words, highlight=False)
    _say_where(console, folder)


def show_proofs(console: PlainConsole, record: dict[str, Any], folder: Path) -> None:
    """Print each claim with its checks, and the place of the report."""
    for result in record["proofs"]:
        console.print()
        console.print(result["title"], style="bold", highlight=False)
        console.print(f"{result['source']}: “{' '.join(result['words'].split())}”", highlight=False)
        table = Table("", "claim", "bound", "measured", "interval")
        for check in result["checks"]:
            measured = number(check["mean"], 1), interval(check)
            cells = SIGNS[check["state"]], check["says"], bound(check), *measured
            table.add_row(*cells, style=_STATES[check["state"]])
        console.print(table)
        sentence = summary(result)
        console.print(f"{sentence[0].upper()}{sentence[1:]}.", highlight=False)
    if record["interrupted"]:
        console.print(_INTERRUPTED)
    _say_where(console, folder)


def _say_where(console: PlainConsole, folder: Path) -> None:
    """Print the place of the report."""
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
    table.add_column(percent(verdict["level"]), justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    if costs:
        table.add_column("ms a step", justify="right", no_wrap=True)
    for place, standing in enumerate(verdict["standings"]):
        mean, low, high = (
            number(standing[name], verdict["decimals"]) for name in ("mean", "low", "high")
        )
        interval = "" if standing["low"] is None else f"{low} to {high}"
        cells = [standing["score"], mean, interval, str(len(standing["seeds"]))]
        if costs:
            cost = costs.get(standing["score"])
            cells.append("" if cost is None else f"{cost['median']:.1f}")
        table.add_row(*cells, style="" if place else "bold")
    return table
