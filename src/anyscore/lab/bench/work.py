"""The work of a benchmark: sizes, inputs, and the right answer in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from anyscore.lab.bench.formulas import FORMULAS, Formula
from anyscore.lab.data.memory import free_memory
from anyscore.lab.errors import InputError

W = TypeVar("W", bound="Work")

FORWARD, TRAINING = "forward", "forward + backward"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_CHECKED = {"cpu": 2**28, "cuda": 2**29}  # triples that are computed in float64 for a check
_AT_ONCE = {"cpu": 2**22, "cuda": 2**24}  # of them, held in memory at a time


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
        """Estimate the bytes of inputs, gradients and the check of a single query."""
        tokens = self.queries + 2 * self.keys
        return 24 * self.batch * tokens * (self.width + self.value_width)

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def fitting_shapes(texts: Iterable[str], device: str) -> tuple[Shape, ...]:
    """Read shapes from the command line, each once.

    Raises:
        InputError: a text is no shape, or the memory of this machine does not hold it.
    """
    shapes = tuple(dict.fromkeys(Shape.parse(text) for text in texts))
    for shape in shapes if device == "cpu" else ():
        if shape.least_bytes > free_memory():
            need, free = shape.least_bytes / 2**30, free_memory() / 2**30
            raise InputError(
                f"--shape: ({shape}) needs about {need:,.0f} GiB, there are {free:,.0f}; "
                "give a smaller one"
            )
    return shapes


@dataclass(frozen=True)
class Work:
    """The inputs of one measurement, the same for all contestants.

    query (B, T_q, H), key (B, T_k, H), value (B, T_k, D_v), weight (H,) or (), and upstream (B,
    T_q, D_v), the gradient of the output. All are drawn with fixed seeds. Other work is a subclass,
    with its own fields, inputs and right answer.

    passes: FORWARD, or TRAINING with the gradients of all inputs.
    """

    by_query: ClassVar[frozenset[str]] = frozenset(("query",))
    """Inputs that have rows of queries, (..., T_q, n)."""

    shape: Shape
    score: str = "additive"
    passes: str = FORWARD
    dtype: str = "float32"
    device: str = "cpu"

    def to(self: W, **changes: Any) -> W:
        """Copy with other fields."""
        return replace(self, **changes)

    @property
    def formula(self) -> Formula:
        return FORMULAS[self.score]

    @property
    def training(self) -> bool:
        return self.passes == TRAINING

    @property
    def scores(self) -> int:
        """Count the scores, B × T_q × T_k."""
        return self.shape.batch * self.shape.queries * self.shape.keys

    @property
    def prepared(self) -> bool:
        """Return whether this is a decoder's step, with keys prepared once per sequence."""
        return self.shape.queries <= 2 and self.score == "additive" and not self.training

    @cached_property
    def query(self) -> Tensor:
        return self._normal(1, self.shape.queries, self.shape.width)

    @cached_property
    def key(self) -> Tensor:
        return self._normal(2, self.shape.keys, self.shape.width)

    @cached_property
    def value(self) -> Tensor:
        return self._normal(3, self.shape.keys, self.shape.value_width)

    @cached_property
    def weight(self) -> Tensor:
        return self.weight_of(self.score)

    def weight_of(self, score: str) -> Tensor:
        """Return the weight of a score: drawn (H,), or a number ()."""
        formula, width = FORMULAS[score], self.shape.width
        if not formula.learned:
            return torch.tensor(formula.weight(width))
        return self._placed(drawn(4, width) * formula.weight(width))

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs with gradients, in the order of results."""
        named = {"query": self.query, "key": self.key, "value": self.value}
        return named | ({"weight": self.weight} if self.formula.learned else {})

    def plain(self, score: str, query: Tensor, key: Tensor, *beside: Tensor) -> Tensor:
        """Compute the work in plain PyTorch: the formula, broadcast.

        beside: the other `inputs`, the weight always last. The rows of queries may be a selection.
        """
        *others, weight = beside
        return self.weighed(FORMULAS[score].scores(query, key, weight), *others)

    @property
    def weighed(self) -> Callable[..., Tensor]:
        """The function (scores (B, T_q, T_k), *others) → output, in plain PyTorch."""
        return attended

    def truth(self, score: str) -> dict[str, Tensor]:
        """Compute the right results of `score` in float64, with no code of anyscore.

        A few of `checked_rows` are computed at a time.

        Returns:
            The output and, in training, the gradients by name; a tensor with a row for each query
            has the rows of `checked_rows`.
        """
        inputs = self.inputs | {"weight": self.weight_of(score)}
        leaves = {name: x.double() for name, x in inputs.items()}
        upstream = self.upstream.double()
        few = max(1, _AT_ONCE[self.device] // (self.shape.triples // self.shape.queries))
        by_query: dict[str, list[Tensor]] = {"output": []}
        sums: dict[str, Tensor] = {}
        for rows in torch.split(self.checked_rows.to(self.query.device), few):
            some = [x[..., rows, :] if name in self.by_query else x for name, x in leaves.items()]
            if self.training:
                some = [x.detach().requires_grad_() for x in some]
            output = self.plain(score, *some)
            by_query["output"].append(output.detach())
            if self.training:
                gradients = torch.autograd.grad(output, some, upstream[:, rows])
                for name, gradient in zip(leaves, gradients, strict=True):
                    if name in self.by_query:
                        by_query.setdefault(name, []).append(gradient)
                    else:
                        sums[name] = sums[name] + gradient if name in sums else gradient
        results = sums | {name: torch.cat(each, -2) for name, each in by_query.items()}
        answer = {"output": results["output"]}
        if self.training:
            names = [name for name in leaves if name != "weight" or FORMULAS[score].learned]
            answer |= {f"gradient of the {name}": results[name] for name in names}
        return answer

    @cached_property
    def upstream(self) -> Tensor:
        """The gradient of the output. During a check it is 0 outside `checked_rows`, so the right
        gradients need these rows only. `checking(False)` fills it in place."""
        return self._whole_upstream() * self._kept()

    def _whole_upstream(self) -> Tensor:
        return self._normal(5, self.shape.queries, self.shape.value_width)

    def _kept(self) -> Tensor:
        kept = torch.zeros(self.shape.queries, 1)
        kept[self.checked_rows] = 1
        return self._placed(kept)

    def checking(self, wanted: bool) -> None:
        """Restrict the upstream gradient to the checked rows, or fill it, in place."""
        whole = self._whole_upstream()
        self.upstream.copy_(whole * self._kept() if wanted else whole)

    @cached_property
    def checked_rows(self) -> Tensor:
        """The queries with outputs, and gradients from them, that are compared."""
        rows = max(1, _CHECKED[self.device] // (self.shape.triples // self.shape.queries))
        if rows >= self.shape.queries:
            return torch.arange(self.shape.queries)
        return torch.linspace(0, self.shape.queries - 1, rows).long()

    def checked(self, name: str, x: Tensor, right: Tensor) -> Tensor:
        """Return the checked part of a result: the checked rows of queries, else all."""
        by_query = name == "output" or name.removeprefix("gradient of the ") in self.by_query
        whole = (*right.shape[:-2], self.shape.queries, right.shape[-1])
        if by_query and x.numel() == math.prod(whole):
            x = x.reshape(whole)[..., self.checked_rows.to(x.device), :]
        return x

    def _normal(self, seed: int, length: int, width: int) -> Tensor:
        return self._placed(drawn(seed, self.shape.batch, length, width))

    def _placed(self, x: Tensor) -> Tensor:
        return x.to(self.device, DTYPES[self.dtype])


def attended(scores: Tensor, value: Tensor) -> Tensor:
    """Compute attention from scores."""
    return scores.softmax(-1).to(value.dtype) @ value


def drawn(seed: int, *shape: int) -> Tensor:
    """Return standard normal numbers, the same for the same seed and shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
