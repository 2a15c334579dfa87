"""The work of a benchmark: sizes, inputs, and what is computed of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from anyscore.lab.bench.formulas import FORMULAS, Formula
from anyscore.lab.bench.tasks import BY_QUERY, TASKS, Task
from anyscore.lab.errors import InputError

FORWARD, TRAINING = "forward", "forward + backward"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_KINDS = {
    "graph": "graphs.GraphWork",
    "packed": "packed.PackedWork",
    "location": "speech.LocationWork",
}
"""Tasks with inputs and a right answer of their own: the class of their work."""
_CHECKED = {"cpu": 2**28, "cuda": 2**29}  # triples that are computed in float64 for a check


class Shape(NamedTuple):
    """Batch, queries, keys, width of the score, width of the values."""

    batch: int
    queries: int
    keys: int
    width: int
    value_width: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read a shape from the command line: five numbers with commas between them.

        >>> Shape.parse("4,512,512,128,128").triples
        134217728

        Raises:
            InputError: when the text is anything else.
        """
        try:
            sizes = [int(part) for part in text.split(",")]
        except ValueError:
            sizes = []
        if len(sizes) != len(cls._fields) or min(sizes) < 1:
            raise InputError(
                "--shape: expected five whole numbers of 1 or more, B,T_q,T_k,H,D_v (batch, "
                f"queries, keys, width of the score, width of the values), got {text!r}; "
                "for example 4,512,512,128,128"
            )
        return cls(*sizes)

    @property
    def triples(self) -> int:
        """Count the (query, key, feature), the elements that the broadcast formula makes."""
        return self.batch * self.queries * self.keys * self.width

    @property
    def least_bytes(self) -> int:
        """Estimate what inputs, gradients and the check of a single query take."""
        tokens = self.queries + 2 * self.keys
        return 24 * self.batch * tokens * (self.width + self.value_width)

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def _few(x: Tensor) -> Tensor:
    x[..., :4] *= 1e3
    return x


RANGES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "normal": ("standard normal", lambda x: x),
    "wide": ("σ = 50", lambda x: 50 * x),
    "few": ("4 near 1e3", _few),
    "half": ("σ = ½", lambda x: x / 2),
    "four": ("σ = 4", lambda x: 4 * x),
    "eight": ("σ = 8", lambda x: 8 * x),
    "near": ("evenly within ± 2", lambda x: 2 * torch.erf(x / math.sqrt(2))),
}
"""Ranges of queries and keys: the name in words, and standard normal numbers → numbers."""


@dataclass(frozen=True)
class Work:
    """The inputs of one measurement, the same for all that take part.

    query (B, T_q, H), key (B, T_k, H), what the task takes beside, weight (H,) or (), and upstream,
    the gradient that comes from above, of the shape of the output: (B, T_q, D_v) of attention. All
    are the same for the same seed.

    passes: FORWARD or TRAINING, which gives the gradients of all inputs.
    framework: whose calls are compared; None: everybody's who has none of its own.
    call: how the framework calls, "eager" or "compiled".
    projected: or queries and keys are projected by W_q and W_k (H, H) in the call.
    lengths: whether every sequence has a length of its own, of three quarters of T_k or more.
    task: what is computed of the scores, a name in `tasks.TASKS` or of a kind of its own.
    ours: the function that lists anyscore's variants, as "module.name"; None: as of attention.
    """

    ours: ClassVar[str | None] = None

    shape: Shape
    score: str = "additive"
    passes: str = FORWARD
    range: str = "normal"
    dtype: str = "float32"
    device: str = "cpu"
    framework: str | None = None
    call: str = "eager"
    projected: bool = True
    lengths: bool = False
    task: str = "attention"

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Work:
        """Undo `dataclasses.asdict`, also after a journey through JSON."""
        if fields["task"] in _KINDS:
            module, name = _KINDS[fields["task"]].split(".")
            cls = getattr(import_module(f"{__package__}.{module}"), name)
        return cls(**fields | {"shape": Shape(*fields["shape"])})

    def to(self, **changes: Any) -> Work:
        """Copy with other fields."""
        return replace(self, **changes)

    @property
    def formula(self) -> Formula:
        return FORMULAS[self.score]

    @property
    def of_scores(self) -> Task:
        return TASKS[self.task]

    @property
    def training(self) -> bool:
        return self.passes == TRAINING

    @property
    def scores(self) -> int:
        """Count the scores, B × T_q × T_k."""
        return self.shape.batch * self.shape.queries * self.shape.keys

    @property
    def prepared(self) -> bool:
        """Return whether this is a decoder's step, whose keys are prepared once per sequence."""
        step = self.shape.queries <= 2 and self.score == "additive" and not self.training
        return step and self.framework is None and self.task == "attention"

    @cached_property
    def query(self) -> Tensor:
        return self._scaled(self._normal(1, self.shape.queries, self.shape.width))

    @cached_property
    def key(self) -> Tensor:
        return self._scaled(self._normal(2, self.shape.keys, self.shape.width))

    @cached_property
    def value(self) -> Tensor:
        return self._placed(self._normal(3, self.shape.keys, self.shape.value_width))

    @cached_property
    def bias(self) -> Tensor:
        return self._placed(drawn(7, self.shape.queries, self.shape.keys))

    @cached_property
    def prior(self) -> Tensor:
        return self._placed(self._normal(8, self.shape.queries, self.shape.keys))

    @cached_property
    def weight(self) -> Tensor:
        return self.weight_of(self.score)

    @cached_property
    def projections(self) -> tuple[Tensor, ...]:
        """W_q and W_k, (H, H) each, or nothing."""
        width = self.shape.width
        both = drawn(6, 2, width, width) / math.sqrt(2 * width)
        return () if self.projected else tuple(self._placed(both))

    @cached_property
    def valid_lens(self) -> Tensor | None:
        """(B,), int32; None where all keys are read."""
        if not self.lengths:
            return None
        keys = self.shape.keys
        return torch.linspace(keys * 0.75, keys, self.shape.batch).to(self.device, torch.int32)

    def weight_of(self, score: str) -> Tensor:
        """Draw w (H,) of a score, or give the number () that it has."""
        formula, width = FORMULAS[score], self.shape.width
        if not formula.learned:
            return torch.tensor(formula.weight(width))
        return self._placed(drawn(4, width) * formula.weight(width))

    @property
    def inputs(self) -> dict[str, Tensor]:
        """All that have gradients, in the order of results."""
        takes = "query", "key", *self.of_scores.takes
        named: dict[str, Tensor] = {name: getattr(self, name) for name in takes}
        named |= dict(zip(("W_q", "W_k"), self.projections, strict=False))
        return named | ({"weight": self.weight} if self.formula.learned else {})

    @cached_property
    def upstream(self) -> Tensor:
        """The gradient of the output. While answers are checked it is 0 but for `checked_rows`, so
        that these give all that the right gradients need; `restore` makes it whole in place."""
        return self._whole_upstream() * self._kept()

    def _whole_upstream(self) -> Tensor:
        widths = {"values": self.shape.value_width, "keys": self.shape.keys, "one": 1}
        return self._placed(self._normal(5, self.shape.queries, widths[self.of_scores.gives]))

    def _kept(self) -> Tensor:
        kept = torch.zeros(self.shape.queries, 1)
        kept[self.checked_rows] = 1
        return self._placed(kept)

    def checking(self, wanted: bool) -> None:
        """Make the upstream gradient that of a check, or whole, in place."""
        whole = self._whole_upstream()
        self.upstream.copy_(whole * self._kept() if wanted else whole)

    @cached_property
    def checked_rows(self) -> Tensor:
        """The queries whose outputs, and gradients from them, are compared."""
        rows = max(1, _CHECKED[self.device] // (self.shape.triples // self.shape.queries))
        if rows >= self.shape.queries:
            return torch.arange(self.shape.queries)
        return torch.linspace(0, self.shape.queries - 1, rows).long()

    def own_truth(self, score: str) -> dict[str, Tensor] | None:
        """Compute in float64 what is right, as `truth.truth` does, which it leaves to the latter
        where there is nothing special about the work."""
        return None

    def checked(self, name: str, x: Tensor, right: Tensor) -> Tensor:
        """Return what of a result is compared with what is right: of queries, the checked rows."""
        by_query = name == "output" or name.removeprefix("gradient of the ") in BY_QUERY
        whole = (*right.shape[:-2], self.shape.queries, right.shape[-1])
        if by_query and x.numel() == math.prod(whole):
            x = x.reshape(whole)[..., self.checked_rows.to(x.device), :]
        return x

    def _normal(self, seed: int, length: int, width: int) -> Tensor:
        return drawn(seed, self.shape.batch, length, width)

    def _scaled(self, x: Tensor) -> Tensor:
        return self._placed(RANGES[self.range][1](x))

    def _placed(self, x: Tensor) -> Tensor:
        return x.to(self.device, DTYPES[self.dtype])


def drawn(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, the same for the same seed and shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
