"""Interpreted kernels of impl="separable": near the oracle, chosen by each problem for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyscore import Additive, Causal, Keys, Lengths, Score, attention, plan
from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels.triton import pairs
from anyscore.kernels.triton.untried import separable
from anyscore.score import TANH, Factors
from helpers import oracle
from helpers.oracle import numbers

pytestmark = pytest.mark.weekly

WIDTH = 16
Drawn = list[Tensor]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the chunks of columns of the problems of each call; 0 is the exact kernel."""
    found: list[list[int]] = []
    by_rows = separable._by_rows

    def run(*args: Any) -> Tensor:
        made = by_rows(*args)
        found.append(made.tolist())
        return made

    monkeypatch.setattr(separable, "_by_rows", run)
    return found


def drawn(
    deviations: list[float], dtype: torch.dtype = torch.bfloat16, *, queries: int = 70,
    keys: int = 100, heads: tuple[int, int] = (1, 1), width: int = WIDTH, d_v: int = 8,
) -> Drawn:  # fmt: skip
    """Return query, key and value of one entry of a batch per deviation, and w_v of heads.

    Keys have means that queries compensate.
    """
    rng = np.random.default_rng(0)
    scale = np.array(deviations).reshape(-1, 1, 1, 1)
    n, (h, kv) = len(deviations), heads
    shapes = (n, h, queries, width), (n, kv, keys, width), (n, kv, keys, d_v), (h, width)
    query, key, value, w = (rng.standard_normal(x) for x in shapes)
    shift = rng.standard_normal(width)
    made = scale * (query - shift), scale * (key + shift), value, w / width**0.5
    return [torch.tensor(x).to(dtype) for x in made]


def run(xs: Drawn, impl: str = "separable", **options: Any) -> Any:
    query, key, value, w = xs
    score = Additive(None, None, w)
    return attention(query, key, value, score=score, impl=impl, return_lse=True, **options)


def exact(xs: Drawn, mask: Any = None) -> oracle.Result:
    *tokens, w = map(numbers, xs)
    return oracle.attend(*tokens, Additive(None, None, w), mask=mask)


def off(found: Any, expected: np.ndarray) -> float:
    """Return the root mean square of the error."""
    return float(np.sqrt(np.square(numbers(found) - expected).mean()))


def assert_near(xs: Drawn, lse: float = 1e-3, **options: Any) -> Any:
    """Assert at most 1.2 times the exact kernel's error of the output. Return the result.

    lse: the largest error of the log-sum-exp.
    """
    found, fused, truth = run(xs, **options), run(xs, "fused", **options), exact(xs, **options)
    assert off(found.output, truth.output) <= 1.2 * off(fused.output, truth.output)
    attending = np.isfinite(truth.lse)
    assert (numbers(found.lse)[~attending] == -np.inf).all()
    assert not numbers(found.output)[~attending].any()
    assert np.abs(numbers(found.lse)[attending] - truth.lse[attending]).max() <= lse
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_each_problem_has_the_columns_that_it_needs(
    dtype: torch.dtype, chunks: list[list[int]]
) -> None:
    deviations = [0.25, 0.5, 1.0, 2.0]
    xs = drawn(deviations, dtype)
    assert_near(xs, lse=2e-3 if dtype == torch.bfloat16 else 2e-4)
    (found,) = chunks
    if dtype == torch.bfloat16:
        assert found == sorted(found)
        assert 0 < found[0] < found[-1]
    else:  # rounding to float16 is so small that inputs of deviation 2 are left to exact kernels
        assert found[-1] == 0
        assert found[0] > 0


MASKS: dict[str, Callable[[], Any]] = {
    "lengths": lambda: Lengths(np.array([37, 0])),
    "causal": lambda: Causal("end"),
    "boolean": lambda: np.random.default_rng(1).random((2, 1, 70, 100)) > 0.6,
    "both": lambda: Causal("end") & Keys(np.random.default_rng(2).random((2, 100)) > 0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, chunks: list[list[int]]) -> None:
    """A masked token changes no bit, whatever it holds."""
    xs, mask = drawn([0.5, 1.0]), MASKS[name]()
    found = assert_near(xs, mask=mask)
    attended = oracle.allowed(mask, (2, 1), 70, 100)
    for fill in (torch.nan, 1e6):
        for x, read in ((xs[0], attended.any(-1)), (xs[1], attended.any(-2))):
            x[torch.tensor(~read)] = fill
        again = run(xs, mask=mask)
        assert torch.equal(again.output, found.output)
        assert torch.equal(again.lse, found.lse)
    assert all(row == chunks[0] for row in chunks)
    assert all(chunks[0])


@pytest.mark.slow
@pytest.mark.parametrize("fill", [torch.nan, -torch.inf, 3.0, 50.0])
@pytest.mark.parametrize("which", ["query", "key"])
def test_rows_that_are_far_or_not_finite(which: str, fill: float, chunks: list[list[int]]) -> None:
    """Their problem is left to the exact kernels, bit for bit, and other problems are not.

    A row of 3 is too far for its columns; one of 50 makes the deviation of the features too large.
    """
    xs = drawn([0.5, 0.5])
    alone = run([x[:1] for x in xs[:3]] + xs[3:])
    xs[0 if which == "query" else 1][1, 0, 40] = fill
    found, fused = run(xs), run(xs, "fused")
    first, second = chunks[-1]
    assert first > 0 == second
    for one, other, whole in zip(found[::2], alone[::2], fused[::2], strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1].isnan(), whole[1].isnan())
        assert torch.equal(one[1].nan_to_num(), whole[1].nan_to_num())


@pytest.mark.slow
def test_grouped_heads_have_a_choice_each(chunks: list[list[int]]) -> None:
    xs = drawn([0.7], heads=(4, 2))
    xs[0][:, 1] *= 2
    xs[3][2, 4:] = 0
    assert_near(xs, lse=2e-3)
    (found,) = chunks
    assert found[1] > found[0] > found[2] > 0


@pytest.mark.slow
def test_bands_are_parts_of_the_batch(
    chunks: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    xs = drawn([0.5, 1.0])
    whole = run(xs)
    monkeypatch.setattr(separable, "BAND_BYTES", 1)
    apart = run(xs)
    assert torch.equal(whole.output, apart.output)
    assert torch.equal(whole.lse, apart.lse)
    assert all(chunks[0])


@pytest.mark.parametrize(
    "options", [{"dropout": 0.3, "dropout_seed": 7}, {"bias": 1}, {"sink": 0.5}]
)
def test_what_may_go_along(options: dict[str, Any], chunks: list[list[int]]) -> None:
    xs = drawn([0.5], d_v=130, width=5)
    if "bias" in options:
        options = {"bias": torch.tensor(np.random.default_rng(3).standard_normal((70, 100)))}
        options["bias"] = options["bias"].bfloat16()
    found, fused = run(xs, **options), run(xs, "fused", **options)
    torch.testing.assert_close(found.output, fused.output, atol=2e-2, rtol=0)
    torch.testing.assert_close(found.lse, fused.lse, atol=2e-3, rtol=0)
    assert chunks == [[1]]


@pytest.mark.parametrize("sizes", [{"queries": 2}, {"queries": 0}, {"keys": 0}, {"width": 0}])
def test_small_calls_are_exact(sizes: dict[str, int]) -> None:
    xs = drawn([0.5], **sizes)
    found, fused = run(xs), run(xs, "fused")
    assert torch.equal(found.output, fused.output)
    assert torch.equal(found.lse, fused.lse)


def test_plans() -> None:
    query, key, value, w = drawn([1.0])
    found = plan(query, key, value, score=Additive(None, None, w), impl="separable")
    assert found.route == "separable"
    assert "exact enough" in found.reason


# ----------------------------------------------------------------------- gradients


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Record the chunks of columns of the problems of each backward."""
    found: list[list[int]] = []
    by_rows = separable._gradients_by_rows

    def run(*args: Any) -> Tensor:
        made = by_rows(*args)
        found.append(made.tolist())
        return made

    monkeypatch.setattr(separable, "_gradients_by_rows", run)
    return found


def slopes(xs: Drawn, impl: str, dtype: torch.dtype | None = None, **options: Any) -> Drawn:
    """Return the gradients of query, key, value and w_v, for fixed gradients of both results."""
    leaves = [x.to(dtype or x.dtype).detach().requires_grad_() for x in xs]
    found = run(leaves, impl, **options)
    results = [found.output, found.lse.masked_fill(found.lse == -torch.inf, 0.0)]
    upstream = []
    for i, y in enumerate(results):  # the same for each entry of a batch
        one = torch.tensor(np.random.default_rng(i).standard_normal(y.shape[1:])).bfloat16()
        upstream.append(one.to(y.dtype).expand(y.shape))
    return list(torch.autograd.grad(results, leaves, upstream))


def assert_slopes(xs: Drawn, **options: Any) -> Drawn:
    """Assert at most twice the exact kernels' errors of the gradients. Return the gradients."""
    exact = [numbers(x) for x in slopes(xs, "reference", torch.float64, **options)]
    found, fused = slopes(xs, "separable", **options), slopes(xs, "fused", **options)
    for x, y, truth in zip(found, fused, exact, strict=True):
        assert off(x, truth) <= 2 * off(y, truth)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.5, 1.0, 2.0])
def test_gradients(deviation: float, trained: list[list[int]]) -> None:
    """One more column, of ones, has the sums of the gradients of scores."""
    assert_slopes(drawn([deviation]))
    ((found,),) = trained
    columns = {0.5: 8, 1.0: 12, 2.0: 22}[deviation] * WIDTH + 1
    assert found * 64 >= columns


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lengths", "both"])
def test_gradients_under_masks(name: str, trained: list[list[int]]) -> None:
    xs, mask = drawn([0.5, 1.0]), MASKS[name]()
    found = assert_slopes(xs, mask=mask)
    attended = oracle.allowed(mask, (2, 1), 70, 100)
    rows = attended.any(-1), attended.any(-2), attended.any(-2)
    for x, read in zip(xs, rows, strict=False):
        x[torch.tensor(~read)] = torch.nan
    again = slopes(xs, "separable", mask=mask)
    assert all(map(torch.equal, found, again))
    for gradient, read in zip(found, rows, strict=False):
        assert not gradient[torch.tensor(~read)].any()
    assert all(trained[0])


@pytest.mark.slow
@pytest.mark.parametrize("fill", [torch.nan, 1e4])
def test_kernels_leave_out_what_nobody_reads(fill: float) -> None:
    """`attention` clears such tokens before; the kernels themselves do not read them either."""
    query, key, value, w = (x.flatten(0, 1) for x in drawn([0.5, 0.5]))
    stop = torch.tensor([[37] * 60 + [0] * 10, [90] * 70])
    s = Settings("separable_tanh", 1.0, 1, 0.0, 2, (2,))
    upstream = torch.tensor(np.random.default_rng(6).standard_normal((2, 70, 8))).float()

    def call() -> list[Tensor]:
        x = Operands(query, key, w.view(-1), value=value, stop=stop)
        results = separable.forward(pairs.TANH, x, s, torch.float32)
        of = Results(upstream, None)
        slopes = separable.backward(pairs.TANH, x, s, results, of)[:5]
        return [*results[:2], *(y for y in slopes if y is not None)]

    found = call()
    assert all(x.isfinite().all() for x in found[2:])
    query[0, 60:] = key[0, 37:] = value[0, 37:] = key[1, 90:] = value[1, 90:] = fill
    upstream[0, 60:] = fill
    for x, y in zip(found, call(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["far", "query", "value"])
def test_gradients_of_problems_left_to_exact_kernels(which: str, trained: list[list[int]]) -> None:
    xs = drawn([0.5, 0.5])
    alone = slopes([x[:1] for x in xs[:3]] + xs[3:], "separable")
    fill = 50.0 if which == "far" else torch.nan
    xs[2 if which == "value" else 0][1, 0, 40, :3] = fill
    found, fused = slopes(xs, "separable"), slopes(xs, "fused")
    first, second = trained[-1]
    assert first > 0 == second
    for x, one, whole in zip(found[:3], alone, fused, strict=False):
        assert torch.equal(x[0], one[0])
        if which != "value":  # the forward was not exact, and its statistics are not
            assert torch.equal(x[1].isnan(), whole[1].isnan())
            assert torch.equal(x[1].nan_to_num(), whole[1].nan_to_num())
        torch.testing.assert_close(x[1], whole[1], equal_nan=True, rtol=2e-2, atol=2e-2)


def test_gradients_of_grouped_heads_in_bands(
    trained: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bands of problems and of keys add up; a weight of 0 has a gradient."""
    xs = drawn([0.7], heads=(2, 1), keys=200, width=5)
    xs[3][1, 2] = 0
    options = {"dropout": 0.3, "dropout_seed": 7}
    whole = assert_slopes(xs, **options)
    assert whole[3][1, 2] != 0
    monkeypatch.setattr(separable, "BAND_BYTES", 1)
    monkeypatch.setattr(separable, "LEAST_BAND", 128)
    apart = slopes(xs, "separable", **options)
    for x, y in zip(whole, apart, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-2, atol=1e-3)
    assert trained[0] == trained[1]


@dataclass(frozen=True, eq=False)
class WithBias(Score):
    """s = Σ_d w_d tanh(q_d + k_d) + key_bias, key_bias (T_k,)."""

    w: Any
    key_bias: Any

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        bias = xp.broadcast_to(self.key_bias, xp.shape(key)[:-1])
        return Factors(query, key, TANH, weight=self.w, key_bias=bias)


@pytest.mark.slow
def test_a_bias_of_keys(trained: list[list[int]]) -> None:
    query, key, value, w = drawn([0.7], width=5, d_v=130)
    bias = torch.tensor(np.random.default_rng(5).standard_normal(100)).bfloat16()
    found = []
    for impl in ("separable", "fused"):
        leaves = [x.detach().requires_grad_() for x in (w[0], bias, key)]
        score = WithBias(*leaves[:2])
        output = attention(query, leaves[2], value, score=score, impl=impl)
        found.append([output, *torch.autograd.grad(output.float().square().sum(), leaves)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
    assert all(trained[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
def test_transforms_of_pytorch(trained: list[list[int]]) -> None:
    """Compiled calls, vmap and torch.func give the same bits; second derivatives are exact."""
    *xs, w = drawn([0.5], queries=20, keys=30, width=5)

    def call(*xs: Tensor, impl: str = "separable") -> Tensor:
        score = Additive(None, None, w.to(xs[0].dtype))
        return attention(*xs, score=score, impl=impl)

    def loss(*xs: Tensor) -> Tensor:
        return call(*xs).float().square().sum()

    output, compiled = call(*xs), torch.compile(call, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*xs), output)
    assert torch.equal(torch.vmap(call)(*xs), output)
    leaves = [x.clone().requires_grad_() for x in xs]
    (slope,) = torch.autograd.grad(loss(*leaves), leaves[:1], create_graph=True)
    assert torch.equal(torch.func.grad(loss)(*xs), slope)
    (found,) = torch.autograd.grad(slope.float().sum(), leaves[1])
    leaves = [x.double().requires_grad_() for x in xs]
    total = call(*leaves, impl="reference").square().sum()
    (slope,) = torch.autograd.grad(total, leaves[:1], create_graph=True)
    (truth,) = torch.autograd.grad(slope.sum(), leaves[1])
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=0.01 * float(truth.abs().max()))
    assert all(row == trained[0] for row in trained)


@pytest.mark.parametrize("sizes", [{"d_v": 0}, {"width": 0}, {"keys": 0}, {"queries": 0}])
def test_gradients_of_small_calls(sizes: dict[str, int]) -> None:
    xs = drawn([0.5], **{"queries": 5, "keys": 7, **sizes})
    found, fused = (slopes(xs, impl) for impl in ("separable", "fused"))
    for x, y in zip(found, fused, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-2, atol=1e-2)


def test_gradients_by_exact_kernels(trained: list[list[int]]) -> None:
    """float16 rounds less than slopes are off, and a bias of pairs needs all dS."""
    bias = torch.zeros(70, 100, dtype=torch.bfloat16)
    for xs, options in ((drawn([0.5], torch.float16), {}), (drawn([0.5]), {"bias": bias})):
        found, fused = (slopes(xs, impl, **options) for impl in ("separable", "fused"))
        for x, y in zip(found, fused, strict=True):
            torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-3)
    assert not trained
