"""`Lines` prints lines above a line of progress."""

from __future__ import annotations

from typing import Any

from rich.progress import Progress, ProgressColumn

from anyscore.lab.console import PlainConsole
from anyscore.lab.phrases import counted

HALF_MINUTE = 30.0  # seconds


class Lines:
    """A terminal with lines, above a line of progress.

    Output that is no terminal has lines alone; `advance` adds one every half minute. Output that
    cannot be written any more does not stop the work.
    """

    def __init__(
        self, console: PlainConsole, *columns: ProgressColumn, refresh_per_second: float = 10
    ) -> None:
        self.console = console
        self.muted = False
        self.progress = Progress(
            *columns,
            console=console,
            transient=True,
            refresh_per_second=refresh_per_second,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=None)
        self._told = self.progress.get_time()

    def stop(self) -> None:
        """Remove the line of progress."""
        self.progress.stop()

    def advance(self, completed: float, description: str, most: float | None = None) -> None:
        """Show how much of the task's total is done, and how long the rest will take.

        Args:
            most: limit of the whole task in minutes.
        """
        self.progress.update(self.task, completed=completed, description=description)
        (task,) = self.progress.tasks
        now = self.progress.get_time()
        if self.console.is_terminal or now - self._told < HALF_MINUTE:
            return
        self._told = now
        elapsed = (task.elapsed or 0.0) / 60
        if completed and task.total:
            minutes = elapsed * (task.total / completed - 1)
            if most is not None:
                minutes = max(0.0, min(minutes, most - elapsed))
            words = f"about {counted(round(minutes), 'minute')}"
            left = words if minutes >= 1 else "less than a minute"
            self.line(f"{task.percentage:.0f} % done, {left} left")

    def line(self, text: str, style: str = "") -> None:
        """Print a line."""
        self.show(text, style=style, highlight=False, soft_wrap=True)

    def show(self, *content: Any, **options: Any) -> None:
        """Print, unless the output cannot be written any more."""
        if self.muted:
            return
        try:
            self.console.print(*content, **options)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk is no reason to lose the work
            self.muted = True
