"""Repeated calls of PyTorch: layers, derivatives, modes and hooks, threads, and memory."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import anyscore
from anyscore import attention, make_cache, scores
from anyscore.masks.objects import Causal, Window
from anyscore.torch import Attention, MultiHeadAttention, Pointer
from helpers import machine
from helpers.by_pair import by_pair
from helpers.repeated_calls import (
    Arguments,
    Call,
    Draw,
    assert_same,
    call_of,
    check,
    forget,
    outcome,
)
from helpers.repeated_kinds import KINDS, additive, merged

pytestmark = [
    pytest.mark.sample,
    machine.needs_core,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of transforms and compilers
]


class Heads(MultiHeadAttention):
    """Heads whose values are the keys."""

    def forward(self, query: Tensor, key: Tensor, _: Tensor, *args: Any, **options: Any) -> Any:
        return super().forward(query, key, key, *args, **options)


class Pointing(Pointer):
    """A pointer of one step, whose keys are prepared for each."""

    def forward(self, query: Tensor, key: Tensor, _: Tensor, mask: Any = None) -> Tensor:  # type: ignore[override]
        left = None if mask is None else mask[:2]
        return 1.0 * super().forward(query[:, 0].contiguous(), self.prepare_keys(key), left)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "additive": lambda: Attention("additive", hidden=8, d_q=4, d_k=4),
    "gaussian": lambda: Attention("gaussian", d_q=4, d_k=4),
    "euclidean": lambda: Attention(anyscore.Euclidean(2.0)),
    "bilinear": lambda: Attention("bilinear", d_q=4, d_k=4),
    "scaled dot": Attention,
    "sink": lambda: Attention("scaled_dot", sink=True),
    "dropout": lambda: Attention("additive", hidden=8, d_q=4, d_k=4, dropout=0.3),
    "heads": lambda: Heads(4, 2),
    "pointer": lambda: Pointing("additive", 1, 10.0, hidden=8, d_q=4, d_k=4),
}
OF_LAYERS = "no mask", "booleans of all", "lengths", "causal, lengths", "interval", "padding"


NEVER = "gaussian", "sink"  # a learned scale, and a sink, which the core does not know
NOT_TRAINED = [(name, "padding") for name in ("additive", "bilinear", "dropout")]
"""Calls that are not repeated with gradients: padding is not finite, and a matrix meets it."""


def of(layer: nn.Module, mask: str = "no mask") -> Arguments:
    """Return the arguments of calls of a layer."""
    arguments: Any = merged(mask)
    return lambda d: arguments(d) | {"function": layer}


def layer_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[name]()


@pytest.mark.parametrize(("mask", "order"), [("lengths", 0), *((mask, 1) for mask in OF_LAYERS)])
@by_pair("name", LAYERS)
def test_layers(name: str, mask: str, order: int) -> None:
    """Outputs, derivatives and weights, with other parameters in each call."""
    if name == "pointer" and mask in OF_LAYERS[2:]:
        pytest.skip("it takes booleans")
    layer = layer_of(name)
    never = name in NEVER or (order and (name, mask) in NOT_TRAINED)
    repeats = "never" if never else "at once"
    check(*(call_of(of(layer, mask), "torch", seed, order) for seed in (0, 1)), repeats, layer)


ATTRIBUTES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "softcap": ({"softcap": 0.0}, {"softcap": 2.0}, "later"),
    "boolean softcap": ({"softcap": 1.0}, {"softcap": True}, "never"),
    "normalizer": ({"normalizer": "softmax"}, {"normalizer": "sigmoid"}, "later"),
    "sparsemax": ({"normalizer": "softmax"}, {"normalizer": "sparsemax"}, "never"),
    "implementation": ({"impl": "auto"}, {"impl": "reference"}, "never"),
    "score": ({"score": anyscore.Gaussian(2.0)}, {"score": anyscore.Gaussian(3.0)}, "never"),
    "callable": ({"score": anyscore.Dot()}, {"score": lambda q, k: q @ k.mT}, "never"),
    "rate": ({"dropout": 0.3}, {"dropout": 0.5}, "later"),
    "mode": ({"dropout": 0.3, "training": True}, {"training": False}, "later"),
}
"""Attributes of a layer, other ones, and when calls with these are repeated."""


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_layer(name: str) -> None:
    layer = Attention(anyscore.Gaussian(2.0))
    known, other, repeats = ATTRIBUTES[name]
    given: list[Arguments] = [
        {"function": layer, "attributes": known}, {"function": layer, "attributes": known | other}
    ]  # fmt: skip
    check(*(call_of(x, "torch", seed, 1) for seed, x in enumerate(given)), repeats, layer)


@pytest.mark.parametrize("mask", [Causal("end"), Window(1, 1), None])
@pytest.mark.parametrize("option", ["bias", "weights", "no option"])
def test_arguments_of_a_layer(option: str, mask: Any) -> None:
    """Calls without options follow calls with them, and the reverse."""
    layer, arguments = layer_of("additive"), merged(option)
    calls = []
    for seed, names in enumerate(({}, {"mask": mask})):
        calls.append(call_of(lambda d, x=names: {"function": layer, **x}, "torch", seed, 1))
    assert callable(arguments)
    with_option = call_of(lambda d: arguments(d) | {"function": layer}, "torch", 2, 1)
    check(*calls, None, layer)
    check(calls[0], with_option, "at once" if option == "no option" else "never", layer)


class Names(TorchDispatchMode):
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Watching(Tensor):
    """A tensor that notes the names of operators."""

    names: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(str(func))
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


def named(call: Call) -> list[Any]:
    with Names() as seen:
        return [*call(), [x for x in seen.names if "anyscore" in x]]


def counted(call: Call) -> list[Any]:
    with FlopCounterMode(display=False) as counter:
        return [*call(), counter.get_total_flops()]


def profiled(call: Call) -> list[Any]:
    with torch.profiler.profile() as profile:
        found = call()
    return [*found, sorted(x.key for x in profile.key_averages() if "anyscore" in x.key)]


def packed(call: Call) -> list[Any]:
    shapes = []
    with saved_tensors_hooks(lambda x: (shapes.append(x.shape), x)[1], lambda x: x):
        return [*call(), shapes]


def within(context: Callable[[], Any], call: Call) -> list[Any]:
    with context():
        return call()


def mapped(*tensors: Tensor, **x: Any) -> Any:
    return torch.vmap(partial(attention, **x))(*tensors)


def pushed(query: Tensor, key: Tensor, value: Tensor, **x: Any) -> Any:
    function = partial(attention, key=key, value=value, **x)
    return torch.func.jvp(function, (query,), (torch.ones_like(query),))


def pulled(*tensors: Tensor, **x: Any) -> Any:
    return torch.func.grad(lambda *y: attention(*y, **x).square().sum(), (0, 1, 2))(*tensors)


def dual(query: Tensor, key: Tensor, value: Tensor, **x: Any) -> Any:
    with forward_ad.dual_level():
        query = forward_ad.make_dual(query.detach(), torch.ones_like(query))
        return forward_ad.unpack_dual(attention(query, key, value, **x))[:2]


def traced(*tensors: Tensor, **x: Any) -> Any:
    inputs = tuple(y.detach() for y in tensors)
    return torch.jit.trace(lambda *y: attention(*y, **x), inputs, check_trace=False)(*inputs)


def nested(*tensors: Tensor, **x: Any) -> Any:
    inputs = (torch.nested.nested_tensor(list(y), layout=torch.jagged) for y in tensors)
    return attention(*inputs, **x).to_padded_tensor(0.0)


WRAPPERS: dict[str, Callable[[Call], list[Any]]] = {
    "names": named, "flops": counted, "profile": profiled, "saved": packed,
    "autocast": partial(within, lambda: torch.autocast("cpu", torch.bfloat16)),
    "elsewhere": partial(within, save_on_cpu),
}  # fmt: skip
FUNCTIONS = mapped, pushed, pulled, dual, traced, nested


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", WRAPPERS)
def test_modes(name: str, order: int) -> None:
    known, other = (call_of(KINDS["additive"], "torch", seed, order) for seed in (0, 1))
    check(known, partial(WRAPPERS[name], other), "never")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_transforms(function: Any) -> None:
    known = call_of({"score": anyscore.Dot()}, "torch", 0)
    check(known, call_of({"score": anyscore.Dot(), "function": function}, "torch", 1), "never")


@pytest.mark.slow
def test_a_compiled_graph_holds_the_operator() -> None:
    d = Draw("torch", 0)
    tensors = d(2, 3, 4), d(2, 5, 4), d(2, 5, 6)
    function = partial(attention, score=additive(d))
    exact, *_ = (function(*tensors) for _ in range(3))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(*tensors), exact)
    torch._dynamo.reset()


def test_inference() -> None:
    """Calls of inference are repeated; and calls with gradients whose lengths come from one."""
    known, other = (call_of(KINDS["additive"], "torch", seed) for seed in (0, 1))
    check(known, partial(within, torch.inference_mode, other), "at once")
    with torch.inference_mode():
        length, key = torch.tensor(3), torch.ones(2, 5, 4)
    given: Arguments = {"key": key, "score": anyscore.Dot()}
    calls = (call_of(lambda d: given | {"valid_lens": length}, "torch", n, 1) for n in (0, 1))
    check(*calls)


def negated(x: Tensor) -> Tensor:
    """Return x as −(−x), not computed yet."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def escaped(x: Tensor) -> Tensor:
    """Return x as a tensor of a transform that has ended."""
    found: list[Tensor] = []
    torch.func.grad(lambda y: (found.append(y), y.sum())[1])(x.detach())
    return found[0]


def spread(x: Tensor) -> Tensor:
    """Return x with the strides of `negated`."""
    return torch.stack([x, x], -1)[..., 0]


def watching(x: Tensor) -> Tensor:
    return Tensor._make_subclass(Watching, x.detach(), x.requires_grad)


LAZY = torch._efficientzerotensor
UNUSUAL: dict[str, Callable[[Tensor], Any]] = {
    "negated": negated, "escaped": escaped, "zero": lambda x: LAZY(x.shape),
    "parameter": lambda x: nn.Parameter(x.detach(), False),
    "expanded": lambda x: x[:1].expand_as(x),
    "meta": lambda x: x.to("meta"), "array": lambda x: x.detach().numpy(), "watching": watching,
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
@pytest.mark.parametrize("place", ["query", "key", "value", "w_v", "W_q", "projected"])
def test_unusual_tensors(place: str, name: str) -> None:
    """Tensors that are not what their memory holds, or not of a known type."""

    def given(unusual: Callable[[Tensor], Any], d: Draw) -> dict[str, Any]:
        x: dict[str, Any] = {"query": d(2, 3, 4), "key": d(2, 5, 4), "value": d(2, 5, 6)}
        x |= {"w_v": d(4), "W_q": d(4, 4) if place in ("W_q", "projected") else None}
        changed = "query" if place == "projected" else place
        x[changed] = unusual(x[changed])
        return {"score": anyscore.Additive(x.pop("W_q"), None, x.pop("w_v")), **x}

    known, other = (spread, negated) if name == "negated" else (lambda x: x, UNUSUAL[name])
    calls = [partial(given, known), partial(given, other)]
    check(*(call_of(x, "torch", seed, order=1) for seed, x in enumerate(calls)))


def test_a_weight_that_sees_operators_sees_each_call() -> None:
    def given(d: Draw) -> dict[str, Any]:
        Watching.names.clear()
        return {"score": anyscore.Additive(None, None, watching(d(4)))}

    def call(seed: int) -> list[Any]:
        found = call_of(given, "torch", seed, 1)()
        return [*found, [name for name in Watching.names if "anyscore" in name]]

    assert call(0)[-1]
    check(partial(call, 0), partial(call, 1), "never")


UPSTREAM: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda d: d.mT.contiguous().mT,
    "expanded": lambda d: d[:1, :1, :1].expand_as(d),
    "every other": spread,
    "negated": negated,
    "zero": lambda d: LAZY(d.shape),
    "with a gradient": lambda d: d.requires_grad_(),
    "watching": watching,
}


@pytest.mark.parametrize("function", [attention, scores])
@pytest.mark.parametrize("name", UPSTREAM)
def test_gradients_from_above(name: str, function: Any) -> None:
    """Gradients from above have any layout and kind; some need second derivatives."""

    def call(above_of: Callable[[Tensor], Tensor]) -> list[Any]:
        d = Draw("torch", 0, 1)
        tokens = [d(2, 3, 4), d(2, 5, 4), d(2, 5, 6)][: 2 + (function is attention)]
        output = function(*tokens, score=additive(d))
        above = above_of(torch.linspace(-1, 2, output.numel()).view_as(output))
        leaves, second = d.leaves[: len(tokens)] + d.leaves[-1:], above.requires_grad
        found = list(torch.autograd.grad(output, leaves, above, create_graph=second))
        found += torch.autograd.grad(found, above, found) if second else []
        return [x.detach() for x in found]

    check(partial(call, lambda d: d), partial(call, UPSTREAM[name]))


def test_gradients_from_above_in_a_batch() -> None:
    def call(*, batched: bool) -> list[Any]:
        d = Draw("torch", 0, 1)
        output = attention(d(2, 3, 4), d(2, 5, 4), d(2, 5, 6), score=additive(d))
        above = torch.stack([torch.ones(2, 3, 6), torch.linspace(-1, 2, 36).view(2, 3, 6)])
        return list(torch.autograd.grad(output, d.leaves, above, is_grads_batched=True))

    check(call_of(KINDS["additive"], "torch", 0, 1), partial(call, batched=True))


OF_SECOND_ORDER = (
    "heads",
    "lengths",
    "lengths of queries",
    "causal, lengths",
    "interval",
    "booleans",
    "dropout",
    "scores",
    "softcap",
)


@pytest.mark.parametrize("other", OF_SECOND_ORDER)
@pytest.mark.parametrize("name", ["scaled dot", "prepared additive"])
def test_second_derivatives(name: str, other: str) -> None:
    calls = (call_of(merged(name, other), "torch", seed, 2) for seed in (0, 1))
    check(*calls, "at once")


@pytest.mark.parametrize("wanted", range(4))
def test_gradients_of_some(wanted: int) -> None:
    """One of query, key, value and weight needs a gradient; or no tensor, after such calls."""

    def call(seed: int, *, enabled: bool = True) -> list[Any]:
        d = Draw("torch", seed)
        tensors = [d(2, 3, 4), d(2, 5, 4), d(2, 5, 6), d(4)]
        tensors[wanted].requires_grad_()
        score = anyscore.Additive(None, None, tensors[3])
        with torch.set_grad_enabled(enabled):
            output = attention(*tensors[:3], score=score)
        return [output, *(torch.autograd.grad(output.sum(), tensors[wanted]) if enabled else [])]

    check(partial(call, 0), partial(call, 1), "at once")
    check(partial(call, 0), partial(call, 1, enabled=False), "at once")
    check(partial(call, 0), call_of(KINDS["additive"], "torch", 1), "at once")


@pytest.mark.parametrize("name", ["key", "w_v", "mask"])
def test_writes_to_saved_tensors_are_detected(name: str) -> None:
    d = Draw("torch", 0, 1)
    x, score = {"query": d(2, 3, 4), "key": d(2, 5, 4), "value": d(2, 5, 6)}, additive(d)
    x |= {"mask": d.booleans(2, 3, 5)} if name == "mask" else {}
    for _ in range(4):
        output = attention(**x, score=score)
        with torch.no_grad():
            (score.w_v if name == "w_v" else x[name]).fill_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(output.sum(), d.leaves)


@pytest.mark.parametrize("earlier", range(4))
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("mask", ["no mask", "lengths"])
def test_checkpoints(mask: str, reentrant: bool, earlier: int) -> None:
    """A call may become known between a checkpoint's first and second run."""
    layer, arguments = layer_of("additive"), merged(mask)
    assert callable(arguments)

    def call(function: Any, times: int, *, checked: bool) -> list[Any]:
        forget(layer)
        for n in range(times + 1):
            d = Draw("torch", 0, 1)
            x = {"query": d(2, 3, 4), "key": d(2, 5, 4), "value": d(2, 5, 6)}
            score = {} if function is layer else {"score": additive(d)}
            run = partial(function, **arguments(d), **score)
            again = partial(checkpoint, run, use_reentrant=reentrant) if checked else run
            output = again(*x.values()) if n == times else run(*x.values())
        run(*x.values())
        output.square().sum().backward()
        return [output.detach(), *(y.grad for y in d.leaves[:3])]

    for function in (attention, layer):
        wanted = outcome(partial(call, function, 0, checked=False))
        assert_same(outcome(partial(call, function, earlier, checked=True)), wanted)


def test_hooks_of_modules_see_each_call() -> None:
    layer = layer_of("additive")
    assert isinstance(layer, Attention)
    known = call_of(of(layer), "torch", 0, 1)

    def hooked(register: Callable[[Any], Any]) -> list[Any]:
        seen: list[Any] = []
        handle = register(lambda *args: seen.append(type(args[0])))
        found = call_of(of(layer), "torch", 1, 1)()
        handle.remove()
        return [*found, seen.count(type(layer.W_q))]

    for register in (
        layer.W_q.register_forward_hook,
        layer.W_k.register_forward_pre_hook,
        nn.modules.module.register_module_forward_hook,
    ):
        check(known, partial(hooked, register), "never", layer)
    layer.W_k = nn.Sequential(layer.W_k, nn.Linear(8, 8))
    layer.W_k.weight = layer.W_k[0].weight  # type: ignore[union-attr, assignment]
    check(known, call_of(of(layer), "torch", 1, 1), "never", layer)


def test_copies_of_a_layer_know_no_calls() -> None:
    layer = layer_of("additive")
    known = call_of(of(layer), "torch", 0, 1)
    first, *_ = (outcome(known) for _ in range(3))
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same(outcome(call_of(of(other), "torch", 0, 1)), first)
        assert other._calls is not layer._calls  # type: ignore[union-attr]


KEPT = "no mask", "booleans", "interval", "prepared additive", "dropout", "scores", "lengths"


@pytest.mark.parametrize("name", KEPT)
def test_nothing_is_kept_of_a_call(name: str) -> None:
    references: list[Any] = []
    arguments = merged("additive", name)
    assert callable(arguments)

    def noted(d: Draw) -> dict[str, Any]:
        x = arguments(d)
        found = [
            *d.leaves,
            *(getattr(x.get("key"), n, None) for n in ("b", "packed")),
            x.get("mask"),
        ]
        references.extend(weakref.ref(y) for y in found if y is not None)
        return x

    for given in (noted, lambda d: {k: v for k, v in noted(d).items() if k != "score"}):
        for seed in range(4):
            outcome(call_of(given, "torch", seed, 1))
    gc.collect()
    assert not any(reference() is not None for reference in references)


def test_nothing_is_kept_of_a_layer() -> None:
    layer = layer_of("heads")
    for seed in range(4):
        outcome(call_of(of(layer, "causal, lengths"), "torch", seed, 1))
    gone = [weakref.ref(x) for x in (*layer.modules(), *layer.parameters())]
    del layer
    gc.collect()
    assert not any(x() is not None for x in gone)


def appended(old: Any, key: Any, value: Any, count: int = 1) -> list[Any]:
    """Append to a cache, which a query then attends to; return the cache and the output."""
    cache = make_cache(*old, capacity=8)
    for _ in range(count):
        cache.append(key(cache), value)
    return [cache.b, cache.values, cache.length, cache.attend(torch.ones(2, 1, 4))]


def test_appends() -> None:
    """Rows of the cache itself, rows with gradients, rows in a cache of inference."""
    d = Draw("torch", 0)
    old, new, values = (d(2, 3, 4), d(2, 3, 6)), d(2, 1, 4), d(2, 1, 6)
    with_gradient = new.clone().requires_grad_()
    known = partial(appended, old, lambda cache: new, values)
    check(known, partial(appended, old, lambda cache: cache.b[:, 1:2], values, 4))
    check(known, partial(appended, old, lambda cache: with_gradient, values))
    check(known, partial(within, torch.inference_mode, known))
    with torch.inference_mode():
        cache = make_cache(*old, capacity=8)
    check(known, lambda: [cache.append(new, values)])
    check(known, partial(within, torch.inference_mode, lambda: [cache.append(new, values).length]))


def test_appends_are_seen_by_what_was_saved() -> None:
    d = Draw("torch", 0)
    cache = make_cache(d(2, 3, 4), d(2, 3, 6), capacity=8)
    new, query = (d(2, 1, 4), d(2, 1, 6)), d(2, 1, 4).requires_grad_()
    for _ in range(2):
        output = cache.append(*new).attend(query)
        cache.append(*new)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_threads_at_once() -> None:
    calls = [call_of(KINDS[name], "torch", 0, 1) for name in ("additive", "gaussian")]
    firsts = [call() for call in calls]
    with ThreadPoolExecutor(4) as pool:
        for n, found in enumerate(pool.map(lambda n: calls[n % 2](), range(100))):
            assert_same(found, firsts[n % 2])


@pytest.mark.slow
def test_threads_with_changing_calls() -> None:
    """Eight threads make 4,000 calls each, of a layer, functions and scores, in changing kinds."""
    layer, calls = layer_of("additive"), list[Any]()
    for n in range(6):
        d = Draw("torch", n)
        tensors = d(3, 4 + n % 4, 4), d(3, 10, 4), d(3, 10, 6)
        given: dict[str, Any] = {"valid_lens": torch.tensor([10, 0, 7])} if n % 2 else {}
        given |= {"mask": Causal("end")} if n % 3 == 0 else {}
        for call in (copy.deepcopy(layer), attention, lambda q, k, _, **x: scores(q, k, **x)):
            exact = call(*tensors, **given).detach()
            calls.append((layer if isinstance(call, Attention) else call, tensors, given, exact))

    def run(thread: int) -> int:
        wrong = 0
        for i in range(4_000):
            call, tensors, given, exact = calls[(7 * i + i // 50 + thread) % len(calls)]
            with torch.set_grad_enabled(i % 5 > 0):
                wrong += not torch.equal(call(*tensors, **given), exact)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [0] * 8
