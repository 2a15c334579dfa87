"""Attention whose weights are computed from the whole matrix of scores.

A fused implementation computes the scores and their derivatives, if one can. The backend's fastest
operation turns scores into sparse weights. The definition computes other weights, and the product
of weights and values.
"""

from __future__ import annotations

from typing import Any

from anyscore.backends.reference.run import weigh
from anyscore.call.backend import (
    Backend,
    Implementation,
    Plan,
    Result,
    choose,
    refuse,
    with_query_bias,
)
from anyscore.call.task import Options, Task
from anyscore.modifiers.normalizers import POWERS, Sigmoid, is_shift_invariant, normalize


def choose_scores(
    backend: Backend, task: Task, options: Options
) -> tuple[Plan, Implementation, Task]:
    """Choose the implementation of a task whose normalizer is not the softmax, or of its scores.

    Return (plan, implementation, task).

    Raises:
        NotImplementedError: `impl` is neither "auto" nor "reference", and cannot run the task; or
            the task has edges, and the normalizer is sparse.
    """
    if options.impl == "separable":
        refuse("separable", "it is for normalizer='softmax'")
    if task.edges is not None:
        if isinstance(task.normalizer, Sigmoid):  # the definition makes these weights itself
            return *choose(backend, task, options), task
        raise NotImplementedError(
            f"normalizer={task.normalizer!r} is not for the edges of a graph, where weights are "
            "those of the softmax or a sigmoid."
        )
    reasons = []
    if task.value is not None and options.impl != "reference":
        for whole in backend.fused(task):
            reason = whole.why_not(task, options)
            if reason is None:
                return Plan(whole.name, whole.how(task)), whole, task
            reasons.append(f"{whole.name}: {reason}")
    plan, scorer = choose(backend, *_of_scores(task, options))
    if scorer is not backend.reference:
        plan = Plan(plan.route, "; ".join([*reasons, "so the scores alone are fused"]))

    def run(task: Task, options: Options, seed: Any) -> Result:
        return _run(backend, scorer, task, options, seed)

    return plan, Implementation(plan.route, scorer.why_not, run), task


def _of_scores(task: Task, options: Options) -> tuple[Task, Options]:
    """Return the task and the options for the scores alone."""
    options = options._replace(dropout=0.0, dropout_seed=None, return_scores=True)
    return task._replace(value=None, normalizer="softmax"), options


def _run(
    backend: Backend, scorer: Implementation, task: Task, options: Options, seed: Any
) -> Result:
    xp, (of_scores, asked) = backend.xp, _of_scores(task, options)
    result = scorer.run(of_scores, asked, None)
    if not is_shift_invariant(task.normalizer):
        result = with_query_bias(xp, of_scores, result)
    scores = result.scores
    if task.normalizer in POWERS and options.impl != "reference":
        weights = backend.sparse(scores, POWERS[task.normalizer])
    else:
        weights = normalize(xp, task.normalizer, scores, task.boolean)
    output = None
    if task.value is not None:
        output = weigh(xp, task, weights, options.dropout, seed)
    return Result(output, None, None, weights if options.return_scores else None)
