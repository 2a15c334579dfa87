"""What a rival is: ways to do the same work, of which the fastest is compared."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anyscore.lab.bench.work import FORMULAS, Work

Call = Callable[[], Sequence[Any]]  # the work once: the output, and the gradients when training


class Unavailable(Exception):
    """A rival cannot do this work; the text says why in a few words."""


@dataclass(frozen=True)
class Way:
    """One way to set a rival up. The fastest is the one that is compared.

    compiles: whether the first call at a size compiles something.
    """

    how: str
    build: Callable[[], Call]
    compiles: bool = False


@dataclass(frozen=True)
class Rival:
    """One that does the work.

    ways: for a piece of work; raises Unavailable where there are none.
    computes: the score, if not that of the work: "what would a dot product have cost?"
    scores: those it can do.
    copies: tensors of B × T_q × T_k × H elements held at once, in a forward pass and in training.
    widest: the width up to which it takes part without being asked for by name.
    package: what it needs.
    """

    name: str
    ways: Callable[[Work], list[Way]]
    scores: tuple[str, ...] = tuple(FORMULAS)
    computes: str | None = None
    copies: tuple[int, int] = (0, 0)
    widest: int | None = None
    package: str = "torch"

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def bytes_held(self, work: Work) -> int:
        """About how much memory it takes, for a question before the work is begun."""
        shape = work.shape
        scores = shape.batch * shape.queries * shape.keys
        return 4 * (self.copies[work.training] * shape.triples + 4 * scores)
