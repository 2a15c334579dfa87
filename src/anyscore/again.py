"""Calls that come again: where a backend says that it can run them without another look."""

from __future__ import annotations

from typing import Any, Protocol

from anyscore.ops import Array


class Again(Protocol):
    """Repeat calls of default options that came before, lengths apart."""

    def run(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any = None
    ) -> Array | None:
        """Return the output, None where the call must be looked at."""

    def learn(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any, task: Any
    ) -> None:
        """Look at a call that was run in full, as the task that it became."""


KNOWN: dict[type, Again] = {}
"""By the type of the query; a backend that can adds its own when it is loaded."""
