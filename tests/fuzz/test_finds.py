"""The fuzz test finds each defect within the few calls of every run.

The defects are in the reference, which all frameworks and scores share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from anyscore.backends.reference import definition, run
from anyscore.masks import context, objects
from anyscore.modifiers import biases, dropout, normalizers, sinks
from anyscore.score import outer
from fuzz.beside import Beside
from fuzz.drawing import calls
from fuzz.drawn import Call
from fuzz.exact import solve
from fuzz.fuzzing import Effort
from fuzz.judge import judge
from fuzz.runners import NumPy

pytestmark = pytest.mark.weekly

Defect = Callable[[pytest.MonkeyPatch], None]
QUICK = Effort(simplify=False)


def _stop_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Mask the last attended key."""
    right = context.MaskContext.bound
    patch.setattr(
        context.MaskContext, "bound",
        lambda self, x, name, nan: np.maximum(right(self, x, name, nan) - (name == "stop"), 0),
    )  # fmt: skip


def _window_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = objects._lower_window
    patch.setattr(
        objects, "_lower_window",
        lambda mask, left, *more: right(mask, left and left + 1, *more),
    )  # fmt: skip


def _weights_too_large(patch: pytest.MonkeyPatch) -> None:
    """Enlarge weights by 1e-4, as a kernel with a poor exponential would."""
    right = normalizers.softmax

    def softmax(xp: Any, s: Any, keep: Any, *rows: Any) -> Any:
        weights, lse = right(xp, s, keep, *rows)
        return weights * (1 + 1e-4), lse

    patch.setattr(normalizers, "softmax", softmax)


def _one_log_sum_exp(patch: pytest.MonkeyPatch) -> None:
    """Compute weights as exp(s − lse) with a rounded lse: 1 each in rows of −1e9."""
    right = normalizers.softmax

    def softmax(xp: Any, s: Any, keep: Any, *rows: Any) -> Any:
        weights, stats = right(xp, s, keep, *rows)
        lse = stats[..., 0, :] + stats[..., 1, :]
        return np.where(weights > 0, np.exp(s - lse[..., None]), weights), stats

    patch.setattr(normalizers, "softmax", softmax)


def _mean_of_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let a query without keys attend every key."""
    right = normalizers.softmax

    def softmax(xp: Any, s: Any, keep: Any, *rows: Any) -> Any:
        if keep is not None:
            nothing = ~keep.any(-1, keepdims=True)
            s, keep = xp.where(nothing, 0.0, s), keep | nothing
        return right(xp, s, keep, *rows)

    patch.setattr(normalizers, "softmax", softmax)


def _masked_values_read(patch: pytest.MonkeyPatch) -> None:
    """Multiply masked values by a weight of 0, which keeps NaN."""

    def product(xp: Any, x: Any, y: Any, keep: Any, masked: Any) -> Any:
        if keep is None or masked != xp.masked_sum:
            return right(xp, x, y, keep, masked)
        return xp.matmul(x, y)

    right = definition._product
    patch.setattr(definition, "_product", product)
    patch.setattr(run, "zero_unread", lambda xp, x, used, groups=1: (x, False))


def _dropout_of_another_seed(patch: pytest.MonkeyPatch) -> None:
    right = dropout.dropout_mask
    patch.setattr(dropout, "dropout_mask", lambda xp, seed, *more: right(xp, seed + 1, *more))


def _half_precision(patch: pytest.MonkeyPatch) -> None:
    """Round scores to 16 bits."""
    right = definition.scores

    def scores(xp: Any, f: Any, *more: Any) -> Any:
        s = right(xp, f, *more)
        with np.errstate(over="ignore"):
            return s.astype(np.float16).astype(s.dtype)

    patch.setattr(definition, "scores", scores)


def _heads_swapped(patch: pytest.MonkeyPatch) -> None:
    """Let query head h use key head h mod H_kv."""
    right = run.split_heads

    def split_heads(xp: Any, x: Any, groups: int, of_query: bool, axis: int = -3) -> Any:
        x = right(xp, x, groups, of_query, axis)
        return x[..., ::-1, :, :, :] if groups > 1 and not of_query and axis == -3 else x

    patch.setattr(run, "split_heads", split_heads)


def _query_bias_not_capped(patch: pytest.MonkeyPatch) -> None:
    """Cap scores before their query bias is added; the bias then cancels in the softmax."""
    right = definition.scores

    def scores(xp: Any, f: Any, *more: Any) -> Any:
        bias = f.query_bias
        _, _, softcap, *_ = more
        s = right(xp, f._replace(query_bias=None), *more)
        return s if bias is None or not softcap else s + bias[..., None]

    patch.setattr(definition, "scores", scores)


def _sink_not_in_lse(patch: pytest.MonkeyPatch) -> None:
    """Return the log-sum-exp of the keys without the sink."""
    right = sinks.with_sink
    patch.setattr(sinks, "with_sink", lambda xp, sink, stats: (*right(xp, sink, stats)[:2], stats))


def _bias_after_inside(patch: pytest.MonkeyPatch) -> None:
    """Add a bias after a cap before it."""
    right = definition.scores

    def scores(xp: Any, f: Any, *more: Any) -> Any:
        *others, biases = more
        return right(xp, f, *others, [(one, False) for one, _ in biases])

    patch.setattr(definition, "scores", scores)


def _diagonals_off_by_one(patch: pytest.MonkeyPatch) -> None:
    right = biases.Bias.lower
    patch.setattr(biases.Bias, "lower", lambda self, *more: np.roll(right(self, *more), 1, axis=-1))


def _distances_too_large(patch: pytest.MonkeyPatch) -> None:
    """Enlarge distances by 1e-4, as a poor logarithm would."""
    for name in ("sqrt", "log1p", "arcosh"):
        right = outer.FUNCTIONS[name]
        patch.setitem(
            outer.FUNCTIONS, name, lambda xp, x, c, right=right: right(xp, x, c * (1 + 1e-4))
        )


def _distance_not_capped(patch: pytest.MonkeyPatch) -> None:
    """Leave out the cap of a score with an outer function."""
    right = definition.scores

    def scores(xp: Any, f: Any, mask: Any, per_query: Any, softcap: float, *more: Any) -> Any:
        return right(xp, f, mask, per_query, 0.0 if f.outer else softcap, *more)

    patch.setattr(definition, "scores", scores)


def _sigmoid_of_all_keys(patch: pytest.MonkeyPatch) -> None:
    """Count masked keys in −log n."""
    right = normalizers.sigmoid
    patch.setattr(normalizers, "sigmoid", lambda xp, s, mask, *more: right(xp, s, None, *more))


def _support_too_small(patch: pytest.MonkeyPatch) -> None:
    """Leave out the least weights of sparsemax and entmax15."""
    right = normalizers.threshold
    patch.setattr(normalizers, "threshold", lambda *given: right(*given) + 0.01)


DEFECTS: tuple[Defect, ...] = (
    _stop_off_by_one, _window_off_by_one, _weights_too_large, _mean_of_nothing, _masked_values_read,
    _dropout_of_another_seed, _half_precision, _heads_swapped, _query_bias_not_capped,
    _sink_not_in_lse, _bias_after_inside, _diagonals_off_by_one,
    _distances_too_large, _distance_not_capped, _sigmoid_of_all_keys,
    _support_too_small, _one_log_sum_exp,
)  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_is_found(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect makes a drawn call fail, and the call is right without the defect."""
    failed: list[Call] = []

    def check(call: Call) -> None:
        try:
            _check(NumPy(), call)
        except AssertionError:
            failed.append(call)
            raise

    some = calls("numpy")
    if defect is _query_bias_not_capped:  # 1 score in 10 has a query bias, 1 call in 3 a cap
        some = some.filter(lambda call: call.kind == "Trilinear" and bool(call.softcap))
    if defect is _one_log_sum_exp:  # most other calls have no far rows
        some = some.filter(lambda call: call.exact)
    defect(monkeypatch)
    with pytest.raises(AssertionError):
        QUICK.spend(check, some, examples=600)
    monkeypatch.undo()
    _check(NumPy(), failed[0])


def _check(runner: NumPy, call: Call) -> None:
    problem = call.problem()
    judge(call, problem, solve(problem), runner.run(call, problem, "reference"), "reference")


@st.composite
def wide(draw: st.DrawFn) -> Call:
    """Draw calls of Laplace's score with 2,048 features."""
    return dataclasses.replace(
        draw(calls("numpy")), kind="Laplace", dtype="float32", parameters={"sigma": 45.0}, groups=1,
        query=(9, 2048), key=(9, 2048), value=(9, 3), mask=[], valid_lens=None, poison=None,
        fill=None, data="normal", magnitude=1.0, weights=True, lse=True, prepared=False,
        softcap=0.0, dropout=0.0, layout=("dense",) * 3, beside=Beside(), exact=False,
    )  # fmt: skip


def test_sums_of_one_accumulator_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of 2,048 features one by one fails; plain operations sum in blocks."""

    def scores(xp: Any, f: Any, *more: Any) -> Any:
        terms = f.pair.value(xp, f.a[:, None], f.b[None])
        return np.cumsum(terms, axis=-1, dtype=np.float32)[..., -1] * np.float32(f.scale)

    QUICK.spend(lambda call: _check(NumPy(), call), wide(), examples=5)
    monkeypatch.setattr(definition, "scores", scores)
    with pytest.raises(AssertionError, match="off by"):
        QUICK.spend(lambda call: _check(NumPy(), call), wide(), examples=20)
