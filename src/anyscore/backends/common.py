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
from anyscore.normalizers import Normalizer, Sigmoid
from anyscore.operands import Operands, Results, Settings
from anyscore.ops import DTYPES, Array, Ops
from anyscore.reference import accumulated
from anyscore.task import Options, Task


def why_not(task: Task, sigmoid: bool = False) -> str | None:
    """Return why no kernel can run a task, None if one that knows its pair can.

    sigmoid: whether the kernel has that besides the softmax.
    """
    f = task.score
    if task.normalizer != "softmax" and not (sigmoid and isinstance(task.normalizer, Sigmoid)):
        return "it has no weights but those of the softmax" + " and the sigmoid" * sigmoid
    if not isinstance(f, Factors):
        return "the score is a callable"
    if not isinstance(f.scale, Real):
        return "the scale of the score is not a number"
    if task.query_bias_cancels or f.query_bias is None:
        return None
    if f.pair != PRODUCT or f.a.shape[-1] == 0:
        return "a query bias that does not cancel is for products"
    return None


def why_not_core(task: Task) -> str | None:
    """Return why the C++ core cannot run a task, None if it can."""
    reason = why_not(task, sigmoid=True)
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
    if not task.query_bias_cancels and f.query_bias is not None:
        f = _with_bias_as_feature(xp, f)
    bounds = (None, None, None) if mask is None else (mask.start, mask.stop, mask.mask)
    p = options.dropout
    seed = xp.seed(seed, like=task.value) if p else None
    x = Operands(f.a, f.b, f.weight, f.key_bias, task.value, *bounds, seed, task.packed)
    period = math.prod(sizes.lead)
    of_sigmoid = _of_sigmoid(task.normalizer)
    return x, Settings(
        f.pair.name, float(f.scale), sizes.groups, float(p), period, sizes.lead, task.softcap,
        options.with_scores, *of_sigmoid,
    )  # fmt: skip


def _of_sigmoid(normalizer: Normalizer) -> tuple[int, float]:
    """Return `Settings.normalizer` and `.bias`."""
    if not isinstance(normalizer, Sigmoid):
        return 0, 0.0
    return (2, 0.0) if normalizer.bias is None else (1, float(normalizer.bias))


def _with_bias_as_feature(xp: Ops, f: Factors) -> Factors:
    """Return a product whose query bias is one more feature of its queries, 1 in all keys.

    Where the bias does not cancel, in capped scores or the sigmoid, kernels must see it.
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
    normalizer = (
        (Sigmoid(s.bias) if s.normalizer == 1 else Sigmoid()) if s.normalizer else "softmax"
    )
    return Task(
        f, x.value, mask if some else None, not some, some, sizes, dtype, s.softcap,
        normalizer=normalizer,
    )  # fmt: skip
