"""Steps of LocationSensitive are right: states, memory, blocks, precision, padding, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anyscore.torch import LocationSensitive
from frameworks.torch.speech.plain_speech import BATCH, D_K, D_Q, KEYS, QUERIES, drawn, layer

pytestmark = pytest.mark.sample

LENGTHS = torch.tensor([37, 20, 1])


def test_step_is_the_sequence() -> None:
    of, queries, keys = layer(location="both"), drawn(BATCH, QUERIES, D_Q), drawn(BATCH, KEYS, D_K)
    output, weights = of(queries, keys, valid_lens=LENGTHS, return_weights=True)
    state = of.start(keys, valid_lens=LENGTHS)
    for i in range(QUERIES):
        step = of.step(queries[:, i], state)
        state = step.state
        torch.testing.assert_close(step[:2], (output[:, i], weights[:, i]))
    torch.testing.assert_close(state.total, weights.sum(1))


def test_a_state_may_be_used_twice() -> None:
    """Gradients of both futures of a state are added, as in a search over beams."""
    of, keys, queries = layer(), drawn(BATCH, KEYS, D_K), drawn(BATCH, 3, D_Q)
    parameters = list(of.parameters())

    def loss(shared: bool) -> Tensor:
        state = of.step(queries[:, 0], of.start(keys)).state
        again = state if shared else of.step(queries[:, 0], of.start(keys)).state
        ends = of.step(queries[:, 1], state), of.step(queries[:, 2], again)
        return sum(((i + 1) * end.output**2).sum() for i, end in enumerate(ends))  # type: ignore

    slopes = [torch.autograd.grad(loss(x), [keys, queries, *parameters]) for x in (True, False)]
    torch.testing.assert_close(*slopes)


def test_backward_may_come_again() -> None:
    of, keys = layer(), drawn(BATCH, KEYS, D_K)
    output = of(drawn(BATCH, QUERIES, D_Q), keys)
    slopes = [torch.autograd.grad((output**2).sum(), keys, retain_graph=True) for _ in range(2)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_padding_is_not_read(bad: float) -> None:
    of = layer(location="both")
    lengths = torch.tensor([10, 0, KEYS])
    keys = drawn(BATCH, KEYS, D_K).detach()
    soiled = keys.clone()
    soiled[0, 10:], soiled[1] = bad, bad
    results = []
    for x in (keys, soiled):
        x = x.requires_grad_()
        output, weights = of(drawn(BATCH, 3, D_Q), x, valid_lens=lengths, return_weights=True)
        loss = (output**2).sum() + (weights**2).sum()
        results.append((output, weights, torch.autograd.grad(loss, [x, *of.parameters()])))
        assert not weights[1].any()
        assert not output[1].any()
        assert not weights[0, :, 10:].any()
    torch.testing.assert_close(*results)


def kept(of: LocationSensitive, queries: int) -> int:
    """Return the bytes that the graph of so many queries keeps."""
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        alive.append(x)
        return x

    alive: list[Tensor] = []
    keys = drawn(2, 300, D_K)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        of(drawn(2, queries, D_Q), keys)
    return sum(seen.values())


def test_training_keeps_queries_times_keys() -> None:
    """Beside its own row, a query costs the same at any number of filters and hidden units."""
    grown = []
    for hidden, filters in ((4, 2), (512, 64)):
        of = LocationSensitive(D_Q, D_K, hidden, filters=filters, location="both").double()
        each = (kept(of, 9) - kept(of, 5)) / 4
        rows = 2 * (hidden + D_Q + 2 * D_K) * 8
        grown.append((each - rows) / (2 * 300 * 8))
    assert max(grown) < 9  # numbers for each query and key
    assert abs(grown[0] - grown[1]) < 0.5, grown


def test_blocks_and_whole_batches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results agree by the core, without the core in any blocks of hidden units, and uncut."""
    of, results = layer(location="both"), []
    queries, keys = drawn(BATCH, QUERIES, D_Q), drawn(BATCH, 150, D_K)
    for block in ("core", 64, 900, 1 << 17, None):
        if block is None:
            monkeypatch.setattr("anyscore.torch.speech.location._spans", lambda *_: None)
        elif block != "core":
            monkeypatch.setattr("anyscore.backends.torch.energies.runs", lambda _: False)
            monkeypatch.setattr("anyscore.torch.speech.location_energies._BLOCK", block)
        output = of(queries, keys, valid_lens=torch.tensor([150, 70, 0]))
        slopes = torch.autograd.grad((output**2).sum(), [queries, keys, *of.parameters()])
        results.append((output, slopes))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision(dtype: torch.dtype) -> None:
    of = layer(location="both")
    exact = of(drawn(BATCH, QUERIES, D_Q), drawn(BATCH, KEYS, D_K))
    rough = copy.deepcopy(of).to(dtype)
    found = rough(drawn(BATCH, QUERIES, D_Q).to(dtype), drawn(BATCH, KEYS, D_K).to(dtype))
    assert found.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


def test_autocast() -> None:
    of = layer(location="both").float()
    queries, keys = drawn(BATCH, QUERIES, D_Q).float(), drawn(BATCH, KEYS, D_K).float()
    exact = of(queries, keys)
    with torch.autocast("cpu", torch.bfloat16):
        found = of(queries, keys)
    found.sum().backward()
    torch.testing.assert_close(found.float(), exact, rtol=0.2, atol=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@torch.no_grad()
def test_a_step_is_compiled_whole() -> None:
    """Energies are an operator of the graph; with gradients, energies come from outside."""
    of, keys, query = layer(location="both").float(), drawn(2, 30, D_K), drawn(2, D_Q)
    state = of.start(keys.float())
    step = torch.compile(of.step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(query.float(), state)[:2], of.step(query.float(), state)[:2])


def test_no_queries_and_no_keys() -> None:
    of = layer()
    output, weights = of(drawn(2, 0, D_Q), drawn(2, 5, D_K), return_weights=True)
    assert output.shape == (2, 0, D_K)
    assert weights.shape == (2, 0, 5)
    assert of(drawn(2, 3, D_Q), drawn(2, 0, D_K)).tolist() == torch.zeros(2, 3, D_K).tolist()


KEY = torch.ones(2, 5, D_K)
WRONG: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "kernel must be odd", lambda: LocationSensitive(2, 2, 2, kernel=4)),
    (ValueError, "location must be", lambda: LocationSensitive(2, 2, 2, location="last")),
    (ValueError, "initial must be", lambda: LocationSensitive(2, 2, 2, initial="one")),
    (ValueError, "window must be", lambda: LocationSensitive(2, 2, 2, window=(1, -1))),
    (ValueError, "hidden", lambda: LocationSensitive(2, 2, 0)),
    (TypeError, "hidden", lambda: LocationSensitive(2, 2, 2.5)),  # type: ignore[arg-type]
    (ValueError, "keys has shape", lambda: layer().start(KEY[0])),
    (ValueError, "values has shape", lambda: layer().start(KEY, KEY[:1])),
    (ValueError, "valid_lens has shape", lambda: layer().start(KEY, valid_lens=[1, 2, 3])),
    (TypeError, "pass it as mask", lambda: layer().start(KEY, valid_lens=[True, False])),
    (TypeError, "boolean", lambda: layer().start(KEY, mask=torch.ones(2, 5))),
    (ValueError, "mask has shape", lambda: layer().start(KEY, mask=KEY[0] > 0)),
    (ValueError, "queries has shape", lambda: layer()(torch.ones(2, D_Q), KEY)),
    (TypeError, "keys|queries", lambda: layer().start([1, 2])),  # type: ignore[arg-type]
    (
        ValueError,
        "query has shape",
        lambda: layer().step(KEY[0, :3].double(), layer().start(KEY.double())),
    ),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_errors(case: int) -> None:
    error, text, call = WRONG[case]
    with pytest.raises(error, match=text):
        call()


def test_windows_are_read_alone() -> None:
    """Steps of a narrow window equal steps that compute all energies and values."""
    of, queries = layer(location="both", window=(2, 3)), drawn(BATCH, QUERIES, D_Q)
    keys, values, results = drawn(BATCH, 200, D_K), drawn(BATCH, 200, 3, seed=1), []
    for whole in (False, True):
        state, outputs = of.start(keys, values, torch.tensor([200, 90, 0])), []
        if whole:
            state = state._replace(keys=state.keys._replace(spans=None))
        for query in queries.unbind(1):
            step = of.step(query, state)
            state = step.state
            outputs.append(step.output)
        loss = torch.stack(outputs).square().sum()
        slopes = torch.autograd.grad(loss, [queries, keys, values, *of.parameters()])
        results.append((torch.stack(outputs), slopes))
    torch.testing.assert_close(*results)
