"""Numbers and names in words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def listed(names: Sequence[str]) -> str:
    """As in "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def visible(text: str) -> str:
    """The text without what would steer a terminal; line ends stay."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c != "\n" else c for c in text)


def counted(number: int, noun: str) -> str:
    """As in "1 thread" and "1,000 items"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
