"""`attention`: check, lower, choose, run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

from anyscore import backends
from anyscore.backends.repeated import kind_of_mask, kind_of_score, kind_of_scores
from anyscore.call.autocast import autocast, cast
from anyscore.call.backend import (
    MUCH,
    Adapter,
    Backend,
    Implementation,
    Plan,
    Result,
    choose,
    with_query_bias,
)
from anyscore.call.lowering import prepare
from anyscore.call.prepared import PreparedKeys
from anyscore.call.task import Call, Options, Task
from anyscore.functional import from_scores
from anyscore.functional.layouts import Layout
from anyscore.functional.sharded import Agreement, choose_sharded
from anyscore.modifiers.normalizers import Normalizer, Sigmoid, check_normalizer, normalize
from anyscore.modifiers.sinks import apply_sink, check_sink
from anyscore.ops import Array, Ops
from anyscore.ops.checks import check_options, find_framework
from anyscore.ops.pytrees import named_tuple
from anyscore.score import ScaledDot
from anyscore.score.base import Score
from anyscore.score.checks import check_call


@named_tuple
class AttentionOutput(NamedTuple):
    """Result of `attention` if a `return_*` flag is set.

    Attributes:
        output: (..., T_q, d_v), in the dtype of the query.
        weights: (..., T_q, T_k), before dropout; None without return_weights.
        lse: the log-sum-exp of the scores, (..., T_q), float32 or float64; None without
            return_lse.

    >>> import numpy as np
    >>> from anyscore import attention
    >>> x = np.zeros((2, 4))
    >>> output, weights, lse = attention(x, x, x, return_weights=True)
    >>> weights, lse
    (array([[0.5, 0.5],
           [0.5, 0.5]]), None)
    """

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
    sink: Any = None,
    bias: Any = None,
    bias_after: Any = None,
    normalizer: Normalizer = "softmax",
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
    across: Layout | str | tuple[Layout | None, Layout] | None = None,
) -> Any:
    """Attention with any scoring function.

        output_i = Σ_j softmax_j s(query_i, key_j) · value_j        over the attended keys j

    Args:
        query: (..., T_q, d_q), of any supported framework.
        key: (..., T_k, d_k), or `PreparedKeys`. Leading dimensions broadcast. Axis −3 (rank ≥ 4)
            is heads. Key and value may have fewer heads: query head h uses key head h // (H_q /
            H_kv).
        value: (..., T_k, d_v).
        score: a score object, or a callable (query, key) → (..., T_q, T_k). By default
            `ScaledDot()`.
        mask: mask objects or a boolean array, True = may attend; see `Mask`. By default None.
        valid_lens: the argument of `Lengths`; intersected with `mask`. By default None.
        dropout: rate p in [0, 1). Weights are dropped with probability p; the others are scaled by
            1/(1−p). Always applied. By default 0.
        dropout_seed: an integer. By default None: drawn from the framework's generator.
        softcap: c from 1e-30 to 1e30 caps the scores after scale and biases: s → c · tanh(s / c).
            By default 0, no cap.
        sink: one more logit without a value, so that weights sum to less than 1. A number, or a
            tensor that broadcasts to the leading dimensions (..., heads) of the output. By default
            None. See the page sinks of the documentation.
        bias: added to the scores before the softcap or another outer function. A tensor that
            broadcasts to (..., T_q, T_k), or a bias of positions: `Relative` or `ALiBi`. By
            default None.
        bias_after: the same, added after the outer function.
        normalizer: turns scores into weights: "softmax" (the default), "sigmoid" (or
            `Sigmoid(bias)`), "sparsemax" or "entmax15". See the page normalizers of the
            documentation.
        return_weights: True also returns the weights (..., T_q, T_k), before dropout.
        return_lse: True also returns the log-sum-exp of the scores (..., T_q), sink included, in
            float32 or float64.
        impl: the implementation. With "auto", the default, `plan` says which one runs. With
            "reference" it is the definition in plain operations. With "fused" the call raises,
            with the reason, if no fused implementation can run it. With "separable" a GPU computes
            additive scores of half precision as products, to the rounding of the inputs. Other
            calls raise; see the page separable of the documentation.
        across: the layout of the tokens on several ranks, such as `Contiguous(mesh)` in PyTorch.
            In JAX it is over the name of an axis, inside `jax.shard_map`; the name alone, "cp",
            means `Contiguous("cp")`. Query, key and value are then this rank's tokens, and masks
            and biases count positions of the whole sequence. A pair has a layout of queries and
            one of keys; the first may be None, for all queries on each rank. By default None: all
            tokens are here. See the page ranks of the documentation.

    Returns:
        The output (..., T_q, d_v) in the dtype of the query; `AttentionOutput` if a `return_*`
        flag is set. A query without attended keys has output 0, weights 0, and log-sum-exp −∞ or
        the sink.

    Raises:
        TypeError, ValueError: An argument is wrong. The error comes before any work.
        NotImplementedError: impl="fused" or impl="separable" cannot run the call, or the call does
            not run across ranks.

    Warns:
        UserWarning: No kernels run on the device, and the reference needs 1 GiB or more. There is
            no warning with impl="reference".

    >>> import numpy as np
    >>> from anyscore import attention
    >>> keys, values = np.ones((2, 10, 2)), np.arange(40.0).reshape(1, 10, 4)
    >>> attention(np.ones((2, 1, 2)), keys, values, valid_lens=[2, 6])[:, 0]
    array([[ 2.,  3.,  4.,  5.],
           [10., 11., 12., 13.]])
    """
    repeats = None
    if (
        sink is bias is bias_after is None
        and return_weights is return_lse is False
        and type(dropout) is type(softcap) is float
        and (dropout_seed is None or (dropout > 0.0 and type(dropout_seed) is int))
        and type(impl) is str
        and impl == "auto"
        and across is None
        and isinstance(score, Score)
        and isinstance(normalizer, str | Sigmoid)
    ):
        repeats = backends.repeats(query)
    if repeats is not None:
        kind = _kind(score, mask, softcap, normalizer, dropout)
        if dropout and dropout_seed is None and kind is not None:
            dropout_seed = repeats.arrays.backend.draw_seed(query)
        found = repeats.run(kind, query, key, value, valid_lens, mask, score, dropout_seed)
        if found is not None:
            return found[0]
    call = Call(
        query, key, value, score, mask, valid_lens, softcap, sink, bias, bias_after, normalizer,
        across,
    )  # fmt: skip
    options = Options(dropout, dropout_seed, return_weights, return_lse, impl)
    if value is None:  # `Call.value=None` means "scores only", so refuse it here
        find_framework(query=query, value=value)
    result, task = attend(call, options)
    if repeats is not None:
        repeats.remember(kind, call, task, dropout)
    return result if return_weights or return_lse else result.output


def plan(
    query: Array,
    key: Array,
    value: Array | None = None,
    *,
    score: Score | Callable[[Array, Array], Array] = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    dropout: float = 0.0,
    dropout_seed: Any = None,
    softcap: float = 0.0,
    sink: Any = None,
    bias: Any = None,
    bias_after: Any = None,
    normalizer: Normalizer = "softmax",
    return_weights: bool = False,
    return_lse: bool = False,
    impl: str = "auto",
    across: Layout | str | tuple[Layout | None, Layout] | None = None,
) -> Plan:
    """Return the implementation that `attention` would choose for the arguments, and the reason.

    The call is checked and lowered, projections included, but not run.

    Args:
        query, key: as for `attention`.
        value: as for `attention`. Without a value the plan is that of `scores` and `log_sum_exp`.
        score, mask, valid_lens, dropout, dropout_seed, softcap: as for `attention`.
        sink, bias, bias_after, normalizer, return_weights, return_lse: as for `attention`.
        impl, across: as for `attention`.

    Returns:
        The `Plan`.

    Raises:
        TypeError, ValueError: An argument is wrong.
        NotImplementedError: impl="fused" or impl="separable" cannot run the call, or the call does
            not run across ranks.

    >>> import numpy as np
    >>> from anyscore import plan
    >>> x = np.ones((1, 2, 3))
    >>> plan(x, x, x, score=lambda q, k: q @ k.swapaxes(-1, -2))
    Plan(route='reference', reason='cpu: the score is a callable')
    """
    call = Call(
        query, key, value, score, mask, valid_lens, softcap, sink, bias, bias_after, normalizer,
        across,
    )  # fmt: skip
    options = Options(dropout, dropout_seed, return_weights, return_lse, impl)
    backend, context, task, _ = lower(call, options, alone=True)
    with context():
        found = _choose(backend, task, options)[0]
    is_plain = options._replace(dropout=0.0, dropout_seed=None) == Options()
    repeats = backends.repeats(query) if is_plain and isinstance(score, Score) else None
    if repeats is None or not sink is bias is bias_after is across is None:
        return found
    if value is None:
        kind = kind_of_scores(score, softcap, mask)
    else:
        kind = _kind(score, mask, softcap, normalizer, dropout)
    return replace(found, repeated=repeats.knows(kind, query, key, value))


def _kind(score: Any, mask: Any, softcap: float, normalizer: Normalizer, dropout: float) -> Any:
    """Return the kind of a call for `RepeatedCalls`; hashable; None if it is not repeated."""
    kind = kind_of_score(score)
    if kind is None or (mask is None and softcap == dropout == 0.0 and normalizer == "softmax"):
        return kind
    return kind, softcap, normalizer, dropout, kind_of_mask(mask)


for _function in (attention, plan):  # TensorFlow's AutoGraph skips functions with this attribute
    vars(_function)["autograph_info__"] = None


def attend(call: Call, options: Options) -> tuple[AttentionOutput, Task]:
    """Attend for a layer. Return (result, task); `weights(task)` computes the weights later."""
    backend, context, task, adapter = lower(call, options)
    lse = None
    with context():
        task, result = run(backend, task, options)
        result, attended = complete(backend.xp, task, result)
    output = adapter.give(result.output)
    if options.return_lse:
        lse = adapter.give(backend.xp.add_pair(result.stats), own=0)
    if attended is not None:
        attended = adapter.give_pairs(attended, 0.0)
    return AttentionOutput(output, attended, lse), task


def weights(task: Task) -> Array:
    """Compute the weights (..., T_q, T_k) of a task of `attend`."""
    backend = backends.load(find_framework(score=task.first))
    options = Options(return_scores=True)
    if task.value is not None:
        task = task._replace(value=None)
    with backend.precision(task.first)[0]():
        _, implementation, task = _choose(backend, task, options)
        return complete(backend.xp, task, implementation.run(task, options, None))[1]


Lowered: TypeAlias = tuple[Backend, Callable[[], AbstractContextManager[Any]], Task, Adapter]


def lower(call: Call, options: Options, alone: bool = False) -> Lowered:
    """Check and lower a call. Return (backend, context to compute in, task, adapter).

    alone: whether a call across ranks is lowered without an exchange, for its plan.
    """
    if call.across is None:
        return _lower(call, options, None)
    with Agreement(call.across, call.query, alone) as agreement:
        return _lower(call, options, agreement)


def _lower(call: Call, options: Options, agreement: Agreement | None) -> Lowered:
    check_options(options.dropout, options.dropout_seed, options.impl, call.softcap)
    if type(call.normalizer) is not str or call.normalizer != "softmax":
        check_normalizer(call.normalizer, sink=call.sink, return_lse=options.return_lse)
    query, key, value, score = call[:4]
    prepared = key if isinstance(key, PreparedKeys) else None
    key = key if prepared is None else prepared.key
    value = key if value is None else value  # meets no kernel
    backend = backends.load(find_framework(query=query, key=key, value=value))
    xp, (context, dtype) = backend.xp, backend.precision(query)
    adapter, mask = backend.adapter(query, key, value), call.mask
    if adapter.sequences is not None:
        mask = adapter.sequences if mask is None else adapter.sequences & mask
    (query, key, value), score = adapter.take((query, key, value), score)
    with context() if isinstance(score, Score) else nullcontext():  # a callable keeps its context
        if dtype is not None:
            (query, key, value), score = autocast(xp, dtype, (query, key, value), score)
            prepared = prepared and prepared.map(partial(cast, xp, dtype))
        sizes = check_call(xp, query, key, value, score)
        sink, bias, bias_after = call[7:10]
        if not (sink is bias is bias_after is None):
            (sink, bias, bias_after), _ = adapter.take((sink, bias, bias_after), None)
        if sink is not None:
            check_sink(xp, sink, query, sizes)
        value = None if call.value is None else value
        beside = mask, *call[5:7], sink, bias, bias_after, call.normalizer
        call = Call(query, key, value, score, *beside)

        def trained() -> bool:
            return backend.differentiable(_inputs(query, key, value, score))

        if agreement is None:
            task = prepare(xp, call, sizes, prepared, trained)
        else:
            task = agreement.prepare(backend, call, options, sizes, prepared, trained)
        return backend, context, task, adapter


def run(backend: Backend, task: Task, options: Options) -> tuple[Task, Result]:
    """Choose and run an implementation. Return (the task as it was run, its result)."""
    plan, implementation, task = _choose(backend, task, options)
    if (plan.reference_bytes or 0) >= MUCH and options.impl != "reference":
        _warn(backend, task, plan)
    return task, implementation.run(task, options, _seed(backend, task, options))


def _warn(backend: Backend, task: Task, plan: Plan) -> None:
    """Warn the caller of a function or layer if a task is on a device without kernels."""
    if backend.lacks_kernels(task):
        warnings.warn(
            f"No kernel runs this call: {plan.reason}. Move the tensors to a CPU, which has "
            'kernels, or pass fewer queries at a time; impl="reference" accepts the memory.',
            stacklevel=5,
        )


def _choose(backend: Backend, task: Task, options: Options) -> tuple[Plan, Implementation, Task]:
    """Return (plan, implementation, task); the task changes only across ranks."""
    if task.sink is not None:  # its weight depends on the log-sum-exp
        options = options._replace(return_lse=True)
    if task.sharded is not None:
        return choose_sharded(backend, task, options)
    if task.normalizer != "softmax":
        return from_scores.choose_scores(backend, task, options)
    return *choose(backend, task, options), task


def _seed(backend: Backend, task: Task, options: Options) -> Any:
    """Return the dropout seed of the options, or draw one from the framework's generator."""
    seed = options.dropout_seed
    if seed is None:
        seed = backend.draw_seed(task.value) if options.dropout else None
        return seed if task.sharded is None or seed is None else task.sharded.exchange.first(seed)
    return int(seed) if isinstance(seed, Integral) else seed  # NumPy's may exceed int64


def complete(xp: Ops, task: Task, result: Result) -> tuple[Result, Array | None]:
    """Add the query bias, apply the sink, turn scores into weights.

    Return (result, weights in the dtype of the task and the order of the caller, or None).
    """
    weights = result.weights
    if result.scores is not None:
        weights = normalize(xp, task.normalizer, result.scores, task.boolean, task.edges)
        result = result._replace(scores=None)
    result = with_query_bias(xp, task, result)
    if task.sink is not None:
        align = task.align_with_scores
        stats, output, weights, _ = apply_sink(
            xp, task.sink, result.stats, align, result.output, weights
        )
        result = Result(output, stats)
    if weights is not None:
        weights = task.to_caller_order(xp.astype(weights, task.dtype))
    return result, weights


def _inputs(query: Array, key: Array, value: Array | None, score: Any) -> Iterator[Array]:
    """Yield query, key, value; last the tensors of the score, the slowest to find."""
    yield query
    yield key
    if value is not None:
        yield value
    if isinstance(score, Score):
        yield from score.tensors().values()
        for projection in score.projections().values():
            yield from projection.tensors
