"""Which tasks the C++ core takes, whatever the framework."""

from __future__ import annotations

from numbers import Real

from anyscore.factors import Factors
from anyscore.kernels import cpu
from anyscore.ops import Array
from anyscore.task import Task


def obstacle(task: Task) -> str | None:
    """Why the core cannot run a task, None if it can."""
    f = task.score
    if not isinstance(f, Factors):
        return "the score is a callable"
    if f.pair not in cpu.PAIRS:
        return f"it does not know the pair {f.pair.name!r}"
    if not isinstance(f.scale, Real):
        return "the scale of the score is not a number"
    return cpu.problem()


def tensors(f: Factors) -> list[Array]:
    """Those of the factors that a derivative may be taken with respect to."""
    return [x for x in (f.a, f.b, f.weight, f.key_bias) if x is not None]
