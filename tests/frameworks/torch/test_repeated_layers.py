"""Repeated calls of layers, and of functions with options, equal their first calls."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import anyscore
from anyscore import attention, scores
from anyscore.kernels import cpu
from anyscore.masks.objects import Causal, Interval, Keys, Window
from anyscore.torch import Attention, MultiHeadAttention
from helpers.repeated_calls import forget, is_repeated

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")

LENGTHS = torch.tensor([10, 0, 7])
OPTIONS: dict[str, tuple[dict[str, Any], bool]] = {  # True if such calls are repeated
    "none": ({}, True),
    "lengths": ({"valid_lens": LENGTHS}, True),
    "causal": ({"mask": Causal()}, True),
    "both": ({"mask": Causal(), "valid_lens": LENGTHS}, True),
    "cap": ({"softcap": 2.0}, True),
    "sigmoid": ({"normalizer": "sigmoid"}, True),
    "sigmoid with a bias": ({"normalizer": anyscore.Sigmoid(0.5), "valid_lens": LENGTHS}, True),
    "window": ({"mask": Window(3, 0)}, True),
    "keys": ({"mask": Keys(torch.arange(10) % 3 > 0)}, True),
    "boolean": ({"mask": torch.arange(100).reshape(10, 10) % 3 > 0}, True),
    "interval": ({"mask": Interval(torch.tensor([0, 3, 9]), LENGTHS)}, True),
    "dropout": ({"dropout": 0.5, "dropout_seed": 7}, True),
    "dropout, a seed beyond 2⁶³": ({"dropout": 0.1, "dropout_seed": 2**64 - 3}, True),
    "bias": ({"bias": torch.linspace(-1, 1, 10)}, False),
    "sink": ({"sink": 0.5}, False),
    "scores": ({"return_weights": True}, False),
    "lse": ({"return_lse": True}, False),
}


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def inputs(dtype: Any = torch.float64, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = (3, 10, 6), (3, 10, 6), (3, 10, 5), (8, 6), (8, 6), (8,)
    return [torch.randn(s, generator=rng, dtype=dtype).requires_grad_() for s in shapes]


def call(tensors: list[Tensor], **options: Any) -> Tensor:
    query, key, value, *weights = tensors
    found = attention(query, key, value, score=anyscore.Additive(*weights), **options)
    output: Tensor = getattr(found, "output", found)
    return output


def slopes(output: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad((output**2).sum(), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_bits(name: str, dtype: Any) -> None:
    options, repeats = OPTIONS[name]
    for _ in range(2):
        call(inputs(dtype), **options)
    tensors = inputs(dtype, seed=1)
    found = call(tensors, **options)
    of = slopes(found, tensors)
    assert is_repeated(found) is repeats
    forget()
    first = call(tensors, **options)
    assert not is_repeated(first)
    assert torch.equal(found, first)
    for x, y in zip(of, slopes(first, tensors), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIONS)
def test_without_gradients(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options, repeats = OPTIONS[name]
    whole, seen = cpu.forward, []

    def forward(*args: Any) -> None:
        seen.append(args)
        whole(*args)

    monkeypatch.setattr(cpu, "forward", forward)
    with torch.no_grad():
        first = call(inputs(dtype), **options)
        call(inputs(dtype, seed=1), **options)
        seen.clear()
        assert torch.equal(call(inputs(dtype), **options), first)
    assert len(seen) == (not repeats)


@pytest.mark.parametrize("name", [name for name, (_, repeats) in OPTIONS.items() if repeats])
def test_against_the_definition(name: str) -> None:
    options, _ = OPTIONS[name]
    tensors = inputs()
    for calls in range(3):
        found = call(tensors, **options)
        assert is_repeated(found) is (calls > 1)
        exact = call(tensors, **options, impl="reference")
        torch.testing.assert_close(found, exact)
        torch.testing.assert_close(slopes(found, tensors), slopes(exact, tensors))


def test_the_third_call_is_repeated() -> None:
    tensors = inputs()
    assert [is_repeated(call(tensors)) for _ in range(4)] == [False, False, True, True]
    with torch.no_grad():
        assert call(tensors).grad_fn is None


def test_other_strides_are_right() -> None:
    query, key, value, *weights = inputs()
    exact = slopes(call([query, key, value, *weights], return_lse=True), [query, key, value])
    layouts: list[Any] = [
        lambda x: x,
        lambda x: x.mT.contiguous().mT,
        lambda x: torch.stack([x, x], 1)[:, 0],
        lambda x: torch.stack([x, x], 2)[:, :, 0],
    ]
    for layout in layouts:
        for _ in range(4):
            found = slopes(call([query, key, layout(value), *weights]), [query, key, value])
            torch.testing.assert_close(found, exact)


def test_whoever_counts_operators_sees_them() -> None:
    tensors = inputs()
    for _ in range(3):
        call(tensors)
    counts = []
    for again in (True, False):
        if not again:
            forget()
        with FlopCounterMode(display=False) as counter:
            slopes(call(tensors), tensors)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("kind", ["additive", "dot", "heads"])
def test_layers(kind: str, lengths: Any) -> None:
    torch.manual_seed(0)
    layers: dict[str, Any] = {
        "additive": lambda: Attention("additive", hidden=8, d_q=6, d_k=6),
        "dot": lambda: Attention("scaled_dot"),
        "heads": lambda: MultiHeadAttention(6, 2),
    }
    layer = layers[kind]().double()
    query, key, value, *_ = inputs()
    value = key if kind == "heads" else value
    wanted = [*layer.parameters(), query, key]
    found = []
    for _ in range(4):
        output = layer(query, key, value, lengths)
        of_layer = torch.autograd.grad((output**2).sum(), wanted)
        found.append((output, layer.last_weights(), *of_layer))
    for first, *others in zip(*found, strict=True):
        assert all(torch.equal(first, x) for x in others)


def warm(layer: nn.Module, *tensors: Any, **options: Any) -> Tensor:
    """Call a layer until its calls are known; return the last output."""
    *_, last = (layer(*tensors, **options) for _ in range(4))
    return last


def tokens(seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(3, n, 6, generator=rng) for n in (4, 10, 10)]


def test_options_of_a_layer_that_change() -> None:
    torch.manual_seed(0)
    layer, xs = Attention("additive", hidden=8, d_q=6, d_k=6, dropout=0.5).eval(), tokens()
    changes: list[tuple[str, Any]] = [
        ("softcap", 0.5), ("normalizer", "sigmoid"), ("impl", "reference"), ("impl", "auto"),
        ("normalizer", "sparsemax"), ("softcap", 0.0), ("normalizer", "softmax"),
        ("score", anyscore.Gaussian(2.0)), ("score", anyscore.Gaussian(3.0)),
        ("score", lambda q, k: q @ k.mT),
    ]  # fmt: skip
    warm(layer, *xs)
    for name, x in changes:
        setattr(layer, name, x)
        found = warm(layer, *xs)
        fresh = copy.deepcopy(layer)
        assert torch.equal(found, fresh(*xs)), name
        torch.testing.assert_close(layer.attention_weights, fresh.attention_weights)
    layer.train()
    assert not torch.equal(layer(*xs), layer(*xs))  # dropout


def test_projections_are_called_each_time() -> None:
    layer, xs = Attention("additive", hidden=8, d_q=6, d_k=6), tokens()
    warm(layer, *xs)
    seen: list[Any] = []
    layer.W_q.register_forward_hook(lambda module, inputs, output: seen.append(output))
    for calls in (1, 2):
        layer(*xs)
        assert len(seen) == calls
    layer.W_k = nn.Sequential(layer.W_k, nn.Linear(8, 8))
    layer.W_k.weight = layer.W_k[0].weight  # type: ignore[union-attr, assignment]
    before = layer(*xs)
    with torch.no_grad():
        layer.W_k[1].bias.add_(1)  # type: ignore[index, union-attr, operator]
    assert not torch.equal(layer(*xs), before)


@pytest.mark.parametrize("mask", [None, Causal("end")], ids=["no mask", "causal"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["all", "lengths"])
@pytest.mark.parametrize("kind", ["additive", "gaussian", "scaled_dot", "bilinear"])
def test_weights_of_a_repeated_call(kind: str, lengths: Any, mask: Any) -> None:
    """The weights are those of the call, whatever happens to parameters and lengths later."""
    torch.manual_seed(0)
    sizes = {"hidden": 8} if kind == "additive" else {}
    layer, xs = Attention(kind, d_q=6, d_k=6, **sizes), [x.requires_grad_() for x in tokens()]
    lengths = None if lengths is None else lengths.clone()
    exact = copy.deepcopy(layer)(*xs, lengths, mask=mask, return_weights=True)[1]
    output = warm(layer, *xs, lengths, mask=mask)
    output.sum().backward()
    with torch.no_grad():
        for x in layer.parameters():
            x.add_(1)
    torch.testing.assert_close(layer.attention_weights, exact.detach())
    chosen = layer.last_weights(rows=[2, 0], examples=-1)
    torch.testing.assert_close(chosen, exact.detach()[-1, [2, 0]])
    assert not layer.attention_weights.requires_grad


@pytest.mark.parametrize("fill", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("kind", ["additive", "gatv2", "bilinear", "cosine", "gaussian", "heads"])
def test_padding_reaches_no_parameter(kind: str, fill: float) -> None:
    torch.manual_seed(0)
    sizes = {"hidden": 8} if kind in ("additive", "gatv2") else {}
    heads = kind == "heads"
    layer = MultiHeadAttention(6, 2) if heads else Attention(kind, d_q=6, d_k=6, **sizes)
    query, key, value = (x.requires_grad_() for x in tokens())
    of = list(layer.parameters())
    exact = torch.autograd.grad(warm(layer, query, key, value, LENGTHS).sum(), of)
    with torch.no_grad():
        for i, n in enumerate(LENGTHS):
            key[i, n:], value[i, n:] = fill, fill
        query[1] = fill  # without keys
    for _ in range(3):
        found = torch.autograd.grad(layer(query, key, value, LENGTHS).sum(), of)
        for x, y in zip(found, exact, strict=True):
            torch.testing.assert_close(x, y)


def test_copies_of_layers_with_known_calls() -> None:
    layer, xs = Attention("additive", hidden=8, d_q=6, d_k=6), tokens()
    expected = warm(layer, *xs)
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(warm(other, *xs), expected)


def test_nothing_is_kept_of_a_layer() -> None:
    layer, xs = MultiHeadAttention(6, 2), tokens()[1:]
    warm(layer, *xs, mask=Causal()).sum().backward()
    layer(*xs)
    gone = [weakref.ref(x) for x in (layer, layer.attention, *layer.parameters(), *xs)]
    del layer, xs
    gc.collect()
    assert [x() for x in gone] == [None] * len(gone)


@pytest.mark.parametrize("earlier", range(4))
@pytest.mark.parametrize("training", [False, True])
def test_dropout_draws_what_a_first_call_draws(earlier: int, training: bool) -> None:
    """Each call advances PyTorch's generator once, known or not; an evaluated layer does not."""
    layer, other = (Attention("additive", hidden=8, d_q=6, d_k=6, dropout=0.3) for _ in range(2))
    other.load_state_dict(layer.state_dict())
    xs = tokens(0)
    for known in (layer, other):
        known.train(training)
    for _ in range(earlier):
        layer(*xs), attention(*xs, dropout=0.3)
    found = []
    for known in (layer, other):
        if known is other:
            forget()
        torch.manual_seed(5)
        of_layer, of_function = known(*xs), attention(*xs, dropout=0.3)
        slopes_ = torch.autograd.grad((of_layer**2).sum(), tuple(known.parameters()))
        found.append((of_layer, of_function, *slopes_, known.attention_weights, torch.rand(3)))
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("earlier", range(3))
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(earlier: int, reentrant: bool) -> None:
    """A checkpoint counts the saved tensors of a call, which may be known only the second time."""
    layer = Attention("additive", hidden=8, d_q=6, d_k=6)
    W_q, W_k, w_v = layer.parameters()
    xs = [x.requires_grad_() for x in tokens(0)]

    def function(*xs: Tensor) -> Tensor:
        output: Tensor = attention(*xs, score=anyscore.Additive(W_q, W_k, w_v[0]))
        return output

    for call in (layer, function):
        for _ in range(earlier):
            call(*xs)
        checkpoint(call, *xs, use_reentrant=reentrant).sum().backward()


@pytest.mark.slow
def test_threads_with_changing_calls() -> None:
    """Eight threads make 4,000 calls each, of a layer, functions and scores, in changing kinds."""
    torch.manual_seed(0)
    layer = Attention("additive", hidden=8, d_q=6, d_k=6)
    calls: list[Any] = []
    for n in range(6):
        query, key, value = (x[:, : 3 + n % 4] for x in tokens(n))
        given: dict[str, Any] = {"valid_lens": LENGTHS} if n % 2 else {}
        given |= {"mask": Causal("end")} if n % 3 == 0 else {}
        for call in (copy.deepcopy(layer), attention, lambda q, k, _, **x: scores(q, k, **x)):
            exact = call(query, key, value, **given).detach()
            own = layer if isinstance(call, Attention) else call
            calls.append((own, (query, key, value), given, exact))

    def run(thread: int) -> int:
        wrong = 0
        for i in range(4_000):
            call, tensors, given, exact = calls[(7 * i + i // 50 + thread) % len(calls)]
            with torch.set_grad_enabled(i % 5 > 0):
                wrong += not torch.equal(call(*tensors, **given), exact)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [0] * 8
