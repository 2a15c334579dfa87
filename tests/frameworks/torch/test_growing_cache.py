"""Under torch.compile, growing caches have one graph for all steps, and NaN instead of errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from anyscore import (
    Additive,
    ALiBi,
    Cache,
    Causal,
    Interval,
    Lengths,
    ScaledDot,
    Score,
    Window,
    attention,
    make_cache,
    record,
)
from anyscore.torch import MultiHeadAttention
from helpers.transformed import WARNINGS

pytestmark = [pytest.mark.sample, *WARNINGS]
B, H, KV, T, D, HIDDEN = 2, 4, 2, 12, 8, 16


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, n, T, D, generator=generator) for n in (H, KV, KV)]


def scores() -> dict[str, Score]:
    generator = torch.Generator().manual_seed(1)
    W_q, W_k, w = (
        torch.randn(*s, generator=generator) for s in ((HIDDEN, D), (HIDDEN, D), (HIDDEN,))
    )
    return {"additive": Additive(W_q, W_k, w), "dot": ScaledDot()}


def step(cache: Cache, q: Tensor, k: Tensor, v: Tensor, score: Score, bias: Any = None) -> Any:
    return cache.append(k, v, score=score).attend(q, score=score, bias=bias)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", ["additive", "dot"])
def test_one_graph_for_all_steps(name: str, window: int | None, backend: str) -> None:
    (q, k, v), score = inputs(), scores()[name]
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(step, backend=counter, fullgraph=True)
    capacity = T if window is None else window
    cache = make_cache(k[..., :2, :], v[..., :2, :], score, capacity=capacity, window=window)
    mask = Causal() if window is None else Window(window - 1, 0)
    expected = attention(q, k, v, score=score, mask=mask, bias=ALiBi())
    for t in range(2, T):
        one = (x[..., t : t + 1, :].contiguous() for x in (q, k, v))
        found = compiled(cache, *one, score, ALiBi())
        torch.testing.assert_close(found, expected[..., t : t + 1, :], rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1
    assert int(cache.length) == T


@pytest.mark.slow
def test_a_whole_loop_is_a_graph() -> None:
    (q, k, v), score = inputs(), scores()["additive"]

    def decode(cache: Cache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = []
        for t in range(3):
            one = (x[..., t : t + 1, :] for x in (q, k, v))
            found.append(step(cache, *one, score))
            cache = cache.reorder(torch.tensor([1, 0]))
        return torch.cat(found, -2)

    def empty() -> Cache:
        return make_cache(k[..., :0, :], v[..., :0, :], score, capacity=T)

    counter = CompileCounterWithBackend("aot_eager")
    found = torch.compile(decode, backend=counter, fullgraph=True)(empty(), q, k, v)
    torch.testing.assert_close(found, decode(empty(), q, k, v), rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 1


@pytest.mark.slow
def test_beams_are_data() -> None:
    (q, k, v), score = inputs(), scores()["additive"]
    counter = CompileCounterWithBackend("inductor")
    reorder = torch.compile(lambda c, beams: c.reorder(beams), backend=counter, fullgraph=True)
    cache = make_cache(k, v, score, capacity=T + 1)
    chosen = torch.arange(B)
    for beams in ([1, 0], [1, 1], [0, 0]):
        reorder(cache, torch.tensor(beams))
        chosen = chosen[beams]
        expected = attention(q, k[chosen], v[chosen], score=score, mask=Causal())
        torch.testing.assert_close(cache.attend(q, score=score), expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["additive", "dot"])
def test_what_does_not_fit_is_nan(name: str) -> None:
    """A compiled step gives NaN beyond the capacity: it cannot raise for a full cache."""
    (q, k, v), score = inputs(), scores()[name]
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    cache = make_cache(k[..., :3, :], v[..., :3, :], score, capacity=4)
    one = [x[..., :1, :].contiguous() for x in (q, k, v)]
    assert not compiled(cache, *one, score).isnan().any()
    for _ in range(2):
        assert compiled(cache, *one, score).isnan().all()


def test_a_cache_is_a_tree() -> None:
    _, k, v = inputs()
    cache = make_cache(k, v, scores()["additive"], capacity=T)
    leaves, spec = torch.utils._pytree.tree_flatten(cache)
    assert len(leaves) == 5
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert again.keys.b is cache.b
    assert again.window is None


@pytest.mark.slow
def test_the_operator_is_one_of_pytorch() -> None:
    b, packed = torch.randn(2, 5, 3), torch.zeros(2, 6, 3)
    args = "tanh", b, packed, torch.tensor(2), 1
    torch.library.opcheck(torch.ops.anyscore.append_keys.default, args)


LAYERS: dict[str, dict[str, Any]] = {
    "additive": {"score": "additive", "kv_heads": 2, "softcap": 2.0, "sink": True},
    "gatv2": {"score": "gatv2", "project_output": False, "bias": False},
    "gaussian": {"score": "gaussian", "batch_first": False},
    "sigmoid": {"normalizer": "sigmoid", "dropout": 0.5, "d_q": 16, "d_v": 16},
}


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_step_by_step(name: str, window: int | None) -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(16, 4, **LAYERS[name]).eval(), torch.randn(2, 7, 16)
    mask = Causal() if window is None else Window(window - 1, 0)
    at_once = layer(x if layer.batch_first else x.transpose(0, 1), mask=mask, bias=ALiBi())
    cache = layer.make_cache(batch=2, capacity=9, window=window)
    found = []
    for part in x.split([3, 1, 1, 2], 1):
        part = part if layer.batch_first else part.transpose(0, 1)
        found.append(layer.step(part, cache, bias=ALiBi()))
    joined = torch.cat(found, 1 if layer.batch_first else 0)
    torch.testing.assert_close(joined, at_once, rtol=1e-4, atol=1e-5)
    with torch.enable_grad(), pytest.raises(ValueError, match="a cache is written to in place"):
        layer.step(part, cache)


@pytest.mark.parametrize("window", [None, 3])
def test_what_a_step_refuses_changes_nothing(window: int | None) -> None:
    layer, x = MultiHeadAttention(16, 4).eval(), torch.randn(2, 4, 16)
    cache = layer.make_cache(2, capacity=4, window=window)
    layer.step(x[:, :2], cache)
    values = cache.values.clone()
    wrong: Any
    for wrong, error in (
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, (ValueError, TypeError)),
        ({"mask": Lengths(torch.ones(7))}, ValueError),
        ({"bias": torch.ones(7)}, ValueError),
        ({"lost": 1}, TypeError),
    ):
        with pytest.raises(error):
            layer.step(x[:, 2:3], cache, **wrong)
    assert int(cache.length) == 2
    assert torch.equal(cache.values, values)
    with pytest.raises(TypeError, match=r"cache is None, expected what layer.make_cache\("):
        layer.step(x, None)  # type: ignore[arg-type]
    for batch, error in ((None, TypeError), (1.5, TypeError), (-1, ValueError)):
        with pytest.raises(error, match="batch must be"):
            layer.make_cache(batch, capacity=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 3])
def test_steps_are_recorded(window: int | None) -> None:
    """Steps become rows of one picture by positions, also where new tokens replace old ones."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(16, 4, score="additive").eval(), torch.randn(2, 7, 16)
    mask = Interval([0, 2], None)
    layer(x, mask=mask & (Causal() if window is None else Window(window - 1, 0)))
    expected = layer.attention_weights
    assert expected is not None
    for heads, examples, some in (
        (None, None, expected),
        ([3, 0], -1, expected[1:, [3, 0]]),
        (slice(1, 2), [1], expected[1:, 1:2]),
    ):
        cache = layer.make_cache(2, capacity=7, window=window)
        with record(layer, heads=heads, examples=examples) as recording:
            for part in x.split([3, 1, 1, 1, 1], 1):
                layer.step(part, cache, mask=mask)
        found = recording.examples()["MultiHeadAttention"]
        assert len(found) == len(some)
        for one, wanted in zip(found, some, strict=True):
            torch.testing.assert_close(torch.tensor(one), wanted, rtol=1e-4, atol=1e-6)
    assert "step" not in vars(layer)


@pytest.mark.slow
def test_a_compiled_layer() -> None:
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(16, 4, score="additive").eval(), torch.randn(2, 6, 16)
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(layer.step, backend=counter, fullgraph=True)
    cache = layer.make_cache(2, capacity=6)
    found = [step(token.contiguous(), cache) for token in x.split(1, 1)]
    torch.testing.assert_close(torch.cat(found, 1), layer(x, mask=Causal()), rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1
