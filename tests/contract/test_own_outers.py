"""Outer functions from formulas keep the contract of calls, in the core and the reference."""

from __future__ import annotations

import copy
import math
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Causal, Edges, attention, plan, scores
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu
from anyscore.ops import load
from anyscore.score import ABSOLUTE, PRODUCT, SQUARED, Outer, Pair
from anyscore.score.outer import NAMES, number
from anyscore.torch import Attention
from helpers.own_scores import SOFTPLUS, WAVE, Own, draw, wave, written_out
from helpers.transformed import WARNINGS

OUTER = Outer.from_formula("wave", WAVE)
pytestmark = [pytest.mark.sample, pytest.mark.usefixtures("kept_pairs"), *WARNINGS]


def wave_torch(x: Any) -> Any:
    return torch.nn.functional.silu(x) + 0.3 * (2 * x).sin() + torch.relu(x - 0.5) ** 2


PAIRS = {
    "product": (PRODUCT, lambda a, b: a * b),
    "squared": (SQUARED, lambda a, b: (a - b) ** 2),
    "absolute": (ABSOLUTE, lambda a, b: (a - b).abs()),
    "own": (
        Pair.from_formula("softplus", SOFTPLUS),
        lambda a, b: torch.logaddexp(a + b, torch.zeros((), dtype=a.dtype)),
    ),
}


def leaves(xs: list[np.ndarray], dtype: Any = torch.float64) -> list[torch.Tensor]:
    return [torch.tensor(x).to(dtype).requires_grad_() for x in xs]


def results(xs: list[torch.Tensor], score: Any, **options: Any) -> list[torch.Tensor]:
    """Return output, log-sum-exp if there is one, and the gradients of a sum of both."""
    with_lse = "normalizer" not in options
    found = attention(*xs[:3], score=score, return_lse=with_lse, **options)
    output, lse = (found.output, found.lse) if with_lse else (found, found.sum())
    return [output, lse, *torch.autograd.grad((output**2).sum() + lse.sin().sum(), xs)]


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"mask": Causal("end")},
    "bias": {"bias": torch.linspace(-1, 1, 131, dtype=torch.float64)},
    "bias after": {"bias_after": torch.linspace(-1, 1, 131, dtype=torch.float64)},
    "sigmoid": {"normalizer": "sigmoid"},
}


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("pair", PAIRS)
def test_values_and_gradients(pair: str, name: str, queries: int) -> None:
    arrays, options = draw(2, queries=queries, scale=0.3), OPTIONS[name]  # φ is steep at large x
    kind, exact = PAIRS[pair]

    def plain(w: Any) -> Any:
        def score(q: Any, k: Any) -> Any:
            x = exact(q[..., :, None, :], k[..., None, :, :]) @ w
            return wave_torch(x + options.get("bias", 0))

        return score

    xs = leaves(arrays)
    without = {n: x for n, x in options.items() if n != "bias"}
    expected = results(xs, plain(xs[3]), **without)
    for impl, dtype in (
        ("fused", xs[0].dtype),
        ("reference", xs[0].dtype),
        ("fused", torch.float32),
    ):
        ys = leaves(arrays, dtype)
        own = {n: x.to(dtype) if torch.is_tensor(x) else x for n, x in options.items()}
        found = results(ys, Own(ys[3], kind, OUTER), impl=impl, **own)
        allowed = 1e-11 if dtype == torch.float64 else 1e-4
        for x, y in zip(found, expected, strict=True):
            assert (x - y).abs().max() <= allowed * y.abs().max()


def test_numpy_agrees_and_few_keys_have_gradients() -> None:
    """The core keeps scores of few keys for the backward, but not these, which hide slopes."""
    xs = draw(2, queries=9, keys=7)
    expected = written_out(lambda a, b: a * b, xs, outer=wave)
    np.testing.assert_allclose(attention(*xs[:3], score=Own(xs[3], PRODUCT, OUTER)), expected)
    ys = leaves(xs)
    fused, reference = (
        results(ys, Own(ys[3], PRODUCT, OUTER), impl=impl) for impl in ("fused", "reference")
    )
    for x, y in zip(fused, reference, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)


def test_later_calls_are_repeated() -> None:
    xs = leaves(draw(2, queries=9, keys=30), torch.float32)
    first = results(xs, Own(xs[3], PRODUCT, OUTER))
    for _ in range(3):
        for x, y in zip(results(xs, Own(xs[3], PRODUCT, OUTER)), first, strict=True):
            assert torch.equal(x, y)
    assert plan(*xs[:3], score=Own(xs[3], PRODUCT, OUTER)).route == "cpu"


def test_edges_of_a_graph() -> None:
    graph = Edges([0, 2, 3, 4], [1, 2, 0, 2])
    arrays = draw(queries=3, keys=3)
    xs = leaves(arrays)
    fused, reference = (
        results(xs, Own(xs[3], SQUARED, OUTER), mask=graph, impl=impl)
        for impl in ("fused", "reference")
    )
    for x, y in zip(fused, reference, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)


def test_two_functions_of_one_number() -> None:
    """The numbers of the core have 48 bits: the second function takes the reference."""
    one, two = (Outer.from_formula("f", f"x * {n}") for n in (9838109, 13106736))
    assert number(one.name) == number(two.name)
    x = np.ones((1, 1), np.float32)
    for outer, expected in ((one, 9838109), (two, 13106736), (one, 9838109)):
        assert scores(x, x, score=Own(x[0], PRODUCT, outer)) == expected
    with pytest.raises(NotImplementedError, match="'f' has the number of another formula"):
        scores(x, x, score=Own(x[0], PRODUCT, two), impl="fused")


@pytest.mark.parametrize("impl", ["fused", "reference"])
def test_nan_and_infinity(impl: str) -> None:
    """NaN stays NaN where a comparison would choose a number; ∞ goes through the formula."""
    outer = Outer.from_formula("clip", "where(x > 1, 1, x)")
    query = np.array([[1.0], [math.nan], [math.inf], [2.0]] + [[0.5]] * 70)
    found = scores(query, np.array([[1.0]]), score=Own(np.ones(1), PRODUCT, outer), impl=impl)
    np.testing.assert_array_equal(found[:5, 0], [1, math.nan, 1, 1, 0.5])


def test_a_slope_that_no_number_has_is_not_read_where_nobody_attends() -> None:
    """log x has no value for x < 0, where every pair is masked."""
    outer = Outer.from_formula("log", "log(x + 1)")
    q, k, v = (torch.ones(3, 1, dtype=torch.float64, requires_grad=True) for _ in range(3))
    sign = torch.tensor([[1.0], [-5.0], [1.0]], dtype=torch.float64)
    keep = torch.tensor([True, False, True]).expand(3, 3)
    for impl in ("fused", "reference"):
        score = Own(torch.ones(1, dtype=torch.float64), PRODUCT, outer)
        found = attention(q, k * sign, v, score=score, mask=keep, impl=impl)
        for x in torch.autograd.grad(found.sum(), (q, k, v)):
            assert x.isfinite().all()


def test_second_derivatives() -> None:
    xs = leaves(draw(1, queries=3, keys=4, width=2, scale=0.5))
    torch.autograd.gradcheck(lambda *x: attention(*x[:3], score=Own(x[3], PRODUCT, OUTER)), xs)
    torch.autograd.gradgradcheck(lambda *x: attention(*x[:3], score=Own(x[3], PRODUCT, OUTER)), xs)


@pytest.mark.slow
def test_layers_and_compilation() -> None:
    xs = leaves(draw(1, queries=4, keys=5), torch.float32)
    layer = Attention(score=Own(torch.nn.Parameter(xs[3].detach()), PRODUCT, OUTER))
    expected = attention(*xs[:3], score=Own(xs[3], PRODUCT, OUTER))
    torch.testing.assert_close(layer(*xs[:3]), expected)
    compiled = torch.compile(lambda q, k, v, w: attention(q, k, v, score=Own(w, PRODUCT, OUTER)))
    torch.testing.assert_close(compiled(*xs), expected)


@pytest.mark.slow
def test_pickles_go_to_other_processes() -> None:
    outer = Outer.from_formula("mine", lambda x: np.maximum(x, 1) * x)
    assert pickle.loads(pickle.dumps(outer)) == copy.deepcopy(outer) == outer
    builtin = Outer("sqrt", 2.0)
    assert pickle.loads(pickle.dumps(builtin)) == builtin
    script = (
        "import pickle, sys, numpy as np; outer = pickle.load(sys.stdin.buffer);"
        "from anyscore.ops import load;"
        "print(outer.label, *outer.value(load('numpy'), np.array([2.0, 0.5])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(outer), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"mine", b"4.0", b"0.5"]


@pytest.mark.slow
def test_another_formula_of_a_name_is_another_function() -> None:
    one, other = (Outer.from_formula("mine", f) for f in ("x**2", "x**3"))
    assert one != other
    assert (one.label, other.label) == ("mine", "mine")
    x = np.array([[2.0]])
    assert float(scores(x, x, score=Own(np.ones(1), PRODUCT, one))[0, 0]) == 16
    assert float(scores(x, x, score=Own(np.ones(1), PRODUCT, other))[0, 0]) == 64


def test_plans_say_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = draw(1)
    capped = plan(*xs[:3], score=Own(xs[3], PRODUCT, OUTER), softcap=3.0)
    assert "a softcap over wave would be a second outer function" in capped.reason
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setattr(cpu, "_own", {})
    lacking = plan(*xs[:3], score=Own(xs[3], PRODUCT, Outer.from_formula("cubic", "x**3 + x / 7")))
    assert lacking.route == "reference"
    assert "the outer function 'cubic' is not compiled" in lacking.reason


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("a + 1", "'a' is unknown: the formula is of x."),
        ("1 / x", "its value is inf at x = 0, where rows stand"),
        ("sqrt(x)", "its derivative in x is inf at x = 0, where rows stand"),
        ("3", "it does not depend on x; an outer function is a function of x."),
        (lambda a, b: a + b, "it takes (a, b), expected a function of x."),
        (lambda x: None, "a formula is made of its arguments and numbers, and there is a NoneType"),
    ],
)
def test_refused_formulas(formula: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"cannot be an outer function: {reason}")):
        Outer.from_formula("mine", formula)


def test_refused_arguments() -> None:
    with pytest.raises(TypeError, match="name is 3, expected a text"):
        Outer.from_formula(3, "x**2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'expected a text such as "softplus\(x\)", or a Python'):
        Outer.from_formula("mine", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Outer\.from_formula makes others"):
        Outer("unheard", 1.0).value(load("numpy"), np.ones(2))


@pytest.mark.parametrize("outer", [math.nan, -1.0, -math.inf, math.inf, 5.0, 1e15])
def test_the_core_refuses_functions_that_it_lacks(outer: float) -> None:
    """NaN is no key of a map of numbers: it would be equal to any."""
    attention(*draw(1)[:3], score=Own(draw(1)[3], PRODUCT, OUTER))  # one function is registered
    x = np.ones((1, 2, 2))
    s = Settings(PRODUCT.key, 1.0, 1, 0.0, 1, (1,), "tanh", 1.0)
    numbers = [*s.numbers]
    numbers[4] = outer
    results = Results(np.empty((1, 2, 2)), np.empty((1, 2, 2)), None)
    with pytest.raises(ValueError, match="outer is not known to the core"):
        cpu._core.forward(Operands(x, x, None, None, x), s.pair, tuple(numbers), results, 1)


def test_numbers_of_formulas_are_of_their_content() -> None:
    one, other = (Outer.from_formula(name, "x**2 / 3 + x") for name in ("one", "other"))
    assert number(one.name) == number(other.name) > len(NAMES)
    assert number(one.name) != number(OUTER.name)
    assert number(one.name).is_integer()
