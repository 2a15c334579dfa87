"""States of speech layers have owners and gradients, and steps compile and export."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore.torch import (
    Attention,
    ForwardAttention,
    LocationSensitive,
    MoChA,
    MonotonicAttention,
)
from frameworks.torch.speech.plain_speech import D_K, D_Q, HIDDEN, SIZES, drawn
from helpers import machine
from helpers.by_pair import also_weekly

pytestmark = pytest.mark.sample


def location(**options: Any) -> LocationSensitive:
    return LocationSensitive(D_Q, D_K, HIDDEN, filters=3, kernel=5, **options)


MAKE: dict[str, Callable[[], Any]] = {
    "location": location,
    "forward": lambda: ForwardAttention("additive", **SIZES),
    "monotonic": lambda: MonotonicAttention("additive", **SIZES, noise=0, hard=False),
    "mocha": lambda: MoChA("additive", width=2, **SIZES, noise=0, hard=False),
    "forward, location": lambda: ForwardAttention(location()),
    "monotonic, location": lambda: MonotonicAttention(location(), noise=0, hard=False),
}
LAYERS = pytest.mark.parametrize("name", MAKE)


def made(name: str) -> tuple[Any, Tensor, Tensor]:
    """Return a layer, queries and keys."""
    torch.manual_seed(0)
    return MAKE[name]().double(), drawn(2, 4, D_Q).detach(), drawn(2, 9, D_K, seed=1)


def slopes_of(found: Any, layer: nn.Module, keys: Tensor) -> list[Tensor | None]:
    xs = [keys, *layer.parameters()]
    return list(torch.autograd.grad(found.square().sum(), xs, allow_unused=True))


@LAYERS
def test_a_step_without_gradients_keeps_those_of_the_memory(name: str) -> None:
    """A step without gradients detaches its own results, not keys and values."""
    layer, queries, keys = made(name)
    results = []
    for graph in (False, True):
        state = layer.start(keys)
        with torch.set_grad_enabled(graph):
            state = layer.step(queries[:, 0], state).state
        state = layer.start(keys).after(state) if graph else state
        results.append(slopes_of(layer.step(queries[:, 1], state).output, layer, keys))
    assert results[0][0] is not None
    torch.testing.assert_close(*results)


@LAYERS
def test_gradients_of_others_are_not_written_to(name: str) -> None:
    layer, queries, keys = made(name)
    output, _, state = layer.step(queries[:, 0], layer.start(keys))
    mine = torch.ones_like(state.values)
    torch.autograd.backward([output, state.values], [torch.ones_like(output), mine])
    assert (mine == 1).all()
    output, _, state = layer.step(queries[:, 0], layer.start(keys))
    (output.sum() + state.values.sum()).backward()  # the gradient is one number, expanded


@LAYERS
def test_values_of_a_state_have_gradients_of_their_own(name: str) -> None:
    """Values of a state get the gradients of all later steps, beside gradients of keys or alone."""
    layer, queries, keys = made(name)
    values = drawn(2, 9, 3, seed=2)
    _, _, first = layer.step(queries[:, 0], layer.start(keys, values))
    loss = layer.step(queries[:, 1], first).output.square().sum()
    found = torch.autograd.grad(loss, [first.values, keys], retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(loss, [values, keys]))


@LAYERS
def test_backpropagation_is_truncated(name: str) -> None:
    """Each part has a backward of its own, and values equal those of the sequence."""
    layer, queries, keys = made(name)
    state, outputs = layer.start(keys), []
    for part in queries.split(2, 1):
        state = layer.start(keys).after(state)
        of_part = []
        for query in part.unbind(1):
            step = layer.step(query, state)
            state = step.state
            of_part.append(step.output)
        torch.stack(of_part).sum().backward()
        outputs += of_part
    torch.testing.assert_close(torch.stack(outputs, 1), layer(queries, keys))


@pytest.mark.parametrize("other", MAKE)
@LAYERS
def test_states_of_other_layers_are_refused(name: str, other: str) -> None:
    layer, queries, keys = made(name)
    state = made(other)[0].start(keys)
    if name == other:
        layer.step(queries[:, 0], state)
        return
    with pytest.raises(TypeError, match=r"state must be what start\(\) of this layer gave"):
        layer.step(queries[:, 0], state)


@LAYERS
def test_what_is_no_state_is_refused(name: str) -> None:
    layer, queries, keys = made(name)
    step = layer.step(queries[:, 0], layer.start(keys))
    for state, got in ((None, "None"), (keys, "tensor"), ({}, "{}"), (step, "pass its state")):
        with pytest.raises(TypeError, match=rf"state must be what start\(\) .*{got}"):
            layer.step(queries[:, 0], state)
    of_others = LocationSensitive(D_Q, D_K, HIDDEN, filters=4, kernel=5).double()
    with pytest.raises(TypeError, match="that of another layer, LocationSensitive"):
        location().double().step(queries[:, 0], of_others.start(keys))


@LAYERS
def test_wrong_tensors(name: str) -> None:
    layer, queries, keys = made(name)
    state = layer.start(keys)
    for error, text, call in (
        (TypeError, "values is int64, expected one of", lambda: layer(queries, keys, keys.long())),
        (ValueError, "has shape", lambda: layer.start(keys[..., 1:])),
        (ValueError, "has shape|was made with", lambda: layer.step(queries[:, 0, 1:], state)),
        (TypeError, "convert them to one dtype", lambda: layer.start(keys.float())),
        (
            ValueError,
            "valid_lens holds 2.5, expected whole numbers",
            lambda: layer.start(keys, valid_lens=[2.5] * len(keys)),
        ),
        (TypeError, "convert them to one dtype", lambda: layer.step(queries[:, 0].float(), state)),
    ):
        with pytest.raises(error, match=text):
            call()


@LAYERS
def test_nothing(name: str) -> None:
    layer, queries, keys = made(name)
    assert layer(queries[:, :0], keys).shape == (2, 0, D_K)
    assert layer(queries[:0], keys[:0]).shape == (0, 4, D_K)
    assert not layer(queries, keys[:, :0]).any()


@LAYERS
def test_autocast_gives_its_dtype(name: str) -> None:
    """Steps have autocast's dtype, as whole sequences do."""
    layer, queries, keys = made(name)
    layer, queries, keys = layer.float(), queries.float(), keys.detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        step = layer.step(queries[:, 0], layer.start(keys))
        assert layer(queries, keys).dtype == step.output.dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["location", *also_weekly("mocha", "forward, location")])
def test_steps_with_gradients_are_compiled(name: str) -> None:
    layer, queries, keys = made(name)

    def outputs(queries: Tensor, keys: Tensor) -> Tensor:
        state, found = layer.start(keys), []
        for query in queries.unbind(1):
            output, _, state = layer.step(query, state)
            found.append(output)
        return torch.stack(found, 1)

    results: list[Any] = []
    for run in (outputs, torch.compile(outputs, backend="aot_eager")):
        found = run(queries, keys)
        results.append((found, slopes_of(found, layer, keys)))
    torch.testing.assert_close(*results)


class WithLengths(nn.Module):
    """Layer with lengths as a positional argument."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, queries: Tensor, keys: Tensor, lengths: Tensor) -> Any:
        return self.layer(queries, keys, valid_lens=lengths)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # tracing warns that Python runs once
@pytest.mark.parametrize("how", ["trace", "export"])
@LAYERS
def test_lengths_stay_tensors(name: str, how: str) -> None:
    """A traced or exported layer takes other lengths than the first ones."""
    layer, queries, keys = made(name)
    module, keys = WithLengths(layer).eval(), keys.detach()
    one, other = torch.tensor([9, 5]), torch.tensor([2, 9])
    if how == "trace":
        run: Any = torch.jit.trace(module, (queries, keys, one), check_trace=False)
    else:
        run = torch.export.export(module, (queries, keys, one)).module()
    torch.testing.assert_close(run(queries, keys, other), module(queries, keys, other))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of the exporter
def test_onnx() -> None:
    runtime = machine.package("onnxruntime")
    layer, queries, keys = made("forward, location")
    module, buffer = WithLengths(layer).eval(), io.BytesIO()
    given = queries[:, :2], keys.detach(), torch.tensor([9, 5])
    torch.onnx.export(module, given, buffer, dynamo=True, verbose=False)
    session = runtime.InferenceSession(buffer.getvalue())
    other = *given[:2], torch.tensor([2, 9])
    names = [x.name for x in session.get_inputs()]
    found = session.run(None, dict(zip(names, [x.numpy() for x in other], strict=True)))[0]
    torch.testing.assert_close(torch.from_numpy(found), module(*other).detach())


@pytest.mark.parametrize("name", ["forward", "monotonic", "mocha"])
def test_windows_of_locations(name: str) -> None:
    """Inside another layer, a window is around the peak of that layer's own last weights."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"noise": 0, "hard": False, "offset": 1.0}
    layer: Any = {
        "forward": lambda: ForwardAttention(location(window=(0, 0))),
        "monotonic": lambda: MonotonicAttention(location(window=(0, 1)), **options),
        "mocha": lambda: MoChA(location(window=(0, 1)), width=1, **options, **SIZES),
    }[name]()
    layer, queries, keys = layer.double(), drawn(2, 4, D_Q), drawn(2, 9, D_K, seed=1)
    weights = layer(queries, keys, return_weights=True)[1]
    stop = 0 if name == "forward" else 1
    for i in range(1, 4):
        for b in range(2):
            peak = int(weights[b, i - 1].argmax())
            near = weights[b, i].nonzero().flatten()
            assert len(near)
            assert peak <= near.min()
            assert near.max() <= peak + stop


def test_forward_attention_starts_on_the_first_key_allowed() -> None:
    layer, queries, keys = made("forward")
    mask = torch.arange(9).expand(2, -1) >= torch.tensor([[0], [3]])
    output, weights = layer(queries, keys, mask=mask, return_weights=True)
    step = layer.step(queries[:, 0], layer.start(keys, mask=mask))
    torch.testing.assert_close(step[:2], (output[:, 0], weights[:, 0]))
    torch.testing.assert_close(output[1], layer(queries[1:], keys[1:, 3:])[0])


@pytest.mark.parametrize("kind", [ForwardAttention, MonotonicAttention])
def test_a_callable_is_a_score_of_steps_too(kind: Any) -> None:
    layer = kind(lambda q, k: q @ k[..., :D_Q].mT).eval()
    queries, keys = drawn(2, 4, D_Q), drawn(2, 9, D_K)
    lengths = torch.tensor([9, 4])
    state = layer.start(keys, valid_lens=lengths)
    step = layer.step(queries[:, 0], state)
    torch.testing.assert_close(step.output, layer(queries, keys, valid_lens=lengths)[:, 0])


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("smoothing", lambda: ForwardAttention(location(smoothing=True))),
        ("dropout", lambda: MonotonicAttention(Attention("additive", **SIZES, dropout=0.1))),
        ("sink", lambda: ForwardAttention(Attention("additive", **SIZES, sink=True))),
        ("normalizer", lambda: ForwardAttention(Attention(normalizer="sparsemax"))),
        ("dropout", lambda: MoChA(width=2, **SIZES, chunk_score=Attention(dropout=0.1))),
    ],
)
def test_options_that_energies_do_not_have(text: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"make it without {text}"):
        make()


@pytest.mark.parametrize(
    ("error", "text", "make"),
    [
        (ValueError, "scale must be", lambda: location(scale=float("nan"))),
        (TypeError, "scale must be", lambda: location(scale="2")),
        (TypeError, "smoothing must be", lambda: location(smoothing="no")),
        (TypeError, "bias must be", lambda: location(bias="no")),
        (ValueError, "offset must be", lambda: MonotonicAttention("dot", offset=float("nan"))),
        (TypeError, "noise must be", lambda: MonotonicAttention("dot", noise="1")),  # type: ignore[arg-type]
        (TypeError, "hard must be", lambda: MonotonicAttention("dot", hard="yes")),  # type: ignore[arg-type]
        (TypeError, "agent must be", lambda: ForwardAttention("dot", agent="x")),  # type: ignore[arg-type]
    ],
)
def test_wrong_options(error: type[Exception], text: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=text):
        make()


def test_an_agent_gives_one_logit() -> None:
    layer = ForwardAttention("additive", **SIZES, agent=nn.Linear(D_K + D_Q, 2))
    with pytest.raises(ValueError, match=r"the agent gave \(2, 2\), expected logits \(2, 1\)"):
        layer(torch.ones(2, 4, D_Q), torch.ones(2, 9, D_K))
