"""Repeated calls give the bits of the first call, and do nothing that a first call would not."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import anyscore
from anyscore import attention
from anyscore.backends.repeated import MAX_CALLS, MAX_KINDS, REPEATED
from anyscore.functional.cache.prepare import prepare_keys
from anyscore.kernels import cpu
from helpers.repeated_calls import forget, is_known

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")

HIDDEN = 8
W = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(0))
SCORES: dict[str, Any] = {
    "dot": lambda: anyscore.Dot(),
    "scaled_dot": lambda: anyscore.ScaledDot(),
    "additive": lambda: anyscore.Additive(None, None, W.clone()),
    "gatv2": lambda: anyscore.GATv2(None, None, W.clone()),
    "gaussian": lambda: anyscore.Gaussian(2.0),
    "laplace": lambda: anyscore.Laplace(2.0),
    "euclidean": lambda: anyscore.Euclidean(2.0),
    "student_t": lambda: anyscore.StudentT(1.0, 2.0),
}
Inputs = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def inputs(
    *lead: int, dtype: torch.dtype = torch.float32, queries: int = 3, seed: int = 0
) -> Inputs:
    rng = torch.Generator().manual_seed(seed)
    sizes = (queries, HIDDEN), (10, HIDDEN), (10, 5)
    q, k, v = (torch.randn(*lead, *size, generator=rng).to(dtype) for size in sizes)
    return q, k, v


def warm(score: Any, *tensors: Any) -> Any:
    """Call until the call is known; return the first result."""
    first, *_ = (attention(*tensors, score=score) for _ in range(3))
    return first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SCORES)
def test_the_same_bits(name: str, dtype: torch.dtype, misses: list[Any]) -> None:
    score = SCORES[name]().map(lambda x: x.to(dtype))
    for lead in ((), (2,), (2, 4)):
        first = warm(score, *inputs(*lead, dtype=dtype))
        misses.clear()
        again = attention(*inputs(*lead, dtype=dtype), score=score)
        assert not misses
        assert again.dtype == dtype
        assert torch.equal(again, first)
        others = inputs(*lead, dtype=dtype, seed=1)
        found = attention(*others, score=score)
        assert not misses
        assert torch.equal(found, attention(*others, score=score, return_lse=True).output)


def test_the_second_call_is_looked_at_and_the_third_is_not(misses: list[Any]) -> None:
    score = anyscore.Dot()
    for calls in (1, 2, 2, 2):
        attention(*inputs(), score=score)
        assert len(misses) == calls


@pytest.mark.parametrize("name", ["dot", "additive"])
def test_prepared_keys(name: str, misses: list[Any]) -> None:
    score = SCORES[name]()
    q, k, v = inputs(2, queries=1)
    keys = prepare_keys(k, score)
    first = warm(score, q, keys, v)
    misses.clear()
    assert torch.equal(attention(q, keys, v, score=score), first)
    more = prepare_keys(k + 1, score)
    exact = attention(q, k + 1, v, score=score, impl="reference")
    torch.testing.assert_close(attention(q, more, v, score=score), exact)
    assert len(misses) == 1  # the call of the reference
    with pytest.raises(ValueError, match="the keys were prepared for the score"):
        attention(q, keys, v, score=SCORES["gaussian"]())


def test_heads_that_share_keys(misses: list[Any]) -> None:
    score = anyscore.ScaledDot()
    q, (_, k, v) = inputs(2, 4)[0], inputs(2, 2)
    first = warm(score, q, k, v)
    misses.clear()
    assert torch.equal(attention(q, k, v, score=score), first)
    assert not misses


def test_a_weight_that_changes_in_place_is_seen() -> None:
    score = SCORES["additive"]()
    warm(score, *inputs())
    with torch.no_grad():
        score.w_v.mul_(-1)
    exact = attention(*inputs(), score=score, impl="reference")
    torch.testing.assert_close(attention(*inputs(), score=score), exact)
    score.w_v.data = score.w_v.data.double()  # another dtype from now on
    with pytest.raises(TypeError, match="dtype"):
        attention(*inputs(), score=score)


def test_outputs_are_memory_of_their_own() -> None:
    score = anyscore.Dot()
    first = warm(score, *inputs())
    one, two = (attention(*inputs(), score=score) for _ in range(2))
    one.zero_()
    assert torch.equal(two, first)


def test_other_sizes_strides_and_types_are_looked_at() -> None:
    score = anyscore.Dot()
    q, k, v = inputs(2)
    warm(score, q, k, v)
    for others in (
        (q[:1], k[:1], v[:1]),
        (q.double(), k.double(), v.double()),
        (q, k.mT.contiguous().mT, v),
        (q[:, :, :4], k[:, :, :4], v),
        (q, k.expand(2, 10, HIDDEN)[:1], v[:1]),
        (torch.nn.Parameter(q, False), k, v),
    ):
        assert not is_known(score, *others)
        exact = attention(*others, score=score, impl="reference")
        torch.testing.assert_close(attention(*others, score=score), exact)


@pytest.mark.parametrize("wrong", ["width", "keys", "device", "type"])
def test_wrong_input_is_refused_as_ever(wrong: str) -> None:
    score = anyscore.Dot()
    q, k, v = inputs(2)
    warm(score, q, k, v)
    bad: Any = {
        "width": (q[..., :3], k, v), "keys": (q, k, v[:, :4]), "device": (q, k.to("meta"), v),
        "type": (q.numpy(), k, v),
    }[wrong]  # fmt: skip
    with pytest.raises((ValueError, TypeError)):
        attention(*bad, score=score)


def test_gradients_are_asked_for() -> None:
    score = SCORES["additive"]()
    q, k, v = inputs()
    warm(score, q, k, v)
    for x in (q, k, v, score.w_v):
        x.requires_grad_()
        assert attention(q, k, v, score=score).requires_grad
        with torch.no_grad():
            assert is_known(score, q, k, v)
        x.requires_grad_(False)
    assert is_known(score, q, k, v)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modes_see_the_call() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    score = anyscore.Dot()
    q, k, v = inputs(2)
    first = warm(score, q, k, v)
    with Names():
        attention(q, k, v, score=score)
    assert any("anyscore" in name for name in seen)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v, score=score).dtype == torch.bfloat16
    with torch.inference_mode():
        assert torch.equal(attention(q, k, v, score=score), first)
    mapped = torch.vmap(lambda a, b, c: attention(a, b, c, score=score))(q, k, v)
    torch.testing.assert_close(mapped, first)
    _, slope = torch.func.jvp(
        lambda a: attention(a, k, v, score=score), (q,), (torch.ones_like(q),)
    )
    assert slope.any()
    with torch.profiler.profile() as profile:
        attention(q, k, v, score=score)
    assert any("anyscore" in event.key for event in profile.key_averages())


def test_tensors_that_are_not_what_their_memory_holds() -> None:
    score = anyscore.Dot()
    q, k, v = inputs(2)
    first = warm(score, q, k, v)
    negative = torch.complex(torch.zeros_like(q), -q).conj().imag  # −(−q), not computed yet
    same = torch.empty_strided(q.shape, tuple(2 * s for s in q.stride())).copy_(q)
    warm(score, same, k, v)  # with the strides of `negative`
    assert negative.is_neg()
    assert negative.stride() == same.stride()
    escaped: list[Tensor] = []
    torch.func.grad(lambda x: (escaped.append(x), x.sum())[1])(q)
    for other in (negative, escaped[0]):
        assert torch.equal(attention(other, k, v, score=score), first)
    zeros = torch._efficientzerotensor(q.shape)
    exact = attention(torch.zeros_like(q), k, v, score=score)
    assert torch.equal(attention(zeros, k, v, score=score), exact)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_graph_holds_the_operator() -> None:
    score = anyscore.Dot()
    q, k, v = inputs(2)
    first = warm(score, q, k, v)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: attention(*x, score=score), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, v), first)
    torch._dynamo.reset()


@pytest.mark.parametrize("weight", ["an array", "a list", "a string"])
def test_a_weight_that_is_no_tensor_is_refused_as_ever(weight: str) -> None:
    made: Any = {"an array": W.numpy(), "a list": W.tolist(), "a string": "w"}[weight]
    tensors = inputs(2)
    with pytest.raises(TypeError) as first:
        attention(*tensors, score=anyscore.Additive(None, None, made))
    warm(SCORES["additive"](), *tensors)
    with pytest.raises(TypeError) as later:
        attention(*tensors, score=anyscore.Additive(None, None, made))
    assert str(later.value) == str(first.value)


def test_a_score_of_a_user_is_lowered_each_time(misses: list[Any]) -> None:
    factor = 1.0

    class Mine(anyscore.Dot):
        def lower(self, xp: Any, query: Any, key: Any) -> Any:
            return super().lower(xp, query * factor, key)

    for factor in (1.0, 2.0, 3.0, 4.0):
        found = attention(*inputs(), score=Mine())
        query, key, value = inputs()
        torch.testing.assert_close(
            found, attention(query * factor, key, value, score=anyscore.Dot())
        )
    assert not is_known(Mine(), *inputs())


def test_few_calls_are_kept_of_few_scores_and_no_tensors() -> None:
    score = SCORES["additive"]()
    for n in range(2, 14):
        warm(score, *inputs(n))
    of_tensors = REPEATED[Tensor]
    assert max(map(len, of_tensors.known.values())) == MAX_CALLS
    assert is_known(score, *inputs(13))
    assert not is_known(score, *inputs(2))
    gone = weakref.ref(score), weakref.ref(score.w_v)
    del score
    gc.collect()
    assert [x() for x in gone] == [None, None]
    for n in range(2 * MAX_KINDS):
        warm(anyscore.Gaussian(1.0 + n), *inputs())
    assert 0 < len(of_tensors.known) <= MAX_KINDS
    assert 0 < len(of_tensors.seen) <= MAX_KINDS


def test_a_score_that_is_made_anew_is_known_by_what_it_is_made_of(misses: list[Any]) -> None:
    q, k, v = inputs(2)
    warm(SCORES["additive"](), q, k, v)
    warm(anyscore.Gaussian(2.0), q, k, v)
    misses.clear()
    w = torch.ones(HIDDEN)
    found = attention(q, k, v, score=anyscore.Additive(None, None, w))
    assert not misses
    exact = attention(q, k, v, score=anyscore.Additive(None, None, w), impl="reference")
    torch.testing.assert_close(found, exact)
    for other in (
        anyscore.Gaussian(3.0),
        anyscore.Gaussian(torch.tensor(2.0)),
        anyscore.Additive(torch.eye(HIDDEN), None, w),
        anyscore.Additive(None, None, w, torch.ones(HIDDEN)),
        anyscore.GATv2(None, None, w),
    ):
        misses.clear()
        found = attention(q, k, v, score=other)
        assert len(misses) == 1
        exact = attention(q, k, v, score=other, impl="reference")
        torch.testing.assert_close(found, exact)


def test_another_instruction_set_is_used() -> None:
    core = cpu._core
    before, score = core.isa(), SCORES["additive"]()
    warm(score, *inputs(4))
    try:
        for isa in core.isas():
            core.use(isa)
            whole = attention(*inputs(4), score=score, return_lse=True).output
            assert torch.equal(attention(*inputs(4), score=score), whole)
    finally:
        core.use(before)


def test_threads_at_once() -> None:
    score = SCORES["gaussian"]()
    tensors = inputs(8, queries=40)
    first = warm(score, *tensors)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: attention(*tensors, score=score), range(200)):
            assert torch.equal(found, first)


def test_what_is_not_finite_is_as_ever() -> None:
    score = anyscore.ScaledDot()
    q, k, v = inputs(2)
    warm(score, q, k, v)
    q[0, 1, 2], v[1, 3, 0] = float("nan"), float("inf")
    whole = attention(q, k, v, score=score, return_lse=True).output
    torch.testing.assert_close(
        attention(q, k, v, score=score), whole, equal_nan=True, rtol=0, atol=0
    )
