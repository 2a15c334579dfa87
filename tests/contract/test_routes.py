"""`plan` returns the route of a call and its reason; no call falls back in silence."""

from __future__ import annotations

import math
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    Additive,
    Causal,
    Dot,
    Edges,
    Gaussian,
    Lengths,
    Plan,
    ScaledDot,
    Score,
    Window,
    attention,
    plan,
)
from anyscore.kernels import cpu
from anyscore.score.factors import Factors
from anyscore.score.pairs import TANH, Pair
from helpers import machine
from helpers.by_pair import also_weekly, by_pair
from helpers.hang import HANG
from helpers.samples import NAMES, make_score, normal
from helpers.table_scores import ROWS
from helpers.transformed import WARNINGS

B, T_Q, T_K, D, D_V = 2, 3, 7, 5, 11
FUSED = "fused, and keeps the contract"

pytestmark = [pytest.mark.sample, *WARNINGS]
needs_core = machine.needs_core


def call(**change: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        name: torch.tensor(normal(B, t, D))
        for name, t in (("query", T_Q), ("key", T_K), ("value", T_K))
    }
    for name, x in change.items():
        made[name] = made[name].requires_grad_() if isinstance(x, str) else x
    return made


@needs_core
@pytest.mark.parametrize(
    ("dtype", "queries", "route"),
    [
        (torch.float32, T_Q, "cpu"),
        (torch.float64, T_Q, "cpu"),
        (torch.bfloat16, T_Q, "sdpa"),
        (torch.bfloat16, 2, "cpu"),
    ],
)
def test_products_take_the_faster_one(dtype: Any, queries: int, route: str) -> None:
    q, k, v = (torch.tensor(normal(B, t, D)).to(dtype) for t in (queries, T_K, T_K))
    assert plan(q, k, v) == Plan(route, FUSED)


def test_fused_where_the_contract_is_kept(no_core: None) -> None:
    q, k, v = (torch.tensor(normal(B, t, D)) for t in (T_Q, T_K, T_K))
    assert plan(q, k, v) == Plan("sdpa", FUSED)
    assert plan(q, k, v, impl="fused").route == "sdpa"
    assert plan(q, k, v, impl="reference") == Plan("reference", "asked for")
    for score in (Dot(), ScaledDot(), ScaledDot(0.3), ScaledDot(torch.tensor(0.3).double())):
        assert plan(q, k, v, score=score).route == "sdpa"
        fused = attention(q, k, v, score=score, impl="fused")
        torch.testing.assert_close(fused, attention(q, k, v, score=score, impl="reference"))
    with torch.no_grad():
        assert plan(q.clone().requires_grad_(), k, v).route == "sdpa"


NOT_SDPA = pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("the score is not a product", {"score": make_score("Additive").map(torch.tensor)}),
        ("the product has biases", {"score": make_score("Trilinear").map(torch.tensor)}),
        ("NaN in masked keys or values would reach the output", {"valid_lens": [3, 4]}),
        ("its dropout is not reproducible across devices", {"dropout": 0.1}),
        ("it gives the output alone", {"return_lse": True}),
        ("it gives the output alone", {"return_weights": True}),
        ("its second derivatives raise", {"query": "grad"}),
        ("its second derivatives raise", {"value": "grad"}),
        ("d_v ≠ d_k leaves its fused path", {"value": torch.zeros(B, T_K, D_V).double()}),
    ],
)


@needs_core
@NOT_SDPA
def test_the_core_where_sdpa_is_not(reason: str, change: dict[str, Any]) -> None:
    assert plan(**call(**change)) == Plan("cpu", FUSED)
    fused, reference = (
        attention(**call(**change), dropout_seed=0, impl=i) for i in ("fused", "reference")
    )
    torch.testing.assert_close(fused, reference)


@NOT_SDPA
def test_the_reference_where_neither_is(reason: str, change: dict[str, Any], no_core: None) -> None:
    made = call(**change)
    reasons = f"sdpa: {reason}; cpu: it is not there"
    assert plan(**made) == Plan("reference", reasons)
    with pytest.raises(NotImplementedError) as error:
        attention(**made, impl="fused")
    assert str(error.value) == f'impl="fused" cannot run: {reasons}. Use impl="auto".'
    auto, reference = (attention(**made, dropout_seed=0, impl=i) for i in ("auto", "reference"))
    torch.testing.assert_close(auto, reference, rtol=0, atol=0)


SQUARES = f"{FUSED}; (a − b)² as a² + b² − 2ab where a bound on its rounding allows"
IN_PARTS = {
    "squared": SQUARES,
    "absolute": f"{FUSED}; |a − b| as 2 max(a, b) − a − b where a bound on its rounding allows",
    "leaky_relu": f"{FUSED}; leaky_relu(a + b) by max(a, −b) where a bound on its rounding allows",
}


@needs_core
def test_steps_and_edges_are_not_taken_in_parts() -> None:
    x = normal(B, T_Q, D)
    assert plan(x, x, x, score=Gaussian()).reason == SQUARES
    assert plan(x[:, :2], x, x, score=Gaussian()).reason == FUSED
    edges = Edges([0, 1, 1, 2], [0, 1])
    assert plan(x, x, x, score=Gaussian(), mask=edges).reason == FUSED


@needs_core
@by_pair("name", NAMES)
def test_numpy_has_the_core(name: str) -> None:
    arrays = [normal(B, t, D) for t in (T_Q, T_K, T_K)]
    score = make_score(name)
    options: dict[str, Any] = {"score": score, "valid_lens": [3, 5], "return_lse": True}
    assert plan(*arrays, **options) == Plan("cpu", IN_PARTS.get(ROWS[name].pair, FUSED))
    fused, reference = (attention(*arrays, **options, impl=i) for i in ("fused", "reference"))
    np.testing.assert_allclose(fused.output, reference.output, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(fused.lse, reference.lse, rtol=1e-12, atol=1e-14)


def test_numpy_without_the_core(no_core: None) -> None:
    arrays = [normal(B, t, D) for t in (T_Q, T_K, T_K)]
    assert plan(*arrays) == Plan("reference", "cpu: it is not there")
    with pytest.raises(NotImplementedError, match="cpu: it is not there"):
        attention(*arrays, impl="fused")


@dataclass(frozen=True, eq=False)
class Own(Score):
    """A user's score: s = scale · Σ pair(q, k)."""

    pair: Pair
    scale: Any = 1.0
    weight: Any = None

    def lower(self, xp: Any, query: Any, key: Any) -> Factors:
        return Factors(query, key, self.pair, self.weight, self.scale)


OTHER = Pair("difference of squares", lambda xp, a, b: (a + b) * (a - b))


def test_what_a_score_keeps_beside_its_fields_is_no_parameter() -> None:
    score = Own(TANH, weight=np.ones(D))
    vars(score)["kept"] = np.ones(3)
    assert list(score.tensors()) == ["weight"]
    assert score.map(lambda x: 2 * x).weight[0] == 2


def test_names_of_pairs_are_taken_once() -> None:
    def value(xp: Any, a: Any, b: Any) -> Any:
        return a * b

    first = Pair("of this test", value)
    assert Pair("of this test", value) == first  # a notebook may run its cell again
    with pytest.raises(ValueError, match=r"a pair 'tanh' already, of .*pairs\._tanh"):
        Pair("tanh", value)


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (lambda q, k: q @ k.swapaxes(-1, -2), "the score is a callable"),
        (Own(OTHER), "it does not know the pair 'difference of squares'"),
        (Own(TANH, scale=np.array(2.0)), "the scale of the score is not a number"),
        (Own(TANH, weight=np.ones(D, "int16")), "a factor of the score is int16"),
    ],
    ids=["callable", "pair", "scale", "weight"],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@needs_core
def test_what_the_core_does_not_know(score: Any, reason: str, framework: str) -> None:
    to = torch.tensor if framework == "torch" else np.asarray
    score = score.map(to) if isinstance(score, Own) else score
    arrays = [to(normal(B, t, D)) for t in (T_Q, T_K, T_K)]
    assert plan(*arrays, score=score) == Plan(
        "reference",
        ("sdpa: the score is not a product; " if framework == "torch" else "") + f"cpu: {reason}",
    )


@needs_core
def test_tensors_elsewhere() -> None:
    made = [torch.zeros(B, t, D, device="meta") for t in (T_Q, T_K, T_K)]
    reason = plan(*made, valid_lens=3).reason
    assert reason.endswith(
        "triton: there are no kernels for meta; the reference needs 504 bytes or more"
    )


@needs_core
def test_forward_mode() -> None:
    """Forward mode runs the reference under "auto" and raises NotImplementedError under "fused"."""
    q, k, v = (torch.tensor(normal(B, t, D)) for t in (T_Q, T_K, T_K))

    def f(q: torch.Tensor, impl: str) -> torch.Tensor:
        return attention(q, k, v, mask=Lengths(4), impl=impl).square().sum()

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(leaf, "fused"), leaf)
    _, found = torch.func.jvp(lambda q: f(q, "auto"), (q,), (torch.ones_like(q),))
    torch.testing.assert_close(found, expected.sum())
    with pytest.raises(NotImplementedError, match="forward mode does not reach into it"):
        torch.func.jvp(lambda q: f(q, "fused"), (q,), (torch.ones_like(q),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        tangent = torch.autograd.forward_ad.unpack_dual(f(dual, "auto")).tangent
        torch.testing.assert_close(tangent, expected.sum())
        with pytest.raises(NotImplementedError):
            f(dual, "fused")


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("mask", [Lengths(4), *also_weekly(Causal("end"))])
def test_compiled_forward_mode_is_not_silently_wrong(mask: Any) -> None:
    q, k, v = (torch.tensor(normal(B, t, D)) for t in (T_Q, T_K, T_K))

    def f(q: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v, mask=mask).square().sum()

    def derivative(q: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(f, (q,), (torch.ones_like(q),))[1]

    torch._dynamo.reset()
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(f(leaf), leaf)
    compiled = torch.compile(derivative, backend="eager")
    try:
        torch.testing.assert_close(compiled(q), expected.sum())
        torch.testing.assert_close(torch.compile(f, backend="eager")(q), f(q))
        twice = torch.compile(torch.func.hessian(f), backend="eager")(q)
        torch.testing.assert_close(twice, torch.func.jacrev(torch.func.jacrev(f))(q))
    finally:
        torch._dynamo.reset()


WITHOUT = """
import sys
sys.modules["anyscore._core"] = None
import numpy as np
from anyscore import attention, plan
x = np.ones((2, 3, 5))
print(plan(x, x, x).reason)
assert attention(x, x, x).shape == x.shape
"""


def test_without_the_core_everything_works_and_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=HANG
    )
    assert done.stdout.startswith("cpu: the C++ core cannot be loaded (")
    assert "C++17 compiler" in done.stdout


def test_what_is_masked_by_a_window_of_everything_is_nothing(no_core: None) -> None:
    """A window without bounds is no mask, so PyTorch's SDPA may run."""
    q = torch.tensor(normal(B, T_K, D))
    assert plan(q, q, q, mask=Window(None, None)).route == "sdpa"


def test_isa() -> None:
    assert (cpu.isa() is None) == (cpu.problem() is not None)


@needs_core
def test_the_fused_way_makes_nothing_of_all_pairs() -> None:
    """The core makes neither mask nor scores of intervals; 16,384² booleans would take 256 MiB."""
    n = 16_384
    x = np.ones((1, n, 1), np.float32)
    score = Additive(None, None, np.ones(1, np.float32))
    tracemalloc.start()
    out = attention(x, x, x, score=score, mask=Causal() & Lengths(n - 5), impl="fused")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20
    assert math.isclose(float(out[0, -1, 0]), 1.0, rel_tol=1e-5)


MUCH = {
    "additive": (lambda w: Additive(None, None, w), "64 GiB"),  # 2 arrays of queries × keys × width
    "gaussian": (lambda w: Gaussian(1.0), "64 GiB"),
    "product": (lambda w: Dot(), "1.5 GiB"),  # 3 arrays of queries × keys
}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize(("score", "memory"), MUCH.values(), ids=MUCH)
def test_a_plan_says_what_memory_the_reference_needs(
    score: Any, memory: str, impl: str, no_core: None
) -> None:
    """A plan states a large memory of the reference, and makes no array of that size."""
    x, few = (np.broadcast_to(np.zeros((), np.float32), (2, n, 64)) for n in (8192, 2048))
    found = plan(x, x, x, score=score(np.ones(64, np.float32)), impl=impl)
    assert found.route == "reference"
    assert found.reason.endswith(f"; the reference needs {memory} or more")
    assert "needs" not in plan(few, few, few, score=Dot(), impl=impl).reason


def test_what_memory_edges_and_doubles_need(no_core: None) -> None:
    nodes, edges = 1000, 2**21
    graph = Edges.from_index(np.zeros((2, edges), np.int64), nodes)
    x = np.zeros((nodes, 64))
    reason = plan(x, x, x, score=Gaussian(1.0), mask=graph).reason
    assert reason.endswith("; the reference needs 4 GiB or more")


@needs_core
def test_kernels_need_no_memory_of_the_reference() -> None:
    x = np.ones((1, 2, 3))
    assert plan(x, x, x).reference_bytes is None


@pytest.mark.parametrize("mask", [None, Causal()], ids=["whole", "causal"])
@pytest.mark.parametrize("score", [Gaussian(1.0), Dot()], ids=["gaussian", "dot"])
def test_the_memory_of_a_plan_is_what_the_reference_takes(score: Any, mask: Any) -> None:
    """The measured peak is between the stated bytes and twice as many."""
    x = np.ones((2, 256, 32), np.float32)
    call = {"score": score, "mask": mask, "impl": "reference"}
    stated = plan(x, x, x, **call).reference_bytes
    assert stated is not None
    tracemalloc.start()
    attention(x, x, x, **call)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stated <= most <= 2 * stated


def test_plan_takes_what_attention_takes(no_core: None) -> None:
    x = torch.randn(1, 2, 3, 4)
    assert plan(x, x, x, dropout_seed=3).route == "sdpa"
    assert plan(x, x, x, return_weights=True, dropout_seed=3).route == "reference"
