"""Any call is right within its rounding errors, or raises one line. See README.md beside it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import anyscore
from anyscore.backends import numpy_core
from fuzz.beside import Beside
from fuzz.drawing import calls
from fuzz.drawn import Call
from fuzz.exact import Answer, solve
from fuzz.fuzzing import Effort
from fuzz.hostile import Hostile, attend, hostile_calls, is_announced
from fuzz.judge import judge
from fuzz.runners import Answered, NumPy
from helpers.table_scores import RANKS, ROWS


def test_calls(runner: NumPy, effort: Effort) -> None:
    """Results and gradients of any call are right, masked entries are 0, and all bits repeat."""
    effort.spend(lambda call: check(runner, call), calls(runner.name), examples=125, share=0.7)


def check(runner: NumPy, call: Call) -> None:
    problem = dataclasses.replace(call.problem(), tanh=runner.tanh_error(call.dtype))
    problem = dataclasses.replace(problem, rounds_weights=runner.rounds_weights(call, problem))
    answer = solve(problem)
    found = {impl: runner.run(call, problem, impl) for impl in ("auto", "reference")}
    for impl, one in found.items():
        judge(call, problem, answer, one, impl)
    for _ in range(2):  # from the third call on the core repeats known calls
        again = runner.run(call, problem, "auto")
        judge(call, problem, answer, again, "auto")
        differs = again.same_bits(found["auto"])
        # First calls with gradients zero keys in gaps, and those have a part in roundings.
        zeroes = call.derivatives and call.has_gaps
        assert differs is None or zeroes, f"{differs} differs from run to run"
    if call.fill is not None and not math.isfinite(call.fill):
        other = dataclasses.replace(call, fill=math.nan if math.isinf(call.fill) else math.inf)
        for impl, one in found.items():
            again = runner.run(call, other.problem(), impl)
            read = known(again, answer).same_bits(known(one, answer))
            assert read is None, f"{impl}: {read} depends on what is masked"


def known(found: Answered, answer: Answer) -> Answered:
    """Return the results with 0 where an attended NaN leaves them unknown."""
    exact = {"output": answer.output, "weights": answer.weights, "lse": answer.lse}
    results = {n: np.where(exact[n].known, x, 0.0) for n, x in found.results.items()}
    slopes = {n: np.where(answer.gradients[n].known, x, 0.0) for n, x in found.gradients.items()}
    return dataclasses.replace(found, results=results, gradients=slopes)


def test_wrong_calls(runner: NumPy, effort: Effort) -> None:
    """Wrong calls raise one line, or work without NaN and alike in every implementation."""
    strategy = hostile_calls(runner.name)
    effort.spend(lambda call: check_refusal(runner, call), strategy, examples=300, share=0.1)


def check_refusal(runner: NumPy, call: Hostile) -> None:
    outcomes: list[Any] = []
    for impl in ("auto", "reference"):
        arguments = call.arguments(lambda x: runner.tensor(x, str(x.dtype)))
        if call.change == "dropout_seed":
            arguments["dropout"] = 0.5
        try:
            outcomes.append(runner.numbers(attend(call.kind, arguments, impl)))
        except Exception as error:
            if not is_announced(error):
                raise
            outcomes.append(type(error))
    one, other = outcomes
    if isinstance(one, type) or isinstance(other, type):
        assert one is other, f"auto gives {one}, reference {other}"
        return
    assert not call.must, f"{call.to} {call.change} was not refused"
    given = isinstance(call.what, float) and not math.isfinite(call.what)
    assert given or np.isfinite(one).all(), "the output is not finite"
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("moment", ["T_q=1", "T_q=2", "T_q=3", "T_q=70"])
def test_prepared_keys_that_change(runner: NumPy, moment: str) -> None:
    """In-place changes of keys after `prepare_keys` have one meaning, for every score and T_q."""
    if runner.name not in ("numpy", "torch"):
        pytest.skip("its tensors do not change")
    queries, meanings = int(moment[4:]), set()
    rng = np.random.default_rng(0)
    for kind in ("Dot", "Gaussian", "Additive", "GATv2"):
        fields: dict[str, Any] = {}
        if kind in ("Additive", "GATv2"):
            w = runner.tensor(rng.standard_normal(8), "float32")
            fields = {"W_q": None, "W_k": None, "w_v": w}
        score = getattr(anyscore, kind)(**fields)
        query, old, new, value = (
            runner.tensor(rng.standard_normal((2, n, 8)), "float32") for n in (queries, 70, 70, 70)
        )
        key = runner.tensor(runner.numbers(old), "float32")
        prepared = anyscore.prepare_keys(key, score)
        key[:] = new
        found = runner.numbers(anyscore.attention(query, prepared, value, score=score))
        for meaning, then in (("snapshot", old), ("live", new)):
            exact = anyscore.attention(query, then, value, score=score, impl="reference")
            if np.allclose(found, runner.numbers(exact), rtol=1e-3, atol=1e-4):
                meanings.add(meaning)
                break
        else:
            raise AssertionError(f"{kind}: the answer is that of neither the old keys nor the new")
    assert len(meanings) == 1, "a snapshot for one score, not for another"
    assert meanings == {_meaning(runner)}, "a snapshot for one T_q, not for another"


def _meaning(runner: NumPy) -> str:
    """Return "live" or "snapshot": whether prepared keys follow in-place changes of plain keys."""
    key = runner.tensor(np.array([[[1.0], [0.0]]]), "float32")
    prepared = anyscore.prepare_keys(key, anyscore.Dot())
    key[:] = runner.tensor(np.array([[[0.0], [9.0]]]), "float32")
    value = runner.tensor(np.array([[[0.0], [1.0]]]), "float32")
    query = runner.tensor(np.ones((1, 1, 1)), "float32")
    output = anyscore.attention(query, prepared, value, score=anyscore.Dot())
    return "live" if runner.numbers(output).item() > 0.5 else "snapshot"


@st.composite
def large(draw: st.DrawFn, framework: str) -> Call:
    """Draw calls that several threads share. Projections, capped distances, and sums of scales'
    gradients are left out, as the framework computes them.
    """
    call = draw(
        calls(framework).filter(lambda call: call.kind not in ("Concat", "Bilinear", "Trilinear"))
    )
    lead = draw(st.sampled_from([(), (2,), (2, 3)]))
    queries, keys = draw(st.integers(100, 300)), draw(st.integers(100, 300))
    parameters = {
        name: (64,) if RANKS[name] else 1.0 if isinstance(x, tuple) else x
        for name, x in call.parameters.items()
    } | {name: None for name in ("W_q", "W_k") if name in call.parameters}
    return dataclasses.replace(
        call, parameters=parameters, groups=1,
        softcap=0.0 if ROWS[call.kind].outer or call.function else call.softcap,
        query=(*lead, queries, 64), key=(*lead, keys, 64),
        value=(*lead, keys, 48), mask=[], valid_lens=None, poison=None, fill=None, prepared=False,
        beside=Beside(), exact=False,
    )  # fmt: skip


def test_threads(runner: NumPy, effort: Effort, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread and two threads give the same bits."""
    effort.spend(
        lambda call: check_threads(runner, call, monkeypatch), large(runner.name), 25, share=0.1
    )


def check_threads(runner: NumPy, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = call.problem()
    found = []
    for threads in (1, 2):
        with runner.threads(threads), monkeypatch.context() as patch:
            patch.setattr(numpy_core, "threads", lambda n=threads: n)
            found.append(runner.run(call, problem, "auto"))
    differs = found[0].same_bits(found[1])
    assert differs is None, f"{differs} depends on the number of threads"
