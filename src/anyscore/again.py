"""Calls that come again: where a backend says how it runs them without another look.

A backend that can sets both when it is loaded; they see calls of default options alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

run: Callable[[Any, Any, Any, Any], Any] | None = None
"""(query, key, value, score) → the output, None where the call must be looked at."""
learn: Callable[[Any, Any, Any, Any, Any], None] | None = None
"""(query, key, value, score, task), of a call that was looked at."""
