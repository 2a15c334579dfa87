"""Run a property on a few hundred fixed calls, or on new calls for a given time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.strategies import SearchStrategy

ROUND = 200
"""Number of calls from one seed in a long run."""


@dataclass(frozen=True)
class Effort:
    """seconds: time for new calls in each run; None for the same few calls.

    seed: of the first round; None for a random one. simplify: whether to simplify a failing call,
    which takes a while.
    """

    seconds: float | None = None
    seed: int | None = None
    simplify: bool = True

    def spend(
        self,
        check: Callable[[Any], None],
        calls: SearchStrategy[Any],
        examples: int,
        share: float = 1.0,
        at_a_time: int = ROUND,
    ) -> None:
        """Check calls, and report a failure as the simplest call that fails in the same way.

        examples: number of fixed calls. share: of the seconds. at_a_time: number of calls of one
        seed.
        """
        common: dict[str, Any] = {
            "deadline": None,
            "suppress_health_check": list(HealthCheck),
        }
        if self.seconds is None:
            fixed = settings(
                max_examples=examples, derandomize=True, database=None,
                phases=(Phase.generate, Phase.shrink)[: 1 + self.simplify],
                report_multiple_bugs=self.simplify, **common,
            )  # fmt: skip
            fixed(given(calls)(check))()
            return
        database = DirectoryBasedExampleDatabase(Path(".hypothesis") / "examples")
        many = settings(
            max_examples=at_a_time, derandomize=False, database=database, print_blob=True,
            report_multiple_bugs=False,  # a search for a second one takes longer than the round
            **common,
        )  # fmt: skip
        end, number = time.monotonic() + share * self.seconds, self.seed
        while time.monotonic() < end:
            number = random.SystemRandom().randrange(2**32) if number is None else number
            try:
                seed(number)(many(given(calls)(check)))()
            except BaseException as error:
                error.add_note(f"Again: pytest tests/fuzz --fuzz-minutes=1 --fuzz-seed={number}")
                raise
            number = None
