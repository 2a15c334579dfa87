"""Repeated calls have the gradients of a first call, bit by bit, and to any order."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import anyscore
from anyscore import attention
from anyscore.functional.cache.prepare import prepare_keys
from anyscore.kernels import cpu
from helpers.repeated_calls import forget, is_repeated

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")

HIDDEN = 8
SCORES: dict[str, Any] = {
    "dot": lambda w: anyscore.Dot(),
    "scaled_dot": lambda w: anyscore.ScaledDot(),
    "additive": lambda w: anyscore.Additive(None, None, w),
    "gatv2": lambda w: anyscore.GATv2(None, None, w),
    "gaussian": lambda w: anyscore.Gaussian(2.0),
    "laplace": lambda w: anyscore.Laplace(2.0),
    "euclidean": lambda w: anyscore.Euclidean(2.0),
}
LENGTHS = torch.tensor([10, 0, 3, 7])
WILD = torch.tensor([[12, 3, 2**40], [1, -5, 2], [0, 0, 0], [10, 11, -(2**63)]])
Inputs = list[Tensor]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def inputs(*lead: int, dtype: Any = torch.float32, queries: int = 3, seed: int = 0) -> Inputs:
    """Draw query, key, value and a weight, all with gradients."""
    rng = torch.Generator().manual_seed(seed)
    shapes = (*lead, queries, HIDDEN), (*lead, 10, HIDDEN), (*lead, 10, 5), (HIDDEN,)
    return [torch.randn(s, generator=rng).to(dtype).requires_grad_() for s in shapes]


def slopes(output: Tensor, tensors: Inputs, **options: Any) -> tuple[Any, ...]:
    """Return the gradients of a loss that is not linear in the output."""
    return torch.autograd.grad((output**2).sum(), tensors, allow_unused=True, **options)


def call(name: str, tensors: Inputs, **options: Any) -> Tensor:
    query, key, value, weight = tensors
    found = attention(query, key, value, score=SCORES[name](weight), **options)
    output: Tensor = getattr(found, "output", found)
    return output


def warm(name: str, tensors: Inputs, **options: Any) -> None:
    for _ in range(3):
        call(name, tensors, **options)


def same(ones: Any, others: Any) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(x is y if x is None or y is None else torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("name", SCORES)
def test_the_same_bits(name: str, lengths: Any, dtype: Any, misses: list[Any]) -> None:
    for lead in ((4,), (4, 2)):
        before = inputs(*lead, dtype=dtype)  # kept, so that `tensors` has other memory
        warm(name, before, valid_lens=lengths)
        tensors = inputs(*lead, dtype=dtype, seed=1)
        n = None if lengths is None else (lengths + 1) % 12  # may exceed the keys
        misses.clear()
        found = call(name, tensors, valid_lens=n)
        of = slopes(found, tensors)
        assert is_repeated(found)
        assert not misses
        whole = call(name, tensors, valid_lens=n, return_lse=True)
        assert torch.equal(found, whole)
        assert same(of, slopes(whole, tensors))


@pytest.mark.parametrize("name", SCORES)
def test_padding_is_not_read(name: str) -> None:
    clean, tensors = inputs(4), inputs(4)
    with torch.no_grad():
        for i, n in enumerate(LENGTHS):
            for x in tensors[1:3]:
                x[i, n:] = float("nan")
        tensors[0][1] = float("inf")  # queries without keys
    warm(name, clean, valid_lens=LENGTHS)
    found = call(name, tensors, valid_lens=LENGTHS)
    of = slopes(found, tensors)
    assert is_repeated(found)
    exact = call(name, clean, valid_lens=LENGTHS)
    assert torch.equal(found, exact)
    assert same(of, slopes(exact, clean))


@pytest.mark.parametrize("name", ["dot", "additive", "laplace"])
def test_only_some_have_gradients(name: str, misses: list[Any]) -> None:
    for wanted in ((0,), (1,), (2,), (3,), (0, 2)):
        tensors = inputs(2)
        for i, x in enumerate(tensors):
            x.requires_grad_(i in wanted)
        if name != "additive" and wanted == (3,):
            continue
        warm(name, tensors)
        misses.clear()
        some = [tensors[i] for i in wanted]
        found = slopes(call(name, tensors), some)
        assert not misses
        assert same(found, slopes(call(name, tensors, return_lse=True), some))


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "gaussian"])
def test_shared_and_grouped_keys(name: str, misses: list[Any]) -> None:
    q, _, _, w = inputs(2, 4)
    for lead in ((2, 2), (1, 1), (2, 1)):
        _, k, v, _ = inputs(*lead)
        tensors = [q, k, v, w]
        warm(name, tensors)
        misses.clear()
        found = slopes(call(name, tensors), tensors)
        assert not misses
        assert same(found, slopes(call(name, tensors, return_lse=True), tensors))


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_prepared_keys(name: str, lengths: Any) -> None:
    q, k, v, w = inputs(4, queries=1)
    score = SCORES[name](w)

    def run(key: Any, **options: Any) -> Tensor:
        found = attention(q, key, v, score=score, valid_lens=lengths, **options)
        output: Tensor = getattr(found, "output", found)
        return output

    keys = prepare_keys(k, score)
    for _ in range(3):
        run(keys)
    found = run(keys)
    of = slopes(found, [q, k, v, w])
    assert is_repeated(found)
    exact = run(keys, return_lse=True)
    assert torch.equal(found, exact)
    assert same(of, slopes(exact, [q, k, v, w]))


@pytest.mark.parametrize("name", ["scaled_dot", "additive", "gaussian"])
@pytest.mark.parametrize("lengths", [None, LENGTHS, WILD], ids=["all", "lengths", "beyond"])
def test_second_derivatives(name: str, lengths: Any) -> None:
    tensors = inputs(4, dtype=torch.float64)
    warm(name, tensors, valid_lens=lengths)

    def second(**options: Any) -> tuple[Any, ...]:
        output = call(name, tensors, valid_lens=lengths, **options)
        firsts = slopes(output, tensors, create_graph=True)
        assert is_repeated(output) is not bool(options)
        return slopes(torch.cat([x.flatten() for x in firsts if x is not None]), tensors)

    found = second()
    assert same(found, second(return_lse=True))
    for x, y in zip(found, second(impl="reference"), strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.allclose(x, y)


def test_gradients_from_above_of_any_layout(misses: list[Any]) -> None:
    tensors = inputs(4)
    warm("additive", tensors)
    misses.clear()
    above = torch.randn(4, 5, 3).mT, torch.ones(()).expand(4, 3, 5), torch.randn(4, 3, 10)[..., ::2]
    for d in above:
        found = torch.autograd.grad(call("additive", tensors), tensors, d)
        exact = torch.autograd.grad(call("additive", tensors), tensors, d.contiguous())
        assert same(found, exact)
    assert not misses
    zeros = torch._efficientzerotensor((4, 3, 5))
    for d in torch.autograd.grad(call("additive", tensors), tensors, zeros):
        assert not d.any()
    negative = torch.complex(torch.zeros(4, 3, 5), -torch.ones(4, 3, 5)).conj().imag
    assert negative.is_neg()
    found = torch.autograd.grad(call("additive", tensors), tensors, negative)
    assert same(found, torch.autograd.grad(call("additive", tensors), tensors, torch.ones(4, 3, 5)))


def test_gradients_from_above_in_a_batch() -> None:
    tensors = inputs(4)
    warm("additive", tensors)
    above = torch.randn(6, 4, 3, 5)
    output = call("additive", tensors)
    each = [torch.autograd.grad(output, tensors, d, retain_graph=True) for d in above]
    found = torch.autograd.grad(output, tensors, above, is_grads_batched=True)
    for x, *ys in zip(found, *each, strict=True):
        torch.testing.assert_close(x, torch.stack(ys))


def test_what_is_written_to() -> None:
    tensors = inputs(2)
    warm("additive", tensors)
    exact = torch.autograd.grad(call("additive", tensors).sum(), tensors)
    output = call("additive", tensors)
    total = output.sum()
    output.detach().zero_()  # a write of the caller
    assert same(torch.autograd.grad(total, tensors, retain_graph=True), exact)
    assert same(torch.autograd.grad(total, tensors, retain_graph=True), exact)
    with torch.no_grad():
        tensors[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(total, tensors)


def test_buffers_and_lengths_may_be_written_to_where_lengths_are_given() -> None:
    """Each call saves its attended rows: later writes to rows and lengths change no gradient."""
    x = torch.randn(2, 6, 8, requires_grad=True)
    found = []
    for options in ({}, {"return_lse": True}):
        keys, values, total = torch.zeros(2, 6, 8), torch.zeros(2, 6, 8), torch.zeros(())
        lengths = torch.zeros(2, dtype=torch.int64)
        for t in range(6):
            keys[:, t], values[:, t] = x[:, t] * 2, x[:, t] + 1
            lengths += 1
            tensors = [x[:, t : t + 1], keys, values, x[0, 0]]
            total = total + call("dot", tensors, valid_lens=lengths, **options).square().sum()
        found.append(torch.autograd.grad(total, x))
    assert same(*found)


def test_lengths_and_tokens_of_inference() -> None:
    with torch.inference_mode():
        lengths, keys = LENGTHS.clone(), torch.randn(4, 10, HIDDEN)
    for _ in range(4):
        q, _, v, w = inputs(4)
        found = call("dot", [q, keys, v, w], valid_lens=lengths)
        assert slopes(found, [q])[0].any()


def test_training_and_evaluation_in_turn(misses: list[Any]) -> None:
    tensors = inputs(2)
    for _ in range(4):
        call("additive", tensors)
        with torch.no_grad():
            call("additive", tensors)
    assert len(misses) <= 5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_weight_that_sees_operators_sees_each_call() -> None:
    seen: list[str] = []

    class Watching(Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))

    q, k, v, w = inputs(2)
    weight = Tensor._make_subclass(Watching, w.detach(), True)
    for _ in range(4):
        seen.clear()
        slopes(call("additive", [q, k, v, weight]), [q])
        assert {"anyscore.forward_v3.default", "anyscore.backward_v3.default"} <= set(seen)


def test_other_arrays_are_looked_at(misses: list[Any]) -> None:
    warm("additive", inputs(2))
    q, k, v, w = inputs(2)
    strided = k.detach().mT.contiguous().mT.requires_grad_()
    for tensors in ([q, strided, v, w], inputs(3), inputs(2, dtype=torch.float64)):
        misses.clear()
        found = slopes(call("additive", tensors), tensors)
        assert len(misses) == 1
        exact = slopes(call("additive", tensors, impl="reference"), tensors)
        for x, y in zip(found, exact, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_looked_at(dtype: Any, misses: list[Any]) -> None:
    tensors = inputs(2, dtype=dtype)
    whole = slopes(call("additive", tensors, return_lse=True), tensors)
    misses.clear()
    for calls in (1, 2, 3, 4):
        assert same(slopes(call("additive", tensors), tensors), whole)
        assert len(misses) == calls


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    """A call becomes known between its first run and the checkpoint's second run."""
    tensors = inputs(4)
    exact = slopes(call("additive", tensors, valid_lens=LENGTHS, return_lse=True), tensors)
    for _ in range(4):
        output = checkpoint(
            lambda *xs: call("additive", list(xs), valid_lens=LENGTHS),
            *tensors,
            use_reentrant=reentrant,
        )
        call("additive", tensors, valid_lens=LENGTHS)
        loss = (output**2).sum()
        for x in tensors:
            x.grad = None
        loss.backward()
        assert same([x.grad for x in tensors], exact)


def test_what_is_saved_elsewhere() -> None:
    tensors = inputs(2)
    warm("additive", tensors)
    exact = slopes(call("additive", tensors), tensors)
    with save_on_cpu():
        output = call("additive", tensors)
    assert same(slopes(output, tensors), exact)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transforms_and_compilers_see_the_call() -> None:
    tensors = inputs(2)
    warm("additive", tensors)
    exact = slopes(call("additive", tensors), tensors)

    def loss(*xs: Tensor) -> Tensor:
        return (call("additive", list(xs)) ** 2).sum()

    given = [x.detach() for x in tensors]
    found = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*given)
    assert same(found, exact)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for x, y in zip(torch.autograd.grad(compiled(*tensors), tensors), exact, strict=True):
        torch.testing.assert_close(x, y)
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        assert call("additive", tensors).dtype == torch.bfloat16


def test_threads_at_once() -> None:
    tensors = inputs(8, queries=20)
    warm("gaussian", tensors)
    exact = slopes(call("gaussian", tensors), tensors)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: slopes(call("gaussian", tensors), tensors), range(100)):
            assert same(found, exact)


def test_no_tensor_is_kept() -> None:
    tensors = inputs(2)
    warm("additive", tensors)
    output = call("additive", tensors)
    torch.autograd.backward(output.sum())
    gone = [weakref.ref(x) for x in (output, *tensors)]
    del output, tensors
    gc.collect()
    assert [x() for x in gone] == [None] * 5
