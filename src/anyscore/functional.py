"""`attention`: check, lower, choose, run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

from anyscore import backends, separable
from anyscore.autocast import autocast, cast
from anyscore.checks import check_options, find_framework
from anyscore.factors import Factors
from anyscore.implementations import Backend, Implementation, Plan, Result, choose
from anyscore.ops import Array, Ops
from anyscore.prepared import PreparedKeys
from anyscore.reference import accumulated
from anyscore.score import Score
from anyscore.score_checks import check_call
from anyscore.scores import ScaledDot
from anyscore.task import Call, Options, Task, prepare

_FOR_WEIGHTS = Options(return_lse=True)


class AttentionOutput(NamedTuple):
    """The result of `attention` if a `return_*` flag is set; None stands for what was not asked."""

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
    softcap: float = 0.0,
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
        softcap: c from 1e-30 to 1e30 caps the scores: s becomes c · tanh(s / c), after scale and
            biases and before the softmax; 0 does not.
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
    call = Call(query, key, value, score, mask, valid_lens, softcap)
    options = Options(dropout, dropout_seed, return_weights, return_lse, impl)
    result, *_ = attend(call, options)
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
    softcap: float = 0.0,
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
) -> Plan:
    """Return what `attention` would choose for the same arguments, and why.

    The call is checked and lowered for that, projections included, but not run.

    >>> import numpy as np
    >>> x = np.ones((1, 2, 3))
    >>> plan(x, x, x, score=lambda q, k: q @ k.swapaxes(-1, -2))
    Plan(route='reference', reason='cpu: the score is a callable')
    """
    call = Call(query, key, value, score, mask, valid_lens, softcap)
    options = Options(dropout, dropout_seed, return_weights, return_lse, impl)
    backend, context, task = lower(call, options)
    with context():
        return _choose(backend, task, options)[0]


for _function in (attention, plan):  # AutoGraph of TensorFlow leaves alone what is marked so
    vars(_function)["autograph_info__"] = None


def attend(call: Call, options: Options) -> tuple[AttentionOutput, Task, Array | None]:
    """`attention` for layers: the result, and what `weights` takes to compute the weights later.

    That is the task, and the log-sum-exp that a fused implementation left.
    """
    backend, context, task = lower(call, options)
    with context():
        _, implementation, task = _choose(backend, task, options)
        result = implementation.run(task, options.dropout, _seed(backend, task, options))
        fused_lse = result.lse if result.weights is None else None
        if options.return_weights and result.weights is None:
            result = result._replace(weights=_weights(backend, task, fused_lse))
        result = _with_query_bias(backend.xp, task, result)
    output, lse, attended = backend.wrap(result, call.query)
    found = AttentionOutput(
        output, attended if options.return_weights else None, lse if options.return_lse else None
    )
    return found, task, fused_lse


def weights(task: Task, lse: Array | None = None) -> Array:
    """Compute the weights (..., T_q, T_k) of a task from the log-sum-exp that `attend` left."""
    some = task.score.a if isinstance(task.score, Factors) else task.score
    backend = backends.load(find_framework(score=some))
    with backend.precision(some)[0]():
        return _weights(backend, task, lse)


def lower(
    call: Call, options: Options
) -> tuple[Backend, Callable[[], AbstractContextManager[Any]], Task]:
    """Check and lower a call. Returns its backend, the context to compute in, and the task."""
    check_options(options.dropout, options.dropout_seed, options.impl, call.softcap)
    query, key, value, score = call[:4]
    prepared = key if isinstance(key, PreparedKeys) else None
    key = key if prepared is None else prepared.key
    backend = backends.load(find_framework(query=query, key=key, value=value))
    xp, (context, dtype) = backend.xp, backend.precision(query)
    (query, key, value), score = backend.unwrap((query, key, value), score)
    with context() if isinstance(score, Score) else nullcontext():  # a callable keeps its context
        if dtype is not None:
            (query, key, value), score = autocast(xp, dtype, (query, key, value), score)
            prepared = prepared and prepared.map(partial(cast, xp, dtype))
        sizes = check_call(xp, query, key, value, score)
        call = Call(query, key, value, score, *call[4:])

        def trained() -> bool:
            return backend.differentiable(_inputs(query, key, value, score))

        return backend, context, prepare(xp, call, sizes, prepared, trained)


def _choose(backend: Backend, task: Task, options: Options) -> tuple[Plan, Implementation, Task]:
    """Choose an implementation. Returns the plan, it, and the task that it runs.

    The task is another one where "separable" rewrites an additive score as a product.
    """
    if options.impl == "separable":
        return separable.choose_product(backend, task, options)
    return *choose(backend, task, options), task


def _seed(backend: Backend, task: Task, options: Options) -> Any:
    """Return the dropout seed that was asked for, or draw one from the framework's generator."""
    seed = options.dropout_seed
    if seed is None:
        return backend.draw_seed(task.value) if options.dropout else None
    return int(seed) if isinstance(seed, Integral) else seed  # NumPy's may exceed int64


def _weights(backend: Backend, task: Task, lse: Array | None) -> Array:
    """Compute the weights of a task: fused, if the log-sum-exp is there and none are recorded."""
    f, implementation = task.score, backend.reference
    if lse is not None and isinstance(f, Factors):
        tensors = (x for x in (f.a, f.b, f.weight, f.key_bias, f.query_bias) if x is not None)
        if not backend.differentiable(tensors):
            _, implementation = choose(backend, task, _FOR_WEIGHTS)
    return implementation.weights(task, lse)


def _with_query_bias(xp: Ops, task: Task, result: Result) -> Result:
    """Add the query bias to the log-sum-exp of an implementation, which leaves it out."""
    bias = task.score.query_bias if isinstance(task.score, Factors) else None
    if bias is None or task.softcap:
        return result
    bias = accumulated(xp, bias)
    if task.mask is not None:
        bias = xp.where(task.mask.used[0], bias, 0.0)
    output = result.output + xp.astype(0 * bias[..., None], task.dtype)
    return result._replace(output=output, lse=None if result.lse is None else result.lse + bias)


def _inputs(query: Array, key: Array, value: Array, score: Any) -> Iterator[Array]:
    """Yield query, key, value and the tensors of the score, which cost more to find."""
    yield query
    yield key
    yield value
    if isinstance(score, Score):
        yield from score.tensors().values()
        for projection in score.projections().values():
            yield from projection.tensors
