"""The matrix of scores and its log-sum-exp, without values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyscore import backends
from anyscore.backends.repeated import kind_of_scores
from anyscore.call.backend import with_query_bias
from anyscore.call.task import Call, Options, Task
from anyscore.functional.attention import lower, run
from anyscore.functional.layouts import Layout
from anyscore.modifiers.sinks import apply_sink
from anyscore.ops import Array, Ops
from anyscore.score import ScaledDot
from anyscore.score.base import Score

_Score = Score | Callable[[Array, Array], Array]


def scores(
    query: Array,
    key: Array,
    *,
    score: _Score = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    softcap: float = 0.0,
    bias: Any = None,
    bias_after: Any = None,
    impl: str = "auto",
) -> Array:
    """Return the matrix of scores s(query_i, key_j), the logits of the softmax of `attention`.

    A fused implementation needs memory for queries × keys, forward and backward, never times the
    width of the score.

    Args:
        query: (..., T_q, d_q), of any supported framework.
        key: (..., T_k, d_k), or `PreparedKeys`. Leading dimensions and heads as for `attention`.
        score: a score object, or a callable (query, key) → (..., T_q, T_k). By default
            `ScaledDot()`.
        mask, valid_lens, softcap, bias, bias_after, impl: as for `attention`.

    Returns:
        Scores (..., T_q, T_k), float32 or float64; −∞ where the mask forbids a key.

    Raises:
        TypeError, ValueError: An argument is wrong. The error comes before any work.
        NotImplementedError: impl="fused" or impl="separable" cannot run the call.

    >>> import numpy as np
    >>> from anyscore import Gaussian, scores
    >>> frames, texts = np.array([[0.0], [1.0], [2.0]]), np.array([[0.0], [2.0]])
    >>> 0 - 2 * scores(frames, texts, score=Gaussian())     # squared distances
    array([[0., 4.],
           [1., 1.],
           [4., 0.]])
    """
    repeats = None
    if bias is bias_after is None and impl == "auto" and isinstance(score, Score):
        repeats = backends.repeats(query)
    if repeats is not None:
        kind = kind_of_scores(score, softcap, mask)
        found = repeats.run(kind, query, key, None, valid_lens, mask, score)
        if found is not None:
            return found[0]
    call = Call(query, key, None, score, mask, valid_lens, softcap, None, bias, bias_after)
    matrix, _, task = attend_to_scores(call, Options(return_scores=True, impl=impl))
    if repeats is not None:
        repeats.remember(kind, call, task)
    return matrix


def log_weights(
    query: Array,
    key: Array,
    *,
    score: _Score = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    softcap: float = 0.0,
    sink: Any = None,
    bias: Any = None,
    bias_after: Any = None,
    impl: str = "auto",
) -> Array:
    """Return the logarithm of the attention weights, a log-softmax of the scores.

        log_weights_ij = s(query_i, key_j) − log Σ_l e^s(query_i, key_l)    over the attended keys l

    Args:
        query, key, score: as for `scores`.
        mask, valid_lens, softcap, bias, bias_after, impl: as for `attention`.
        sink: as for `attention`; e^sink is one more term of the sum.

    Returns:
        Logarithms (..., T_q, T_k), float32 or float64; −∞ where the mask forbids a key.

    Raises:
        TypeError, ValueError: An argument is wrong. The error comes before any work.
        NotImplementedError: impl="fused" or impl="separable" cannot run the call.

    >>> import numpy as np
    >>> from anyscore import log_weights
    >>> np.exp(log_weights(np.ones((2, 3)), np.ones((4, 3)), valid_lens=2))
    array([[0.5, 0.5, 0. , 0. ],
           [0.5, 0.5, 0. , 0. ]])
    """
    call = Call(query, key, None, score, mask, valid_lens, softcap, sink, bias, bias_after)
    return attend_to_scores(call, Options(return_scores=True, impl=impl), logarithms=True)[0]


def log_sum_exp(
    query: Array,
    key: Array,
    *,
    score: _Score = ScaledDot(),  # noqa: B008 (frozen)
    mask: Any = None,
    valid_lens: Any = None,
    softcap: float = 0.0,
    sink: Any = None,
    bias: Any = None,
    bias_after: Any = None,
    impl: str = "auto",
    across: Layout | str | tuple[Layout | None, Layout] | None = None,
) -> Array:
    """Return the log-sum-exp of the scores over the attended keys, in memory for queries + keys.

        log_sum_exp_i = log Σ_j e^s(query_i, key_j)        over the attended keys j

    Contrastive losses, kernel density estimates and optimal transport need the log-sum-exp alone.
    See the page score_matrix of the documentation.

    Args:
        query, key, score: as for `scores`.
        mask, valid_lens, softcap, bias, bias_after, impl: as for `attention`.
        sink: as for `attention`; e^sink is one more term of the sum.
        across: as for `attention`.

    Returns:
        Log-sum-exp (..., T_q), float32 or float64; −∞ or the sink for a query without attended
        keys.

    Raises:
        TypeError, ValueError: An argument is wrong. The error comes before any work.
        NotImplementedError: impl="fused" or impl="separable" cannot run the call.

    >>> import numpy as np
    >>> from anyscore import log_sum_exp
    >>> np.exp(log_sum_exp(np.ones((2, 3)), np.zeros((4, 3)), valid_lens=[4, 2]))
    array([4., 2.])
    """
    beside = mask, valid_lens, softcap, sink, bias, bias_after
    call = Call(query, key, None, score, *beside, across=across)
    return attend_to_scores(call, Options(return_lse=True, impl=impl))[1]


for _function in (scores, log_weights, log_sum_exp):  # as for `attention`
    vars(_function)["autograph_info__"] = None


def attend_to_scores(
    call: Call, options: Options, logarithms: bool = False
) -> tuple[Array, Array, Task]:
    """Compute scores for a layer. Return (scores or logarithms of weights, log-sum-exp, task)."""
    backend, context, task, adapter = lower(call, options)
    xp = backend.xp
    with context():
        task, result = run(backend, task, options)
        logs = None
        if logarithms:  # the query bias cancels in logarithms of weights
            logs = _log_softmax(xp, task, result.scores, result.stats)
            result = result._replace(scores=None)
        result = with_query_bias(xp, task, result)
        stats = result.stats
        if task.sink is not None:
            align = task.align_with_scores
            stats, *_, logs = apply_sink(xp, task.sink, stats, align, log_weights=logs)
        if logs is not None and task.boolean is not None:  # mask again: −∞ − NaN would be NaN
            logs = xp.where(task.boolean, logs, -math.inf)
        matrix = result.scores if logs is None else logs
        matrix = None if matrix is None else task.to_caller_order(matrix)
        lse = xp.add_pair(stats) if options.return_lse else None
    matrix = None if matrix is None else adapter.give_pairs(matrix, -math.inf)
    return matrix, None if lse is None else adapter.give(lse, own=0), task


def _log_softmax(xp: Ops, task: Task, scores: Array, stats: Array) -> Array:
    """Return the logarithms of the weights, from the scores and their row statistics."""
    most, log_sum = stats[..., 0, :], stats[..., 1, :]
    most = xp.where(most == -math.inf, 0.0, most)
    return scores - task.align_with_scores(most) - task.align_with_scores(log_sum)
