"""`PlainConsole` prints foreign texts safely; `Lines` prints lines above a line of progress."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from anyscore.lab.phrases import visible


class PlainConsole(Console):
    """A terminal that prints every text, in tables too, without markup, emoji and control codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text that is safe to print; Rich passes all texts through this method."""
        return super().render_str(visible(text), **options)


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
