"""`Lines` prints lines above a line of progress."""

from __future__ import annotations

from typing import Any

from rich.progress import Progress, ProgressColumn

from anyscore.lab.console import PlainConsole


class Lines:
    """A terminal with lines, above a line of progress.

    Without a terminal only the lines are printed. Output that cannot be written any more does not
    stop the work.
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

    def stop(self) -> None:
        """Remove the line of progress."""
        self.progress.stop()

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
