"""What all backends share about fused kernels: which tasks they take, and in what form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from anyscore import definition
from anyscore.checks import Sizes
from anyscore.factors import Factors, pair_named
from anyscore.intervals import LoweredMask
from anyscore.kernels import cpu
from anyscore.ops import Array, Ops
from anyscore.task import Task

_EVERYTHING = LoweredMask()


@dataclass(frozen=True)
class Settings:
    """What the core is told beside arrays; plain numbers.

    groups: query heads per key/value head. period: dropout counts leading indices modulo it. lead:
    the leading dimensions of the output.
    """

    pair: str
    scale: float
    groups: int
    dropout: float
    period: int
    lead: tuple[int, ...]


def settings(task: Task, dropout: float) -> Settings:
    """Those of a task that the core takes."""
    f, sizes = cast(Factors, task.score), task.sizes
    period = math.prod(sizes.lead)
    return Settings(f.pair.name, float(f.scale), sizes.groups, float(dropout), period, sizes.lead)


def unfit(task: Task) -> str | None:
    """Why no kernel can run a task, None if one that knows its pair can."""
    if not isinstance(task.score, Factors):
        return "the score is a callable"
    if not isinstance(task.score.scale, Real):
        return "the scale of the score is not a number"
    return None


def obstacle(task: Task) -> str | None:
    """Why the core cannot run a task, None if it can."""
    reason = unfit(task)
    if reason is None and (pair := unpack(task)[0].pair) not in cpu.PAIRS:
        reason = f"it does not know the pair {pair.name!r}"
    return reason or cpu.problem()


def unpack(task: Task) -> tuple[Factors, LoweredMask]:
    """The factors of a task that the core takes, and who attends."""
    return cast(Factors, task.score), task.attendable or _EVERYTHING


def tensors(f: Factors) -> list[Array]:
    """Those of the factors that a derivative may be taken with respect to."""
    return [x for x in (f.a, f.b, f.weight, f.key_bias) if x is not None]


def task_of(xp: Ops, settings: Settings, inputs: list[Any], mask: LoweredMask, dtype: str) -> Task:
    """A task of (a, b, weight, key_bias, value) again, without the query bias."""
    a, b, weight, key_bias, value = inputs
    return Task(
        Factors(a, b, pair_named(settings.pair), weight, settings.scale, key_bias=key_bias),
        value,
        mask if mask.some else None,
        zeroed=not mask.some,
        mixed=mask.some,
        sizes=Sizes(settings.lead, xp.shape(a)[-2], xp.shape(b)[-2], settings.groups),
        dtype=dtype,
    )


def by_definition(
    xp: Ops, settings: Settings, inputs: list[Any], mask: LoweredMask, seed: Any, dtype: str
) -> tuple[Array, Array]:
    """Output and log-sum-exp of (a, b, weight, key_bias, value) as the definition has them."""
    task = task_of(xp, settings, inputs, mask, dtype)
    output, _, lse = definition.run(xp, task, settings.dropout, seed)
    return output, lse
