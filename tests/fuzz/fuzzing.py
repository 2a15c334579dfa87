"""Running a property: a few hundred fixed calls, or others for as long as one likes."""

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
"""Calls that one seed draws in a long run."""


@dataclass(frozen=True)
class Effort:
    """seconds: how long calls are drawn, others at each run; None for the same few each time.

    seed: of the first round, None for one by chance. simplify: whether a call that fails is made as
    simple as can be, which takes a while.
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
        """Checks calls; a failure is reported as the simplest call found that fails that way.

        examples: how many of the fixed calls. share: of the seconds. at_a_time: how many one seed
        draws.
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
            report_multiple_bugs=False,  # looking for a second one takes longer than the round
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
