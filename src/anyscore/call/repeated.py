"""Calls that come again: where a backend says that it can run them without another look."""

from __future__ import annotations

from typing import Any, Protocol

from anyscore.ops import Array


class Again(Protocol):
    """Repeat calls of default options that came before, lengths apart; and appends to a cache."""

    def run(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any = None
    ) -> Array | None:
        """Return the output, None where the call must be looked at."""

    def learn(
        self, query: Array, key: Any, value: Array, score: Any, valid_lens: Any, task: Any
    ) -> None:
        """Look at a call that was run in full, as the task that it became."""

    def append(self, cache: Any, key: Array, value: Array, score: Any) -> bool:
        """Append tokens to a `growing.Cache` of this score; say whether that could be done so."""

    def learn_append(self, cache: Any, key: Array, value: Array, score: Any, f: Any) -> None:
        """Look at tokens that were appended in full, and at the factors of the score of them."""


KNOWN: dict[type, Again] = {}
"""By the type of the query; a backend that can adds its own when it is loaded."""
