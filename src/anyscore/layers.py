"""What the layers of all frameworks share: the names of scores, their parameters, old names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anyscore.checks import OF_KEYS
from anyscore.factors import Factors
from anyscore.ops import Array, Ops
from anyscore.score import Init, Score
from anyscore.scores import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    Laplace,
    ScaledDot,
    Trilinear,
)
from anyscore.task import Task

SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "bilinear": Bilinear,
    "cosine": Cosine,
    "trilinear": Trilinear,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "additive": Additive,
    "concat": Concat,
    "gatv2": GATv2,
}
"""The names that layers and the command line know scores by."""

PROJECTIONS = "W_q", "W_k"
"""Parameters left out where queries and keys come already projected."""

OLD_NAMES = {
    "W_v.weight": "w_v.weight",
    "v.weight": "w_v.weight",
    "w.weight": "W.weight",
    "w.bias": "bias.weight",
    "W.bias": "bias.weight",
    "W_q.bias": "bias.weight",
}
"""Names in state dicts of *Dive into Deep Learning* and its relatives → ours."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a layer.

    field: the field of the score that it fills. init: its shape in the layer and how it starts.
    row: whether a vector is kept as one row, as a linear layer with one output would.
    """

    field: str
    init: Init
    row: bool = False

    @property
    def logarithm(self) -> bool:
        """Whether the logarithm is kept, of what must stay positive."""
        return self.field in ("sigma", "tau")

    @property
    def name(self) -> str:
        return f"log_{self.field}" if self.logarithm else self.field


def find_score(name: str) -> type[Score]:
    """The score of a name; an unknown one is refused with the nearest."""
    if name in SCORES:
        return SCORES[name]
    near = difflib.get_close_matches(name.lower(), SCORES, n=1, cutoff=0.0)[0]
    raise ValueError(f"unknown score {name!r}: did you mean {near!r}? Known: {', '.join(SCORES)}.")


def specify(
    score: type[Score],
    d_q: int,
    d_k: int,
    *,
    hidden: int | None = None,
    bias: bool = False,
    heads: int | None = None,
    kv_heads: int | None = None,
    projected: bool = False,
    numbers: Mapping[str, float] | None = None,
) -> tuple[list[Parameter], dict[str, float | None]]:
    """The parameters that a layer creates for a score, in order, and its fields that have none.

    numbers: fields that are given, not learned.
    """
    if hidden is None:
        if not projected and any("h" in shape for shape in score.shapes.values()):
            raise ValueError(f"{score.__name__} needs hidden=, the width of its hidden layer.")
        hidden = d_q
    filled: dict[str, Init | float | None] = {**score.parameters(d_q, d_k, hidden)}
    if bias and "bias" not in score.shapes:
        raise ValueError(f"{score.__name__} has no bias: leave out bias=True.")
    if "bias" in score.shapes:
        filled["bias"] = Init((hidden,)) if bias else None
    if projected:
        filled |= {name: None for name in PROJECTIONS if name in score.shapes}
    for name, number in (numbers or {}).items():
        if score.shapes.get(name) != ():
            scales = [field for field, shape in score.shapes.items() if shape == ()]
            raise TypeError(
                f"{score.__name__} has no scale {name!r}; it has {', '.join(scales) or 'none'}."
            )
        filled[name] = number
    if heads != kv_heads and score is Concat:
        raise ValueError("Concat cannot have fewer key heads than query heads: use Additive.")
    made, fixed = [], {}
    for field, init in filled.items():
        if not isinstance(init, Init):
            fixed[field] = init
            continue
        own = kv_heads if field in OF_KEYS else heads
        row = field == "w_v" and own is None
        if own is not None or row:
            init = replace(init, shape=(own or 1, *init.shape))
        made.append(Parameter(field, init, row))
    return made, fixed


def build(
    xp: Ops,
    score: type[Score],
    fixed: Mapping[str, float | None],
    values: Iterable[tuple[Parameter, Array]],
) -> Score:
    """The score from the parameters of a layer and the fields that have none."""
    made: dict[str, Any] = dict(fixed)
    for parameter, x in values:
        made[parameter.field] = x[0] if parameter.row else xp.exp(x) if parameter.logarithm else x
    return score(**made)


def rename(state: dict[str, Any], prefix: str, names: Iterable[str]) -> None:
    """Give the entries of a state dict under `prefix` the names of ours that are missing."""
    for key in [key for key in state if key.startswith(prefix)]:
        old = key[len(prefix) :].removeprefix("score.")
        ours = OLD_NAMES.get(old, old)
        if ours in names and prefix + ours not in state:
            state[prefix + ours] = state.pop(key)


def snapshot(xp: Ops, task: Task) -> Task:
    """What `weights` needs of a task, without its graph, safe from later changes to parameters."""

    def still(x: Array | None) -> Any:
        return None if x is None else xp.stop_gradient(x)

    f = task.score
    if isinstance(f, Factors):
        weight = None if f.weight is None else still(f.weight) * 1
        f = Factors(still(f.a), still(f.b), f.pair, weight, f.scale, None, still(f.key_bias))
    else:
        f = still(f)
    return Task(f, None, task.attendable, task.zeroed, task.mixed, task.sizes, task.dtype)
