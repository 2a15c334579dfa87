"""Shared by all backends: the tasks that fused kernels take, and the record they are given."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, cast

from anyscore.backends import reference
from anyscore.checks import Sizes
from anyscore.factors import PRODUCT, Factors, pair_named
from anyscore.intervals import LoweredMask
from anyscore.kernels import cpu
from anyscore.operands import Operands, Results, Settings
from anyscore.ops import DTYPES, Array, Ops
from anyscore.reference import accumulated
from anyscore.task import Options, Task


def why_not(task: Task) -> str | None:
    """Return why no kernel can run a task, None if one that knows its pair can."""
    f = task.score
    if not isinstance(f, Factors):
        return "the score is a callable"
    if not isinstance(f.scale, Real):
        return "the scale of the score is not a number"
    if task.softcap and f.query_bias is not None and (f.pair != PRODUCT or f.a.shape[-1] == 0):
        return "a softcap over a query bias is for products"
    return None


def why_not_core(task: Task) -> str | None:
    """Return why the C++ core cannot run a task, None if it can."""
    reason = why_not(task)
    if reason is None and (pair := cast(Factors, task.score).pair) not in cpu.PAIRS:
        reason = f"it does not know the pair {pair.name!r}"
    return reason or cpu.problem()


def why_not_dtype(dtype: str) -> str | None:
    """Return why kernels cannot take a factor of this dtype, None if they can."""
    return None if dtype in DTYPES else f"a factor of the score is {dtype}"


def factors(task: Task) -> list[Array]:
    """Return the tensors of the factors of a task, without a query bias."""
    f = cast(Factors, task.score)
    return [x for x in (f.a, f.b, f.weight, f.key_bias) if x is not None]


def call_of(xp: Ops, task: Task, options: Options, seed: Any) -> tuple[Operands, Settings]:
    """Return the record of a task that a kernel takes."""
    f, mask, sizes = cast(Factors, task.score), task.mask, task.sizes
    if task.softcap and f.query_bias is not None:
        f = _with_bias_as_feature(xp, f)
    bounds = (None, None, None) if mask is None else (mask.start, mask.stop, mask.mask)
    p = options.dropout
    seed = xp.seed(seed, like=task.value) if p else None
    x = Operands(f.a, f.b, f.weight, f.key_bias, task.value, *bounds, seed, task.packed)
    period = math.prod(sizes.lead)
    return x, Settings(
        f.pair.name, float(f.scale), sizes.groups, float(p), period, sizes.lead, task.softcap,
        options.with_scores,
    )  # fmt: skip


def _with_bias_as_feature(xp: Ops, f: Factors) -> Factors:
    """Return a product whose query bias is one more feature of its queries, 1 in all keys.

    Where scores are capped the bias does not cancel in the softmax, so that kernels must see it.
    """
    a, bias = accumulated(xp, f.a), accumulated(xp, f.query_bias)
    if f.weight is not None:
        a = a * f.weight[..., None, :]
    if f.scale != 1:
        a = a * f.scale
    column = f.b[..., :1]
    ones = xp.astype(xp.where(column == column, 1.0, 1.0), xp.dtype(f.b))
    lead = xp.shape(xp.sum(a, axis=-1) + bias)
    a, bias = xp.broadcast_to(a, (*lead, xp.shape(a)[-1])), xp.broadcast_to(bias, lead)
    a, b = xp.concat([a, bias[..., None]], -1), xp.concat([f.b, ones], -1)
    return Factors(a, b, f.pair, key_bias=f.key_bias)


def run_reference(xp: Ops, x: Operands, s: Settings, acc_dtype: str) -> Results:
    """Run the reference on the record of a kernel, differentiable to any order."""
    options = Options(s.dropout, with_scores=s.scores)
    found = reference.run(xp, _task_of(xp, x, s, acc_dtype), options, x.seed)
    return Results(found.output, found.lse, found.scores)


def _task_of(xp: Ops, x: Operands, s: Settings, dtype: str) -> Task:
    """Return the task that a record describes."""
    keys = xp.shape(x.b)[-2]
    mask = LoweredMask(xp, keys, x.start, x.stop, x.mask)
    sizes = Sizes(s.lead, xp.shape(x.a)[-2], keys, s.groups)
    f = Factors(x.a, x.b, pair_named(s.pair), x.weight, s.scale, key_bias=x.key_bias)
    some = mask.some
    return Task(f, x.value, mask if some else None, not some, some, sizes, dtype, s.softcap)
