"""`PlainConsole` prints foreign texts without markup and control characters."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from anyscore.lab.phrases import visible


class PlainConsole(Console):
    """A terminal that prints every text, in tables too, without markup, emoji and control codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text that is safe to print; Rich passes all texts through this method."""
        return super().render_str(visible(text), **options)
