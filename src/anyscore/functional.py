"""`attention`: check, lower, plan, run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

from anyscore import backends, definition, ops, reference, separable
from anyscore.autocast import autocast, cast
from anyscore.cache import PreparedKeys
from anyscore.checks import check_options, find_framework
from anyscore.factors import Factors
from anyscore.implementations import Backend, Implementation, Plan, choose, kinds_of
from anyscore.ops import Array, Ops
from anyscore.score import Score
from anyscore.score_checks import check_call
from anyscore.scores import ScaledDot
from anyscore.task import Task, prepare


class AttentionOutput(NamedTuple):
    """What `attention` returns if a `return_*` flag is set: None for what was not asked."""

    output: Array
    weights: Array | None = None
    lse: Array | None = None


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    score: Score | Callable[[Array, Array], Array] = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
) -> Any:
    """Attention with any scoring function.

        output_i = Σ_j softmax_j s(query_i, key_j) · value_j        over the attended keys j

    Args:
        query: (..., T_q, d_q), of any supported framework.
        key: (..., T_k, d_k), or what `prepare_keys` made of it. Leading dimensions broadcast; axis
            −3 (rank ≥ 4) is heads, and there key and value may have fewer: query head h uses head
            h // (H_q / H_kv).
        value: (..., T_k, d_v).
        score: a score object, or a callable (query, key) → (..., T_q, T_k).
        mask: mask objects or a boolean array, True = may attend; see `anyscore.masks`.
        valid_lens: as `Lengths`; intersected with `mask`.
        dropout: rate p in [0, 1) on the weights, which are scaled by 1/(1−p); always applied.
        dropout_seed: an integer; drawn from the framework's generator if None.
        return_weights: also give the weights (..., T_q, T_k), before dropout.
        return_lse: also give the log-sum-exp of the scores (..., T_q), float32 or better.
        impl: "auto" chooses; "reference" is the definition in plain operations; "fused" raises,
            with the reason, where no fused implementation keeps the contract; "separable" computes
            additive scores to three digits as a product, see docs/separable.md, or raises too.

    Returns:
        The output (..., T_q, d_v), in the dtype of the query; `AttentionOutput` if a `return_*`
        flag is set. A query that may attend to nothing gives output 0, weights 0, log-sum-exp −∞.

    Raises:
        TypeError, ValueError: on wrong input, before any work.
        NotImplementedError: if impl="fused" or impl="separable" cannot run.

    >>> import numpy as np
    >>> keys = np.ones((2, 10, 2)); values = np.arange(40.0).reshape(1, 10, 4).repeat(2, axis=0)
    >>> attention(np.ones((2, 1, 2)), keys, values, valid_lens=[2, 6])[:, 0]
    array([[ 2.,  3.,  4.,  5.],
           [10., 11., 12., 13.]])
    """
    result, *_ = attend(
        query, key, value, score, mask, valid_lens, dropout, dropout_seed,
        return_weights, return_lse, impl,
    )  # fmt: skip
    return result if return_weights or return_lse else result.output


def plan(
    query: Array,
    key: Array,
    value: Array,
    *,
    score: Score | Callable[[Array, Array], Array] = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
) -> Plan:
    """What `attention` would choose for the same arguments, and why.

    The call is checked and lowered for that, projections included, but not run.

    >>> import numpy as np
    >>> x = np.ones((1, 2, 3))
    >>> plan(x, x, x, score=lambda q, k: q @ k.swapaxes(-1, -2))
    Plan(route='reference', reason='cpu: the score is a callable')
    """
    check_options(dropout, dropout_seed, impl)
    xp, backend, own, task = lower(query, key, value, score, mask, valid_lens)
    with own():
        return _choose(xp, backend, task, dropout, return_lse, impl)[0]


for _function in (attention, plan):  # AutoGraph of TensorFlow leaves alone what is marked so
    vars(_function)["autograph_info__"] = None


def attend(
    query: Array,
    key: Array,
    value: Array,
    score: Any,
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
) -> tuple[AttentionOutput, Task, Array | None]:
    """`attention` for layers: the result, and with what `weights` can be had later.

    That is the task, and the log-sum-exp that a fused implementation left.
    """
    check_options(dropout, dropout_seed, impl)
    xp, backend, own, task = lower(query, key, value, score, mask, valid_lens)
    with own():
        _, route, task = _choose(xp, backend, task, dropout, return_lse, impl)
        if dropout and dropout_seed is None:
            dropout_seed = backend.draw_seed(task.value)
        elif dropout_seed is not None and isinstance(dropout_seed, Integral):
            dropout_seed = int(dropout_seed)  # of NumPy perhaps, beyond what int64 holds
        if route is None:
            left = None
            output, attended, lse = definition.run(xp, task, dropout, dropout_seed)
        else:
            output, left = route.run(task, dropout, dropout_seed)
            attended = _weights(xp, backend, task, left) if return_weights else None
            output, lse = _with_query_bias(xp, task, output, left)
    if not return_weights:
        attended = None
    result = AttentionOutput(output, attended, lse if return_lse else None)
    kinds = kinds_of(backend)
    if kinds is not None:
        result = AttentionOutput(*(x if x is None else kinds.leave(x, query) for x in result))
    return result, task, left


def _choose(
    xp: Ops, backend: Backend, task: Task, dropout: float, return_lse: bool, impl: str
) -> tuple[Plan, Implementation | None, Task]:
    """What runs a task, and the task that it runs."""
    if impl == "separable":
        return separable.choose_product(xp, backend, task, dropout, return_lse)
    return *choose(backend, task, dropout, return_lse, impl), task


def weights(task: Task, lse: Array | None = None) -> Array:
    """The weights (..., T_q, T_k) of a task; lse: what a fused implementation left, if one ran."""
    some = task.score.a if isinstance(task.score, Factors) else task.score
    xp, backend = find(some, some, some)
    own, _ = backend.precision(some)
    with own():
        return _weights(xp, backend, task, lse)


def _weights(xp: Ops, backend: Backend, task: Task, lse: Array | None) -> Array:
    f = task.score
    if lse is not None and isinstance(f, Factors):
        route = choose(backend, task, 0.0, True, "auto")[1]
        tensors = (x for x in (f.a, f.b, f.weight, f.key_bias) if x is not None)
        if route is not None and route.weights is not None and not backend.differentiable(tensors):
            return route.weights(task, lse)
    return definition.weights(xp, task)


def _with_query_bias(
    xp: Ops, task: Task, output: Array, lse: Array | None
) -> tuple[Array, Array | None]:
    """A query bias cancels in the softmax, and adds to the log-sum-exp."""
    bias = task.score.query_bias if isinstance(task.score, Factors) else None
    if bias is None:
        return output, lse
    bias = reference.accumulated(xp, bias)
    if task.attendable is not None:
        bias = xp.where(task.attendable.used(xp, task.sizes.keys)[0], bias, 0.0)
    output = output + xp.astype(0 * bias[..., None], task.dtype)
    return output, None if lse is None else lse + bias


def _inputs(*tensors_and_score: Any) -> Iterator[Array]:
    """Query, key, value and the tensors of the score, one by one."""
    *tensors, score = tensors_and_score
    yield from tensors
    if isinstance(score, Score):
        yield from score.tensors().values()
        for projection in score.projections().values():
            yield from projection.tensors


def find(query: Array, key: Array, value: Array) -> tuple[Ops, Backend]:
    """The operations and the backend of the framework that all three belong to."""
    name = find_framework(query=query, key=key, value=value)
    return ops.load(name), backends.load(name)


def lower(
    query: Array, key: Array, value: Array, score: Any, mask: Any, valid_lens: Any
) -> tuple[Ops, Backend, Callable[[], AbstractContextManager[Any]], Task]:
    """Check and lower a call. Returns its operations, its backend, its context and the task."""
    prepared = key if isinstance(key, PreparedKeys) else None
    key = key if prepared is None else prepared.key
    xp, backend = find(query, key, value)
    own, dtype = backend.precision(query)
    kinds = kinds_of(backend)
    if kinds is not None:
        (query, key, value), score = kinds.enter((query, key, value), score)
    with own() if isinstance(score, Score) else nullcontext():  # a callable keeps its context
        if dtype is not None:
            (query, key, value), score = autocast(xp, dtype, (query, key, value), score)
            prepared = prepared and prepared.map(partial(cast, xp, dtype))
        sizes = check_call(xp, query, key, value, score)
        task = prepare(
            xp, sizes, query, key, value, score, mask, valid_lens,
            backend.differentiable(_inputs(query, key, value, score)), prepared,
        )  # fmt: skip
        return xp, backend, own, task
