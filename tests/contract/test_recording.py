"""Recorded weights are the weights of each call; afterwards the model keeps no trace."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyscore import Edges, record
from anyscore.plot.recording import Recording
from anyscore.torch import Attention, MultiHeadAttention, Pointer, SelfAttention

pytestmark = pytest.mark.sample


class Model(nn.Module):
    """PyTorch's encoder layer with `MultiHeadAttention`, and layers without heads, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(12, 3, batch_first=True, dropout=0.0)
        self.encoder.self_attn = MultiHeadAttention(12, 3, score="additive")
        self.middle = SelfAttention(12, 4)
        self.last = Attention("gaussian", d_q=12, d_k=12)
        self.unused = Attention()

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.encoder(x))
        output: Tensor = self.last(x, x)
        return output


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


X = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(1))


def hooks(model: nn.Module) -> list[Any]:
    return [hook for module in model.modules() for hook in module._forward_hooks.values()]


def test_it_has_the_weights_of_all_layers(model: Model) -> None:
    with record(model) as recording:
        model(X)
    assert recording.layers == ["encoder.self_attn", "middle", "last", "unused"]
    for name, weights in recording.calls:
        wanted = model.get_submodule(name).attention_weights
        assert isinstance(wanted, Tensor)
        wanted = wanted if wanted.dim() == 4 else wanted[:, None]
        np.testing.assert_allclose(weights, wanted.detach().numpy(), rtol=1e-6, atol=1e-7)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    shapes = {name: weights.shape for name, weights in recording.calls}
    assert shapes == {
        "encoder.self_attn": (4, 3, 5, 5), "middle": (4, 1, 5, 5), "last": (4, 1, 5, 5),
    }  # fmt: skip


def test_layers_by_the_beginning_of_their_names(model: Model) -> None:
    with record(model, layers=["encoder", -1]) as recording:
        model(X)
    assert recording.layers == ["encoder.self_attn", "unused"]


def test_calls_are_kept_in_order_as_they_were(model: Model) -> None:
    """Calls are kept in order, each with its parameters and inputs at the time."""
    with record(model, layers=["last", 0]) as recording:
        model(X)
        with torch.no_grad():
            model.last.get_submodule("log_sigma").weight += 1.0
        model(2 * X[:, :3])
    assert [(name, w.shape[2]) for name, w in recording.calls] == [
        ("encoder.self_attn", 5), ("last", 5), ("encoder.self_attn", 3), ("last", 3),
    ]  # fmt: skip
    with record(copy.deepcopy(model), "last") as again:
        pass
    assert again["last"] == []
    with pytest.raises(KeyError, match=r"'middle' was not recorded, only encoder\.self_attn, last"):
        recording["middle"]


def test_nothing_is_left_and_nothing_changes(model: Model) -> None:
    wanted = model(X)
    wanted.sum().backward()
    slopes = [p.grad for p in model.parameters()]
    model.zero_grad()
    before = [dict(vars(module)) for module in model.modules()]
    with record(model) as recording:
        assert len(hooks(model)) == 4
        found = model(X)
        assert torch.equal(found, wanted)
        found.sum().backward()
    assert hooks(model) == []
    assert [set(vars(module)) for module in model.modules()] == [set(x) for x in before]
    for p, slope in zip(model.parameters(), slopes, strict=True):
        assert slope is None or torch.equal(p.grad, slope)
    count = len(recording.calls)
    assert torch.equal(model(X), wanted)
    assert len(recording.calls) == count


def test_an_error_inside_leaves_nothing_either(model: Model) -> None:
    with pytest.raises(RuntimeError, match="stop"), record(model):
        raise RuntimeError("stop")
    assert hooks(model) == []


def test_chosen_heads_and_examples(model: Model) -> None:
    with record(model, layers="encoder.self_attn") as whole:
        model(X)
    (everything,) = whole["encoder.self_attn"]
    for heads, examples in ((1, -1), ([2, 0], slice(1, 3)), (None, [3]), (np.int64(0), None)):
        with record(model, 0, heads, examples) as recording:
            model(X)
        (found,) = recording["encoder.self_attn"]
        wanted = everything if examples is None else everything[np.r_[examples]]
        wanted = wanted if heads is None else wanted[:, np.r_[heads]]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with record(model, 0, heads=7), pytest.raises(IndexError, match="heads has 7"):
        model(X)
    with record(model, "last", heads=0), pytest.raises(IndexError, match="without heads"):
        model(X)
    with record(model, "last", examples=9), pytest.raises(IndexError, match="examples has 9"):
        model(X)
    assert hooks(model) == []


def test_steps_of_a_decoder_are_rows() -> None:
    """Steps of a decoder are rows of one example; another sequence begins a new example."""
    torch.manual_seed(0)
    layer, x = Attention(), torch.randn(2, 6, 4)
    with record(layer) as recording:
        layer(x[:, :3], x[:, :3])
        for i in (3, 4, 5):
            layer(x[:, i : i + 1], x[:, : i + 1])
        layer(x[:, :2], x[:, :2])
    assert recording.layers == ["Attention"]
    examples = recording.examples()["Attention"]
    assert [w.shape for w in examples] == [(1, 6, 6)] * 2 + [(1, 2, 2)] * 2
    for b in range(2):
        for i in (3, 4, 5):
            wanted = torch.softmax(x[b, i] @ x[b, : i + 1].T / 2, -1)
            np.testing.assert_allclose(examples[b][0, i, : i + 1], wanted, rtol=1e-5)
            assert (examples[b][0, i, i + 1 :] == 0).all()


def test_a_pointer_is_recorded_with_its_glimpse() -> None:
    torch.manual_seed(0)
    pointer, keys, rows = Pointer("additive", hidden=4, d_q=3, d_k=3), torch.randn(2, 5, 3), [0, 1]
    with record(pointer) as recording:
        nodes, found = pointer.decode(keys[:, 0], keys, lambda nodes: keys[rows, nodes])
    assert recording.layers == ["glimpse", "pointing"]
    steps = recording.examples()["pointing"]
    for b in range(2):
        assert steps[b].shape == (1, 5, 5)
        chosen = steps[b][0, range(5), nodes[b]]
        np.testing.assert_allclose(chosen, found[b].detach().exp(), rtol=1e-5)
        assert np.argmax(steps[b][0], -1).tolist() == nodes[b].tolist()


def test_other_layers_that_keep_their_weights_are_recorded() -> None:
    class Theirs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

        def last_weights(self, rows: Any = None, heads: Any = None, examples: Any = None) -> Tensor:
            return torch.full((2, 2), 0.5, dtype=torch.bfloat16)

    with record(nn.Sequential(Theirs())) as recording:
        Theirs()(X)
        assert recording.calls == []
    model = nn.Sequential(Theirs())
    with record(model) as recording:
        model(X)
    assert recording["0"][0].tolist() == [[[[0.5, 0.5], [0.5, 0.5]]]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch warns while it compiles
def test_compiled_calls_are_not_recorded() -> None:
    model = nn.Sequential(SelfAttention(4, 4))
    compiled = torch.compile(model, backend="aot_eager")
    with record(model) as recording:
        compiled(torch.ones(1, 2, 4))
    assert recording.calls == []
    assert recording.examples() == {}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": "lost"}, ValueError, "no attention layer 'lost': .* has encoder.self_attn, "),
        ({"layers": [4]}, IndexError, "layer 4: .* expected an integer from -4 to 3"),
        ({"layers": []}, ValueError, "layers is empty"),
        (
            {"layers": 1.5},
            TypeError,
            "layers must be numbers or names of .*, got 1.5",
        ),
        ({"layers": [True]}, TypeError, "layers must be numbers or names of .*, got True"),
        ({"heads": True}, TypeError, "heads must be an integer, a slice or a sequence .* got True"),
        ({"heads": []}, ValueError, "heads is empty: leave it out for all heads"),
        ({"examples": np.zeros(0, int)}, ValueError, "examples is empty: leave it out"),
        ({"examples": "all"}, TypeError, "examples must be an integer, .* got 'all'"),
    ],
)
def test_wrong_choices(
    model: Model, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message), record(model, **options):
        pass


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.MultiheadAttention(4, 2)])
def test_a_model_without_attention_layers(model: nn.Module) -> None:
    with (
        pytest.raises(ValueError, match=rf"{type(model).__name__} has no attention layer whose"),
        record(model),
    ):
        pass


@pytest.mark.parametrize("choice", [{"heads": slice(5, None)}, {"examples": slice(9, 11)}])
def test_a_slice_of_nothing(model: Model, choice: dict[str, Any]) -> None:
    (name,) = choice
    with record(model, 0, **choice), pytest.raises(ValueError, match=f"{name}=slice.* chooses not"):
        model(X)


def test_no_model() -> None:
    with pytest.raises(TypeError, match=r"the class Model: make one, Model"), record(Model):
        pass
    with pytest.raises(TypeError, match="model is a dict, expected a module"), record({}):
        pass


def test_a_recording_without_calls_is_empty() -> None:
    assert Recording(["a"]).examples() == {}


def test_edges_have_no_rows(model: Model) -> None:
    edges = Edges.from_index(torch.tensor([[0, 1], [1, 2]]), 3)
    layer = model.encoder.self_attn
    with record(layer), pytest.raises(ValueError, match="this layer out of what is recorded"):
        layer(torch.ones(1, 3, 12), mask=edges)
