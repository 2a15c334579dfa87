"""`PlainConsole` prints texts from elsewhere as texts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from anyscore.lab.phrases import visible


class PlainConsole(Console):
    """A terminal on which a text, in a table too, is no markup, no emoji and steers nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as it can be printed; all texts pass here."""
        return super().render_str(visible(text), **options)
