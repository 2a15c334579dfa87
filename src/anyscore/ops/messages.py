"""The text of a value in the message of an error: on one line, and not at length."""

from __future__ import annotations

_MOST = 60


def shown(x: object) -> str:
    """Give `repr(x)` with its lines joined, cut where it becomes long."""
    text = " ".join(repr(x).split())
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"
