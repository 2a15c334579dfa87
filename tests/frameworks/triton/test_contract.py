"""Kernels keep promises beyond numbers: pairs of users, the reach of NaN, the same bits."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import anyscore
from anyscore import (
    Additive,
    Causal,
    Dot,
    Trilinear,
    attention,
    log_weights,
    plan,
    scores,
)
from anyscore.backends.torch import operators
from anyscore.backends.torch import triton as torch_triton
from anyscore.call.operands import Operands, Results, Settings
from anyscore.call.task import Call, Options
from anyscore.kernels import cpu
from anyscore.kernels.triton import attention as triton
from anyscore.kernels.triton import pairs
from helpers import far_rows
from helpers.by_pair import also_weekly
from helpers.samples import normal

pytestmark = pytest.mark.sample

PAGE = Path(__file__).parents[3] / "docs" / "own_pair.md"


def tensors(dtype: torch.dtype, grad: bool = True) -> list[torch.Tensor]:
    """Return query, key and value of two heads and two tiles of keys, and weights."""
    shapes = (1, 2, 5, 3), (1, 1, 67, 3), (1, 1, 67, 2), (3,), (3,), (3,)
    return [torch.tensor(normal(*s), dtype=dtype).requires_grad_(grad) for s in shapes]


def results(xs: list[torch.Tensor], score: Any, impl: str, **options: Any) -> list[torch.Tensor]:
    q, k, v, *_ = xs
    out = attention(q, k, v, score=score, impl=impl, **options)
    return [out, *torch.autograd.grad(out.square().sum(), xs, materialize_grads=True)]


def test_tanh_of_keys_far_apart() -> None:
    """Exponents of queries and keys are cut on opposite sides, and their sum is small."""
    query, key = torch.linspace(-50, 10, 70)[:, None], torch.tensor([0.0, 200.0])
    key = key.repeat_interleave(70)[:, None]
    score = Additive(None, None, torch.ones(1))
    found = scores(query, key, score=score, impl="fused")
    exact = scores(query.double(), key.double(), score=score.map(torch.Tensor.double))
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)


FILLS = {"nan": torch.nan, "inf": torch.inf, "-inf": -torch.inf}
CASES = [(name, "value", fill) for name in ("Additive", "Trilinear") for fill in FILLS]
CASES += [("Additive", "key", fill) for fill in FILLS]
CASES += [("Trilinear", "key", "nan")]  # a score of −∞ has weight 0, and 0 · ∞ may be either


@pytest.mark.parametrize(("name", "which", "fill"), CASES)
def test_what_is_not_finite_reaches_who_attends_it(name: str, which: str, fill: str) -> None:
    """In float32, where tanh is by exponentials, results are finite as in the definition."""
    xs = tensors(torch.float32)
    with torch.no_grad():
        xs[1 if which == "key" else 2][..., 40, 1] = FILLS[fill]
    score = Additive(None, None, xs[3]) if name == "Additive" else Trilinear(*xs[3:])
    mask = torch.ones(1, 2, 5, 67, dtype=torch.bool)
    mask[:, 0, 1:4, 40] = False
    fused, reference = (results(xs, score, impl, mask=mask) for impl in ("fused", "reference"))
    assert torch.isfinite(fused[0][0, 0, 1:4]).all()
    assert not torch.isfinite(fused[0][0, 1]).all() or which == "key"
    for one, other in zip(fused, reference, strict=True):
        good = torch.isfinite(other)
        assert torch.equal(torch.isfinite(one), good)
        torch.testing.assert_close(one[good], other[good], rtol=1e-4, atol=1e-4)


def test_dropout_is_the_definition_s() -> None:
    xs = tensors(torch.float32)
    options = {"mask": Causal("end"), "dropout": 0.4, "dropout_seed": 2**63 + 5}
    fused, reference = (
        results(xs, Additive(None, None, xs[3]), impl, **options) for impl in ("fused", "reference")
    )
    for one, other in zip(fused, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_same_bits_again() -> None:
    xs = tensors(torch.float32)
    one, other = (results(xs, Additive(None, None, xs[3]), "fused") for _ in range(2))
    assert all(map(torch.equal, one, other))


def test_decoding_is_what_many_queries_are(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = [x.detach() for x in tensors(torch.float32)]
    q, k, v, w = xs[0][..., :2, :], *xs[1:4]
    found = []
    for most in (2, 0):
        monkeypatch.setattr(triton, "DECODE_QUERIES", most)
        out = attention(
            q, k, v, score=Additive(None, None, w), mask=Causal("end"), return_lse=True,
            dropout=0.3, dropout_seed=3, impl="fused",
        )  # fmt: skip
        found.append((out.output, out.lse))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_operators_check_out() -> None:
    a, b, value, weight, *_ = tensors(torch.float32, grad=False)
    x = Operands(a, b, weight, value=value, stop=torch.tensor([[[50]]]))
    s = Settings("tanh", 0.5, 2, 0.0, 2, [1, 2], "", 0.0, True)
    arguments = operators.forward.args(x, s)
    torch.library.opcheck(operators.forward.operator, arguments)
    output, stats, scores = operators.forward.operator(*arguments)
    scores = torch.zeros_like(scores)  # as a gradient
    results = Results(output, stats), Results(output, stats, scores)
    arguments = operators.backward.args(x, s, *results)
    torch.library.opcheck(operators.backward.operator, arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Trilinear", *also_weekly("Additive")])
def test_first_and_second_derivatives(name: str) -> None:
    xs = [x.detach()[..., :7, :].clone().requires_grad_() for x in tensors(torch.float64)[:3]]
    w = [x.detach().clone().requires_grad_() for x in tensors(torch.float64)[3:]]

    def run(q: Any, k: Any, v: Any, *w: Any) -> tuple[torch.Tensor, torch.Tensor]:
        score = Additive(None, None, w[0]) if name == "Additive" else Trilinear(*w)
        out = attention(
            q, k, v, score=score, mask=Causal("end"), dropout=0.3, dropout_seed=3, impl="fused",
            return_lse=True,
        )  # fmt: skip
        return out.output, out.lse

    inputs = [*xs, *(w[:1] if name == "Additive" else w)]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    if name == "Additive":  # the definition gives second derivatives
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


# Pairs of users


def of_page(folder: Path) -> Any:
    """Return the page's example as a module: Triton needs the source of its functions."""
    (code,) = (x for x in re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.S) if "Pair(" in x)
    path = folder / "example_of_a_pair.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_a_pair_of_the_user_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = of_page(tmp_path)
    q, k, v, w, *_ = xs = tensors(torch.float32)
    score = module.Softplus(w)
    found = plan(q, k, v, score=score)
    assert found.route == "triton" or "does not know the pair" in found.reason  # no GPU here
    monkeypatch.setattr(cpu, "KEYS", cpu.KEYS | {module.SOFTPLUS.key})
    fused, reference = (
        results(xs, score, impl, mask=Causal("end")) for impl in ("fused", "reference")
    )
    for one, other in zip(fused, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_the_backend_says(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, w, *_ = tensors(torch.float32, grad=False)

    def reason(score: Any) -> str | None:
        options = Options()
        task = anyscore.functional.attention.lower(Call(q, k, v, score), options)[2]
        return torch_triton.KERNELS.why_not(task, options)

    assert reason(Additive(None, None, w)) == "it runs on GPUs, and the tensors are on cpu"
    assert reason(lambda q, k: q @ k.mT) == "the score is a callable"
    assert set(pairs.BY_NAME) == {pair.name for pair in cpu.PAIRS}
    monkeypatch.setattr(torch_triton, "find_spec", lambda name: None)
    torch_triton._problem.cache_clear()
    assert torch_triton._problem() == "Triton is not installed: pip install triton"
    torch_triton._problem.cache_clear()


def test_versions_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old Triton has no kernels; a Triton without float64 products has none for float64."""
    caches = torch_triton._problem, torch_triton._older_than
    for found, problem, wide in (
        ("3.3.1", "it needs Triton 3.4", "3.3.1"),
        ("3.4.0", "", "3.4.0"),
        ("3.5.0", "", ""),
        ("3.10.0", "", ""),
    ):
        monkeypatch.setattr(torch_triton, "version", lambda name, found=found: found)
        for cached in caches:
            cached.cache_clear()
        assert (torch_triton._problem() or "").startswith(problem)
        assert bool(torch_triton._problem()) == bool(problem)
        assert (torch_triton._older_than(torch_triton._FLOAT64) or "") == wide
    for cached in caches:
        cached.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("keys", [11, 70])
@pytest.mark.parametrize("name", ["Additive", "Dot"])
def test_rows_far_from_0(name: str, keys: int) -> None:
    """Rows of −1e9 and of finite minima are as exact as others, in a decoder's step too."""
    made = {name: torch.tensor(x) for name, x in far_rows.example(keys).items()}
    score: Any = Dot() if name == "Dot" else Additive(None, None, torch.ones(4))
    for rows in (slice(None), slice(1, 2), slice(6, 7)):
        q, bias, upstream = (made[x][:, rows].clone() for x in ("query", "bias", "upstream"))
        value = made["value"].clone().requires_grad_()
        options = {"score": score, "bias": bias.requires_grad_(), "impl": "fused"}
        output = attention(q, made["key"], value, **options)
        d_value, d_bias = torch.autograd.grad(output, [value, bias], upstream)
        found = {"output": output, "d_value": d_value, "d_bias": d_bias}
        found |= {"log_weights": log_weights(q, made["key"], **options)}
        s = scores(q, made["key"], **options)
        arrays = (x.detach().numpy() for x in (s, value, upstream))
        far_rows.check(*arrays, **{name: x.detach().numpy() for name, x in found.items()})
