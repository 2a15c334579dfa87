"""A rival is described by its variants and by the work that it can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from anyscore.lab.bench.work import Work
from anyscore.lab.data.memory import free_memory

Call = Callable[[], Sequence[Any]]  # the work once: the output, and the gradients when training


class Unavailable(Exception):
    """A rival cannot do this work; the text has the reason in a few words."""


@dataclass(frozen=True)
class Variant:
    """One way to set a rival up. The fastest variant with a right answer is compared.

    compiles: whether the first call at a size compiles something.
    about: further facts for the JSON file.
    """

    how: str
    build: Callable[[], Call]
    compiles: bool = False
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rival:
    """An implementation in a comparison.

    variants: work → its variants, at least one; raises Unavailable where there are none.
    computes: the rival's score, if it differs from the work's; a dot product is compared with every
        score.
    copies: tensors of `Work.scores` × H elements held at once, in a forward pass and in training.
    """

    name: str
    variants: Callable[[Any], list[Variant]]
    computes: str | None = None
    copies: tuple[int, int] = (0, 0)

    def bytes_held(self, work: Work) -> int:
        """Estimate the bytes that the rival needs for the work."""
        return 4 * (self.copies[work.training] * work.scores * work.shape.width + 4 * work.scores)

    def why_not(self, work: Work) -> str | None:
        """Return why this machine cannot do the work; None if it can."""
        held = self.bytes_held(work)
        if held > 0.8 * _free(work.device):
            return f"would need about {held / 2**30:.0f} GiB"
        return None


def _free(device: str) -> int:
    """Return the free bytes of a device."""
    return free_memory() if device == "cpu" else int(torch.cuda.mem_get_info()[0])
