"""Shared by all backends: which tasks fused kernels run, and the record of a task for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

from anyscore.backends.reference.run import run
from anyscore.call.backend import FUSED
from anyscore.call.operands import N_DIFFERENTIABLE, Operands, Results, Settings
from anyscore.call.task import Options, Task
from anyscore.kernels import cpu
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.lowered_edges import AnyLowered, LoweredEdges
from anyscore.modifiers.biases import LoweredBias
from anyscore.modifiers.normalizers import Normalizer, Sigmoid
from anyscore.ops import DTYPES, Array, Ops, acc_dtype, accumulated
from anyscore.ops.checks import Sizes
from anyscore.score.factors import Factors
from anyscore.score.outer import FORMULAS, FUNCTIONS, Outer
from anyscore.score.pairs import ABSOLUTE, LEAKY_RELU, PRODUCT, SQUARED, pair_named
from anyscore.score.scales import is_number

STEP = 2
"""The most queries of a decoding step, as in csrc/scorers/scorer.h."""


def why_not(task: Task, has_edges: bool = False) -> str | None:
    """Return why no kernel can run a task; None if a kernel with its pair can.

    has_edges: whether the kernel runs over the edges of a graph.
    """
    f = task.score
    if not has_edges and task.edges is not None:
        return "it does not run over the edges of a graph"
    if task.normalizer != "softmax" and not isinstance(task.normalizer, Sigmoid):
        return "it has no weights but those of the softmax and the sigmoid"
    if not isinstance(f, Factors):
        return "the score is a callable"
    if not is_number(f.scale):
        return "the scale of the score is not a number"
    if task.softcap and f.outer is not None:
        return f"a softcap over {f.outer.label} would be a second outer function"
    counts = f.query_bias is not None and not task.query_bias_cancels
    if counts and (f.pair != PRODUCT or f.a.shape[-1] == 0):
        what = "an outer function" if _outer(task) else "a sigmoid"
        return f"{what} over a query bias is for products"
    if len(task.biases) > 1 and (
        _outer(task) or task.biases[0].diagonal != task.biases[1].diagonal
    ):
        return "it adds one bias, not one before and one after a function, nor two of two kinds"
    return None


def why_not_core(
    xp: Ops,
    task: Task,
    why_not_array: Callable[[Array], str | None] | None = None,
    why_not_now: Callable[[list[Array]], str | None] | None = None,
    has_edges: bool = True,
) -> str | None:
    """Return why the C++ core cannot run a task, None if it can.

    why_not_array: x → the reason that the core cannot reach the memory of x. why_not_now: factors →
    the reason that a mode of the framework keeps the core from reading them. Either is None if
    there is no reason.
    """
    if reason := why_not(task, has_edges) or cpu.problem():
        return reason
    xs = factors(task)
    if reason := why_not_arrays(xp, xs, why_not_array):
        return reason
    return (why_not_now and why_not_now(xs)) or _why_not_formulas(xp, task)


def why_not_arrays(
    xp: Ops, xs: list[Array], why_not_array: Callable[[Array], str | None] | None
) -> str | None:
    """Return why kernels cannot read factors, by memory or dtype; None if they can."""
    for x in xs:
        if why_not_array and (reason := why_not_array(x)):
            return reason
        if (dtype := xp.dtype(x)) not in DTYPES:  # faster here than a call
            return why_not_dtype(dtype)
    return None


def is_step(f: Factors) -> bool:
    """Return whether a call has so few queries that kernels read keys as they are."""
    queries = f.a.shape[-2]
    return isinstance(queries, int) and queries <= STEP


_PARTS = {
    SQUARED: "(a − b)² as a² + b² − 2ab",
    ABSOLUTE: "|a − b| as 2 max(a, b) − a − b",
    LEAKY_RELU: "leaky_relu(a + b) by max(a, −b)",
}
"""Pairs that the core may split, with the parts as plans name them."""


def how_core(task: Task) -> str:
    """Return a plan's sentence about the core's way to run a task.

    For each tile, a bound on the rounding decides whether the pair is split. Decoding steps of one
    or two queries, and edges, use no split pairs.
    """
    f = task.score
    if not isinstance(f, Factors) or task.edges is not None:
        return FUSED
    if is_step(f) or f.pair not in _PARTS:
        return FUSED
    return f"{FUSED}; {_PARTS[f.pair]} where a bound on its rounding allows"


def _why_not_formulas(xp: Ops, task: Task) -> str | None:
    """Return why the C++ core has no pair or outer function of a task, None if it has.

    This check comes last: it may compile a formula.
    """
    pair, outer = cast(Factors, task.score).pair.key, _outer(task)
    if pair in cpu.KEYS and (outer is None or outer.name in FUNCTIONS):
        return None
    xs = [*factors(task), *([] if task.value is None else [task.value])]
    is_double = acc_dtype(xp, *xs) == "float64"
    reason = cpu.why_not_formula(pair, is_double)
    return reason or (None if outer is None else cpu.why_not_formula(outer.name, is_double))


def with_edges_by_key(x: Operands, task: Task) -> Operands:
    """Return operands with the task's edges, if any, also sorted by key, for gradients."""
    if (edges := task.edges) is None:
        return x
    colptr, order, row = edges.by_key
    return x._replace(colptr=colptr, order=order, row=row)


def why_not_dtype(dtype: str) -> str | None:
    """Return why kernels cannot take a factor of this dtype, None if they can."""
    return None if dtype in DTYPES else f"a factor of the score is {dtype}"


def factors(task: Task) -> list[Array]:
    """Return the tensors of a task's factors and biases, except a query bias."""
    f = cast(Factors, task.score)
    found = [x for x in (f.a, f.b, f.weight, f.key_bias) if x is not None]
    return found + [bias.array for bias in task.biases] if task.biases else found


def operands_of(xp: Ops, task: Task, options: Options, seed: Any) -> tuple[Operands, Settings]:
    """Return the record of a task, the arguments of kernels."""
    f, mask, sizes, outer = cast(Factors, task.score), task.mask, task.sizes, _outer(task)
    if f.query_bias is not None and not task.query_bias_cancels:
        f = _with_bias_as_feature(xp, f)
    bounds: tuple[Any, Any, Any] = (None, None, None)
    of_graph: tuple[Any, Any] = (None, None)
    c = None
    if isinstance(mask, LoweredMask):
        bounds = mask.start, mask.stop, mask.mask
    elif mask is not None:
        of_graph, c = (mask.rowptr, mask.col), _edge_terms(xp, task, mask, f)
    p = options.dropout
    seed = xp.seed(seed, like=task.value) if p else None
    bias, diagonal, after = bias_of(xp, task)
    x = Operands(f.a, f.b, f.weight, f.key_bias, task.value, bias, c, *bounds, seed, *of_graph)
    x = x if task.packed is None or c is not None else x._replace(packed=task.packed)
    period = math.prod(sizes.lead)
    return x, Settings(
        f.pair.key, float(f.scale), sizes.groups, float(p), period, sizes.lead,
        *(outer or ("", 0.0)), options.return_scores, diagonal, after,
        *_of_sigmoid(task.normalizer),
    )  # fmt: skip


def keeps_scores(x: Operands, s: Settings) -> bool:
    """Return whether a forward of the core keeps scores for its backward, not the output.

    For at most `cpu.AT_ONCE` and d_v keys, kept scores take no more memory than the output, and the
    backward need not compute them again. The result is False without values, for edges and for
    symbolic sizes. A bias after the outer function hides the values of φ, and values of a formula
    do not show its slopes: the result is False for both.
    """
    hides_slopes = s.outer in FORMULAS or (s.outer and s.bias_after_outer)
    if x.value is None or x.rowptr is not None or hides_slopes:
        return False
    keys, width = x.b.shape[-2], x.value.shape[-1]
    return type(keys) is type(width) is int and 0 < keys <= min(cpu.AT_ONCE, width)


def _outer(task: Task) -> Outer | None:
    """Return the one outer function of a task for kernels, its cap for instance, or None."""
    return Outer("tanh", task.softcap) if task.softcap else cast(Factors, task.score).outer


def _of_sigmoid(normalizer: Normalizer) -> tuple[int, float]:
    """Return `Settings.normalizer` and `.sigmoid_bias`."""
    if not isinstance(normalizer, Sigmoid):
        return 0, 0.0
    return (2, 0.0) if normalizer.bias is None else (1, float(normalizer.bias))


def bias_of(xp: Ops, task: Task) -> tuple[Any, bool, bool]:
    """Return the fields of a task's one `LoweredBias` for kernels; None for no bias."""
    if not task.biases:
        return None, False, False
    one, *other = task.biases
    array = one.array
    if other:
        array = accumulated(xp, array) + accumulated(xp, other[0].array)
    return array, one.diagonal, one.after


def _edge_terms(xp: Ops, task: Task, edges: LoweredEdges, f: Factors) -> Array | None:
    """Return terms of edges with the width of the factors and all leading dimensions, or None."""
    if edges.terms is None:
        return None
    c, width = edges.terms, xp.shape(f.a)[-1]
    if xp.shape(c)[-1] < width:  # a query bias is one more feature
        c = xp.concat([c, 0 * c[..., :1]], -1)
    return xp.broadcast_to(c, (*task.sizes.lead, edges.count, width))


def _with_bias_as_feature(xp: Ops, f: Factors) -> Factors:
    """Return a product with the query bias as one more feature of queries, 1 in all keys.

    Under an outer function or in a sigmoid the bias does not cancel, so kernels need it.
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


def run_reference(xp: Ops, x: Operands, s: Settings) -> Results:
    """Run the reference on the record of a kernel, differentiable to any order.

    Raises:
        ValueError: the record has edges and an origin.
    """
    if x.col is not None and x.origin is not None:
        raise ValueError("origin is for dropout without edges.")
    options = Options(s.dropout, return_scores=s.scores)
    task = _task_of(xp, x, s, acc_dtype(xp, *x[:N_DIFFERENTIABLE]))
    found = run(xp, task, options, x.seed, x.origin)
    return Results(found.output, found.stats, found.scores)


def _task_of(xp: Ops, x: Operands, s: Settings, dtype: str) -> Task:
    """Return the task that a record describes."""
    queries, keys = xp.shape(x.a)[-2], xp.shape(x.b)[-2]
    mask: AnyLowered | None = None
    if x.col is not None:
        edges = LoweredEdges(xp, queries, keys, len(s.lead), x.rowptr, x.col)
        mask = edges if x.c is None else edges.with_terms(x.c)
    elif not (x.start is x.stop is x.mask is None):
        mask = LoweredMask(xp, keys, x.start, x.stop, x.mask)
    sizes = Sizes(s.lead, queries, keys, s.groups)
    outer = Outer(s.outer, s.outer_scale) if s.outer else None
    pair = pair_named(s.pair)
    f = Factors(x.a, x.b, pair, x.weight, s.scale, key_bias=x.key_bias, outer=outer)
    task = Task(f, x.value, mask, mask is None, mask is not None, sizes, dtype)
    bias = () if x.bias is None else (LoweredBias(x.bias, s.bias_is_diagonal, s.bias_after_outer),)
    task = task._replace(biases=bias) if bias else task
    if not s.normalizer:
        return task
    return task._replace(normalizer=Sigmoid(s.sigmoid_bias if s.normalizer == 1 else None))
