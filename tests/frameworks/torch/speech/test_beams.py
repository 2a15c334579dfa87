"""A search over beams: states reordered, weights put back by hand, and masks of one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anyscore import Score
from anyscore.score import SCORES, Factors
from anyscore.score.pairs import PRODUCT
from anyscore.torch import ForwardAttention, LocationSensitive, MoChA, MonotonicAttention
from frameworks.torch.speech.plain_speech import D_K, D_Q, HIDDEN, SIZES, drawn
from helpers.by_pair import also_weekly, by_pair

BEAMS, STEPS, KEYS, D_V = 4, 4, 9, 3
ORDERS = [1, 1, 3, 0], [2, 0, 0, 3], [3, 1, 2, 2]
"""Beams that go on after each step but the last."""
LENGTHS = torch.tensor([9, 7, 8, 5])


def location(**options: Any) -> LocationSensitive:
    return LocationSensitive(D_Q, D_K, HIDDEN, filters=3, kernel=5, location="both", **options)


SOFT: dict[str, Any] = {"noise": 0, "hard": False}
MAKE: dict[str, Callable[[], Any]] = {
    "location": location,
    "location, window": lambda: location(window=(1, 2)),
    "forward": lambda: ForwardAttention("additive", **SIZES),
    "forward, agent": lambda: ForwardAttention("additive", **SIZES, agent=nn.Linear(D_V + D_Q, 1)),
    "forward, callable": lambda: ForwardAttention(lambda q, k: q @ k[..., :D_Q].mT),
    "forward, location": lambda: ForwardAttention(location(window=(0, 3))),
    "monotonic": lambda: MonotonicAttention("additive", **SIZES, **SOFT),
    "monotonic, hard": lambda: MonotonicAttention("additive", **SIZES, hard=True, offset=0.0),
    "monotonic, location": lambda: MonotonicAttention(location(), **SOFT),
    "mocha": lambda: MoChA("additive", width=2, **SIZES, **SOFT),
    "mocha, location": lambda: MoChA(location(), width=2, **SIZES, **SOFT),
}
LAYERS = pytest.mark.parametrize("name", MAKE)


def made(name: str) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Return a layer, queries (BEAMS, STEPS, D_Q), keys and values."""
    torch.manual_seed(0)
    layer = MAKE[name]().double()
    for x in layer.parameters():
        nn.init.normal_(x)
    xs = drawn(BEAMS, STEPS, D_Q), drawn(BEAMS, KEYS, D_K, seed=1), drawn(BEAMS, KEYS, D_V, seed=2)
    return layer, *xs


def slopes_of(results: Any, layer: nn.Module, *xs: Tensor) -> list[Tensor | None]:
    loss = sum(x.cos().sum() for x in results)
    if not loss.requires_grad:
        return []
    return list(torch.autograd.grad(loss, [*xs, *layer.parameters()], allow_unused=True))


def searched(layer: Any, queries: Tensor, keys: Tensor, values: Tensor, lengths: Any) -> list[Any]:
    """Return outputs and weights of the last step of a search in which beams go on by ORDERS."""
    state = layer.start(keys, values, lengths)
    for i, beams in enumerate(ORDERS):
        state = layer.step(queries[:, i], state).state.reorder(beams)
    return list(layer.step(queries[:, -1], state)[:2])


def alone(layer: Any, queries: Tensor, keys: Tensor, values: Tensor, lengths: Any) -> list[Any]:
    """Return the results of `searched`, with each of the last beams decoded in a batch of one."""
    results = []
    for beam in range(BEAMS):
        path = [beam]  # the entries that this beam went through, the last first
        for beams in reversed(ORDERS):
            path.append(beams[path[-1]])
        root = slice(path[-1], path[-1] + 1)
        state = layer.start(keys[root], values[root], None if lengths is None else lengths[root])
        for i, entry in enumerate(reversed(path)):
            step = layer.step(queries[entry : entry + 1, i], state)
            state = step.state
        results.append(step[:2])
    return [torch.cat(x) for x in zip(*results, strict=True)]


@pytest.mark.sample
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@LAYERS
def test_a_search_equals_each_beam_alone(name: str, lengths: Any) -> None:
    layer, queries, keys, values = made(name)
    xs = queries, keys, values
    results = [
        (found, slopes_of(found, layer, *xs))
        for found in (run(layer, *xs, lengths) for run in (searched, alone))
    ]
    torch.testing.assert_close(*results)


@by_pair("name", SCORES)
def test_keys_of_every_score_are_reordered(name: str) -> None:
    """Prepared keys move with their biases and packed rows."""
    torch.manual_seed(0)
    hidden = {"hidden": HIDDEN} if name in ("additive", "concat", "gatv2") else {}
    layer = ForwardAttention(name, d_q=D_K, d_k=D_K, **hidden)
    queries, keys = drawn(BEAMS, STEPS, D_K).float(), drawn(BEAMS, KEYS, D_K, seed=1).float()
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            xs = queries, keys, keys, LENGTHS
            torch.testing.assert_close(searched(layer, *xs), alone(layer, *xs))


@dataclass(frozen=True, eq=False)
class Placed(Score):
    """q·k + j: the key bias is the same for all entries of a batch."""

    formula = "q·k + j"
    shapes: ClassVar[dict[str, tuple[str, ...]]] = {}
    equal_widths = True

    def lower(self, xp: Any, query: Tensor, key: Tensor) -> Factors:
        bias = torch.arange(key.shape[-2], dtype=key.dtype) / 4
        return Factors(query, key, PRODUCT, key_bias=bias)


def test_a_key_bias_that_entries_share_stays() -> None:
    layer = ForwardAttention(Placed())
    xs = drawn(BEAMS, STEPS, D_K), drawn(BEAMS, KEYS, D_K, seed=1), drawn(BEAMS, KEYS, D_V), None
    torch.testing.assert_close(searched(layer, *xs), alone(layer, *xs))


def tensors_of(state: Any) -> list[Any]:
    return [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor)]


@LAYERS
def test_the_state_before_stays(name: str) -> None:
    layer, queries, keys, values = made(name)
    state = layer.step(queries[:, 0], layer.start(keys, values, LENGTHS)).state
    before = [x.detach().clone() for x in tensors_of(state)]
    expected = layer.step(queries[:, 1], state)[:2]
    other = state.reorder([3, 3, 0, 1])
    assert type(other) is type(state)
    layer.step(queries[:, 1], other)
    assert all(map(torch.equal, before, tensors_of(state)))
    assert all(map(torch.equal, expected, layer.step(queries[:, 1], state)[:2]))


@pytest.mark.parametrize(
    ("beams", "error", "text"),
    [
        (None, TypeError, r"beams is None, expected integers \(4,\)"),
        ("abcd", TypeError, "beams is 'abcd', expected integers"),
        ([0, 4, 1, 1], ValueError, r"beams\[1\] is 4, expected 0 ≤ beam < 4"),
        ([-1, 0, 1, 2], ValueError, r"beams\[0\] is -1"),
        ([0], ValueError, r"beams has shape \(1,\), expected \(4,\)"),
        ([[0, 1, 2, 3]], ValueError, r"beams has shape \(1, 4\)"),
        ([0.0, 1.0, 2.0, 3.0], TypeError, "beams must be integers, got float32"),
        ([True, False, True, True], TypeError, "beams must be integers, got bool"),
    ],
)
def test_wrong_beams(beams: Any, error: type[Exception], text: str) -> None:
    """The errors are those of a growing cache."""
    layer, _, keys, _ = made("mocha")
    with pytest.raises(error, match=text):
        layer.start(keys).reorder(beams)


def put_back(state: Any, other: Any) -> Any:
    """Return `state` with the weights of another, as a decoder that keeps tensors puts them."""
    names = "weights", "total", "steps", "transition"
    return state._replace(**{name: getattr(other, name) for name in names})


@pytest.mark.sample
@LAYERS
def test_weights_put_back_equal_continuing(name: str) -> None:
    """Values and gradients are the same; many weights of forward attention are exactly 0."""
    layer, queries, keys, values = made(name)
    results = []
    for by_hand in (False, True):
        start = layer.start(keys, values, LENGTHS)
        state, found = start, []
        for query in queries.unbind(1):
            output, weights, state = layer.step(query, state)
            state = put_back(start, state) if by_hand else state
            found += [output, weights]
        results.append((found, slopes_of(found, layer, queries, keys, values)))
    torch.testing.assert_close(*results)
    assert all(x is None or x.isfinite().all() for x in results[1][1])


@LAYERS
def test_replaced_weights_are_obeyed(name: str) -> None:
    """A state that has weights of its own forgets them."""
    layer, queries, keys, values = made(name)
    weights = torch.zeros(BEAMS, KEYS, dtype=torch.float64)
    weights[:, 2:4] = 0.5
    results = []
    for steps in (0, 2):
        state = layer.start(keys, values)
        for query in queries[:, :steps].unbind(1):
            state = layer.step(query, state).state
        for replaced in (state._replace, state.__replace__):
            other = replaced(weights=weights, total=weights, steps=2, transition=None)
            assert torch.equal(other.weights, weights)
            results.append(layer.step(queries[:, 2], other)[:2])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other)


@LAYERS
def test_replaced_values_are_obeyed(name: str) -> None:
    layer, queries, keys, values = made(name)
    results = []
    for others in (values.cos(), values):
        state = layer.step(queries[:, 0], layer.start(keys, others)).state
        state = state._replace(values=values, transition=None)
        output = layer.step(queries[:, 1], state).output
        results.append((output, torch.autograd.grad(output.sum(), values)))
    torch.testing.assert_close(*results)


@LAYERS
def test_gradients_of_replaced_weights(name: str) -> None:
    """Gradients of weights above 0 equal differences; those of weights of exactly 0 are finite."""
    layer, queries, keys, values = made(name)
    state = layer.step(queries[:, 0], layer.start(keys, values)).state.reorder(ORDERS[0])

    def step(weights: Tensor) -> Any:
        other = state._replace(weights=weights, total=weights, steps=1)
        return layer.step(queries[:, 1].detach(), other)[:2]

    weights = torch.softmax(drawn(BEAMS, KEYS, seed=3), -1).detach().requires_grad_()
    if "hard" not in name:
        assert torch.autograd.gradcheck(step, weights)
    one = torch.eye(KEYS, dtype=torch.float64)[[2, 0, 8, 4]].requires_grad_()
    loss = sum(x.cos().sum() for x in step(one))
    xs = [x for x in (one, *layer.parameters()) if x.requires_grad]
    slopes = torch.autograd.grad(loss, xs, allow_unused=True)
    assert all(x is None or x.isfinite().all() for x in slopes)


def test_steps_of_vanishing_weights() -> None:
    """A state keeps weights that underflow, also of reordered beams and after truncation."""
    layer = ForwardAttention(lambda q, k: q @ k.mT)
    queries = torch.tensor([[[0.0, 130.0], [0.0, 130.0], [250.0, 0.0]]]).expand(2, 3, 2)
    keys = torch.tensor([[[0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]]).expand(2, 4, 2)
    output, weights = layer(queries, keys, return_weights=True)
    assert weights[0, 1, 1] == 0  # e⁻¹³⁰ is no float32
    assert weights[0, 2, 2] > 0.9  # reached from there
    state = layer.start(keys)
    for i in range(3):
        step = layer.step(queries[:, i], layer.start(keys).after(state.reorder([1, 0])))
        state = step.state
    torch.testing.assert_close(step[:2], (output[:, 2], weights[:, 2]))


@LAYERS
def test_a_part_after_reordered_beams(name: str) -> None:
    """A state of new keys with the weights of reordered beams equals the reordered state."""
    layer, queries, keys, values = made(name)
    beams, state = ORDERS[0], layer.start(keys, values, LENGTHS)
    for query in queries[:, :2].unbind(1):
        state = layer.step(query, state).state
    state = state.reorder(beams)
    part = layer.start(keys[beams], values[beams], LENGTHS[beams]).after(state)
    results = [layer.step(queries[:, 2], x)[:2] for x in (part, state)]
    torch.testing.assert_close(*results)


@pytest.mark.sample
@LAYERS
def test_a_mask_of_one_step(name: str) -> None:
    """A step takes a mask beside that of `start`; later steps do not have it."""
    layer, queries, keys, values = made(name)
    mask = torch.arange(KEYS) % 4 != 1
    mask = torch.stack([mask, mask.roll(1), mask.roll(2), mask.roll(3)])
    state = layer.step(queries[:, 0], layer.start(keys, values, LENGTHS)).state
    both = torch.arange(KEYS) < LENGTHS[:, None]
    step = layer.step(queries[:, 1], state, mask=mask)
    narrow = layer.step(queries[:, 1], state._replace(allowed=both & mask))
    torch.testing.assert_close(step[:2], narrow[:2])
    assert not step.weights[~(both & mask)].any()
    assert torch.equal(step.state.allowed, both)
    later = layer.step(queries[:, 2], step.state)
    expected = layer.step(queries[:, 2], narrow.state._replace(allowed=both))
    torch.testing.assert_close(later[:2], expected[:2])
    if name.startswith("location"):
        assert later.weights[both & ~mask].any()
    unmasked = layer.step(queries[:, 1], layer.start(keys, values), mask=mask)
    assert unmasked.state.allowed is None
    assert not unmasked.weights[~mask].any()


@LAYERS
def test_wrong_masks_of_one_step(name: str) -> None:
    layer, queries, keys, values = made(name)
    state = layer.start(keys, values)
    for mask, error, text in (
        (torch.ones(BEAMS, KEYS), TypeError, "mask must be a boolean tensor.*got torch.float32"),
        ([True] * KEYS, TypeError, "mask must be a boolean tensor"),
        (torch.ones(KEYS, dtype=torch.bool), ValueError, r"mask has shape \(9,\), expected \(4, 9"),
    ):
        with pytest.raises(error, match=text):
            layer.step(queries[:, 0], state, mask=mask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.parametrize("name", ["forward, location", *also_weekly("forward", "mocha")])
def test_a_search_is_compiled(name: str) -> None:
    """Compiled steps reorder states, and obey replaced weights and masks."""
    layer, queries, keys, values = made(name)
    mask = torch.arange(KEYS).expand(BEAMS, -1) != 2

    def search(queries: Tensor, keys: Tensor, values: Tensor, beams: Tensor) -> list[Tensor]:
        state = layer.start(keys, values, LENGTHS)
        for query in queries.unbind(1):
            output, weights, state = layer.step(query, state, mask=mask)
            state = state.reorder(beams)
            state = state._replace(weights=state.weights.roll(1, -1))
        return [output, weights]

    results: list[Any] = []
    xs = queries, keys, values
    for run in (search, torch.compile(search, backend="aot_eager")):
        found = run(*xs, torch.tensor(ORDERS[0]))
        results.append((found, slopes_of(found, layer, *xs)))
    torch.testing.assert_close(*results)
