"""Pairs from formulas keep the contract of every call, in the core and in the reference."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Causal, attention, log_weights, plan, scores
from anyscore.kernels.own_formulas import compiler
from anyscore.ops import load
from anyscore.score import formula as formula_language
from anyscore.score.formula import formula_of, where
from anyscore.score.formula.functions import NAMES
from anyscore.score.formula.slopes import plain
from anyscore.score.formula.tape import numbers
from anyscore.score.pairs import Pair
from anyscore.torch import Attention
from helpers import machine
from helpers.own_scores import (
    EVERY,
    FAR,
    FAR_KEYS,
    FAR_SLOPE,
    LEAKY,
    SOFTPLUS,
    Own,
    draw,
    written_out,
)
from helpers.transformed import WARNINGS

SOFT = Pair.from_formula("softplus", SOFTPLUS)
EACH = Pair.from_formula("each", EVERY)
FLAGS = compiler.FLAGS  # before a fixture changes them
FUSED = "fused, and keeps the contract"

pytestmark = [pytest.mark.sample, pytest.mark.usefixtures("kept_pairs"), *WARNINGS]


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("formula", FAR)
def test_a_choice_of_far_numbers(formula: str, dtype: str, impl: str) -> None:
    """The smaller number is not lost in a sum with the larger one."""
    pair = Pair.from_formula("far", formula)
    q, k, w = (np.array(x, dtype) for x in ([[0.0]], FAR_KEYS, [1.0]))
    for make in (np.asarray, torch.tensor):
        found = scores(make(q), make(k), score=Own(make(w), pair), impl=impl)
        np.testing.assert_allclose(found[0], FAR[formula], rtol=1e-6)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_slopes_of_far_sizes(impl: str) -> None:
    formula, slopes = FAR_SLOPE
    q, k, w = (torch.tensor(x) for x in ([[0.0]] * 3, FAR_KEYS, [1.0]))
    found = scores(
        q.requires_grad_(), k, score=Own(w, Pair.from_formula("far", formula)), impl=impl
    )
    (slope,) = torch.autograd.grad(found.diagonal().sum(), q)
    np.testing.assert_allclose(slope[:, 0], slopes, rtol=1e-6)


def softplus(a: Any, b: Any) -> Any:
    return np.logaddexp(0, a + b)


def soft_torch(a: Any, b: Any) -> Any:
    return torch.logaddexp(a + b, torch.zeros((), dtype=a.dtype))  # not softplus: linear beyond 20


def every(a: Any, b: Any) -> Any:
    """Return the formula EVERY in PyTorch."""
    zero = torch.zeros(())
    return (
        0.3 * torch.sigmoid(a - b) + torch.erf(a * b) + torch.expm1(-torch.abs(a - b))
        + torch.log1p(a**2) + torch.cos(a) * torch.sin(b)
        - torch.tanh(b - 2 * a) / (1 + torch.exp(-a)) + torch.sqrt(1 + b**2)
        - torch.log(2 + torch.relu(a)) - torch.sign(a) * b
        + torch.minimum(a, b) * torch.maximum(0.5 * a, b)
        + torch.where(a <= 0.5, a**3, 1 / (torch.where(a <= 0.5, zero, a) + 1) ** 2)
    )  # fmt: skip


def score_of(pair: Any) -> Any:
    """Return a function from a weight w to a callable score, for a pair that is a function."""
    return lambda w: lambda q, k: pair(q[..., :, None, :], k[..., None, :, :]) @ w


def leaves(xs: list[np.ndarray], dtype: Any = torch.float64) -> list[torch.Tensor]:
    return [torch.tensor(x).to(dtype).requires_grad_() for x in xs]


def results(xs: list[torch.Tensor], score: Any, **options: Any) -> list[torch.Tensor]:
    """Return output, log-sum-exp, and the gradients of a sum of both."""
    found = attention(*xs[:3], score=score, return_lse=True, **options)
    total = (found.output**2).sum() + found.lse.sin().sum()
    return [found.output, found.lse, *torch.autograd.grad(total, xs)]


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("pair", "exact"), [(SOFT, soft_torch), (EACH, every)], ids=["soft", "each"]
)
def test_values_and_gradients(pair: Pair, exact: Any, masked: bool, queries: int) -> None:
    """Output, log-sum-exp and gradients are those of PyTorch's operations."""
    options = {"mask": Causal("end")} if masked else {}
    arrays = draw(2, queries=queries)
    for dtype, allowed in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        xs = leaves(arrays, dtype)
        assert plan(*xs[:3], score=Own(xs[3], pair)).reason == FUSED
        found = results(xs, Own(xs[3], pair), impl="fused", **options)
        ys = leaves(arrays)
        expected = results(ys, score_of(exact)(ys[3]), **options)
        for x, y in zip(found, expected, strict=True):
            assert (x - y).abs().max() <= allowed * y.abs().max()


@pytest.mark.slow
def test_the_flags_that_users_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """So are those of -O3. The formula is another, as a process loads each formula once."""
    monkeypatch.setattr(compiler, "FLAGS", FLAGS)
    assert "-O3" in compiler.flags("baseline")
    pair = Pair.from_formula("each, as users have it", f"1 * ({EVERY})")
    for masked, queries in ((False, 1), (True, 70)):
        test_values_and_gradients(pair, every, masked, queries)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    xs = leaves(draw(2, 3), dtype)
    found = results(xs, Own(xs[3], SOFT), impl="fused")
    ys = [x.detach().to(torch.float64).requires_grad_() for x in xs]
    expected = results(ys, score_of(soft_torch)(ys[3]))
    rounding = torch.finfo(dtype).eps
    for x, y in zip(found, expected, strict=True):
        assert (x - y).abs().max() <= 60 * rounding * y.abs().max()


@pytest.mark.parametrize("scale", [1e-2, 30.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_magnitude(scale: float, dtype: torch.dtype) -> None:
    """log(1 + e^(a + b)) is read as softplus: it neither overflows nor gives NaN beyond 1e4."""
    xs = leaves(draw(2, scale=scale), dtype)
    ys = [x.detach().to(torch.float64).requires_grad_() for x in xs]
    expected = results(ys, score_of(soft_torch)(ys[3]))
    for impl in ("fused", "reference"):
        found = results(xs, Own(xs[3], SOFT), impl=impl)
        for x, y in zip(found, expected, strict=True):
            assert x.isfinite().all()
            allowed = 40 * torch.finfo(dtype).eps * max(scale, 1)
            assert (x - y).abs().max() <= allowed * max(y.detach().abs().max().item(), 1)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["fused", "reference"])
@pytest.mark.parametrize("formula", [SOFTPLUS, LEAKY, "where(a > b, 0, a)", "maximum(a, b)"])
def test_nan_and_infinity(formula: str, impl: str) -> None:
    """A masked NaN is not read. An attended NaN makes its queries NaN, also where a formula with
    `where`, `maximum` or a comparison would choose a finite branch.
    """
    pair = SOFT if formula == SOFTPLUS else Pair.from_formula("leaky", LEAKY)
    if impl == "reference":  # the reference compiles nothing
        pair = Pair.from_formula("tried", formula)
    q, k, v, w = draw(2, queries=9, keys=17)
    clean = attention(q, k, v, score=Own(w, pair), impl=impl, valid_lens=11)
    bad = k.copy()
    bad[:, 12] = math.nan, *(math.inf,) * 10
    found = attention(q, bad, v, score=Own(w, pair), impl=impl, valid_lens=11)
    np.testing.assert_array_equal(found, clean)
    assert np.isnan(attention(q, bad, v, score=Own(w, pair), impl=impl)).all()
    bad = q.copy()
    bad[0, 3, 2] = math.nan
    found = attention(bad, k, v, score=Own(w, pair), impl=impl)
    assert np.isnan(found[0, 3]).all()
    assert np.isfinite(np.delete(found.reshape(18, -1), 3, 0)).all()


def test_where_a_formula_is_not_defined() -> None:
    """NaN of a formula at finite numbers passes through the operations on it."""
    pair = Pair.from_formula("root", "exp(-sqrt(1 + a)) * tanh(b) + erf(expm1(log(2 + b)))")
    q, k, v, w = draw(1, queries=9, keys=17)
    q[:, :4] = np.abs(q[:, :4])
    k = np.abs(k)
    found, expected = (
        attention(q, k, v, score=Own(w, pair), impl=impl) for impl in ("fused", "reference")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)
    assert np.isfinite(found[0, :4]).all()
    assert np.isnan(found[0, 4:]).any()


def test_numpy_agrees_and_weights_come_along() -> None:
    xs = draw(2, 2)
    expected = written_out(softplus, xs)
    np.testing.assert_allclose(attention(*xs[:3], score=Own(xs[3], SOFT)), expected, rtol=1e-11)
    q, k, v, w = xs
    weights = np.exp(log_weights(q, k, score=Own(w, SOFT)))
    np.testing.assert_allclose(weights @ v, expected, rtol=1e-11)


def test_second_derivatives() -> None:
    xs = leaves(draw(1, queries=3, keys=5, width=2))

    def run(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=Own(w, SOFT), impl="fused")

    assert torch.autograd.gradcheck(run, xs)
    assert torch.autograd.gradgradcheck(run, xs)


@pytest.mark.slow
def test_layers_and_compilation() -> None:
    q, k, v, w = (torch.tensor(x, dtype=torch.float32) for x in draw(2))
    layer = Attention(score=Own(w, SOFT))
    expected = attention(q, k, v, score=Own(w, SOFT), impl="reference")
    torch.testing.assert_close(layer(q, k, v), expected)

    def run(q: Any, k: Any, v: Any, w: Any) -> Any:
        return attention(q, k, v, score=Own(w, SOFT), impl="fused")

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, w), expected)


def test_the_same_name_again() -> None:
    """A second formula under a name is another pair, even before the first one's backward."""
    xs = leaves(draw(1))
    first, again = Pair.from_formula("mine", SOFTPLUS), Pair.from_formula("mine", SOFTPLUS)
    assert first == again
    assert first == Pair.from_formula("mine", "softplus(a + b)")
    out = attention(*xs[:3], score=Own(xs[3], first), impl="fused")
    second = Pair.from_formula("mine", EVERY)
    assert second != first
    other = attention(*xs[:3], score=Own(xs[3], second), impl="fused")
    assert (other - out).abs().max() > 0.1
    found = torch.autograd.grad(out.sum(), xs[3])
    expected = torch.autograd.grad(attention(*xs[:3], score=Own(xs[3], SOFT)).sum(), xs[3])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_pickles_go_to_other_processes() -> None:
    def of_python(a: Any, b: Any) -> Any:
        return where(a > b, a - b, np.sin(a) * b)

    pair = Pair.from_formula("mine", of_python)
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    script = (
        "import pickle, sys, numpy as np; from anyscore.score.pairs import pair_named;"
        "pair = pickle.load(sys.stdin.buffer); assert pair_named(pair.key) == pair;"
        "from anyscore.ops import load; a = np.array([1.0, -1.0]);"
        "print(*pair.value(load('numpy'), a, a[::-1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(pair), capture_output=True, check=True
    )
    assert [*map(float, done.stdout.split())] == pytest.approx([2.0, -math.sin(1)])


def test_functions_of_python_are_formulas() -> None:
    """NumPy's functions, the package's functions, operators and a text give the same rows."""
    of_numpy = formula_of(lambda a, b: np.where(a * b > 1, np.log1p(np.exp(a)), -(np.abs(b) ** 2)))
    assert of_numpy == formula_of("where(a * b > 1, softplus(a), -abs(b)**2)")
    assert formula_of(lambda a, b: np.pi * a / +b.__radd__(1)) == formula_of("pi * a / (1 + b)")
    assert of_numpy == formula_of("softplus(a) if a * b > 1 else -(abs(b) * abs(b))")
    assert formula_of(lambda a, b: np.maximum(a, 1) / b.__rsub__(3) + np.float64(1) * a) == (
        formula_of("maximum(a, 1) / (3 - b) + a")
    )


@pytest.mark.parametrize("name", sorted(set(formula_language.__all__) & set(NAMES)))
def test_functions_of_the_package_have_their_names(name: str) -> None:
    function = getattr(formula_language, name)
    arguments = {"where": "a > 1, a, b", "maximum": "a, b", "minimum": "a, b"}.get(
        name, "a * b + 2"
    )
    found = formula_of(lambda a, b: eval(f"f({arguments})", {"f": function, "a": a, "b": b}) + a)
    assert found == formula_of(f"{name}({arguments}) + a")


@pytest.mark.parametrize("formula", [SOFTPLUS, LEAKY, EVERY, "(a - b)**4 / (1 + a*a)**1.5"])
def test_derivatives_are_those_of_sympy(formula: str) -> None:
    sympy = machine.package("sympy")
    a, b = sympy.symbols("a b", real=True)
    names = {
        "where": lambda c, x, y: sympy.Piecewise((x, c), (y, True)), "abs": sympy.Abs,
        "sigmoid": lambda x: 1 / (1 + sympy.exp(-x)), "minimum": sympy.Min, "sqrt": sympy.sqrt,
        "maximum": sympy.Max, "relu": lambda x: sympy.Max(x, 0), "sign": sympy.sign,
        "expm1": lambda x: sympy.exp(x) - 1, "log1p": lambda x: sympy.log(1 + x),
        **{n: getattr(sympy, n) for n in ("exp", "log", "sin", "cos", "tanh", "erf")},
    }  # fmt: skip
    exact = eval(formula, names, {"a": a, "b": b})
    expected = [
        sympy.lambdify((a, b), x, [{"DiracDelta": lambda x: 0.0}, "math"])
        for x in (exact, exact.diff(a), exact.diff(b))
    ]
    rng, made = np.random.default_rng(0), formula_of(formula)
    rows, places = made.slopes()
    printed, at = plain(rows, places)
    for x, y in rng.normal(size=(50, 2)) * 2:
        truth = [f(x, y) for f in expected]
        values = numbers(rows, x, y)
        assert [values[p] for p in places] == pytest.approx(truth, rel=1e-11, abs=1e-11)
        log1p = {"log1p_unit": "log1p"}
        lowered = numbers([(log1p.get(r[0], r[0]), *r[1:]) for r in printed], x, y)
        assert [lowered[p] for p in at] == pytest.approx(truth, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    "formula",
    ["where(a > 20, a, log(1 + exp(a) * 1.5)) * b", "where(a > 0, sqrt(a), 0) + b", "relu(a) * b"],
)
def test_a_branch_that_is_not_chosen_has_no_derivative(formula: str) -> None:
    """A branch that `where` drops adds no 0 · ∞ to a derivative, which every framework would."""
    made = formula_of(formula)
    x = torch.tensor([-2.0, 0.5, 1e3, 30.0], dtype=torch.float64, requires_grad=True)
    y = torch.full_like(x, 0.5)
    (found,) = torch.autograd.grad(made(load("torch"), x, y).sum(), x)
    rows, (_, by_a, _) = made.slopes()
    assert found.tolist() == pytest.approx([numbers(rows, z, 0.5)[by_a] for z in x.tolist()])
