"""`Attention` has right state dicts, copies, pickles, casts and recorded weights."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from anyscore import Additive, Gaussian, ScaledDot, Score, attention
from anyscore.score import SCORES
from anyscore.torch import AdditiveAttention, Attention, MultiHeadAttention, SelfAttention
from frameworks.torch.test_layers import (
    BY_NAME,
    D_V,
    HIDDEN,
    T_K,
    T_Q,
    D,
    inputs,
    make,
    score_of,
    shapes,
)

pytestmark = pytest.mark.sample


def lazy(name: str, **options: Any) -> Attention:
    return make(name, d_q=None, d_k=None, **options)


def saved_and_loaded(layer: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), saved_and_loaded],
    ids=["deepcopy", "pickle", "torch.save"],
)
Copy = Callable[[Attention], Attention]


# State dicts


@BY_NAME
def test_a_state_dict_loads_before_and_after_the_sizes_are_known(name: str) -> None:
    trained, (q, k, v) = make(name), inputs()
    expected, state = trained(q, k, v), trained.state_dict()
    unmet, met = lazy(name), lazy(name)
    met(q, k, v)
    assert list(lazy(name).state_dict()) == list(state)
    for layer in (unmet, met, make(name)):
        assert str(layer.load_state_dict(state)) == "<All keys matched successfully>"
        torch.testing.assert_close(layer(q, k, v), expected)
        assert shapes(layer) == shapes(trained)
    lazy(name).load_state_dict(lazy(name).state_dict())
    assigned = lazy(name)
    assigned.load_state_dict(state, assign=True)
    assert torch.equal(assigned(q, k, v), trained(q, k, v))


def test_a_parameter_keeps_its_identity_when_it_gets_its_shape() -> None:
    layer = lazy("additive")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(*inputs()).square().sum().backward()
    before = layer.W_q.weight.clone()
    optimizer.step()
    assert not torch.equal(layer.W_q.weight, before)


@pytest.mark.parametrize("known", [True, False])
def test_missing_and_unexpected_entries_are_errors(known: bool) -> None:
    state = make("additive").state_dict()
    fresh = make if known else lazy
    with pytest.raises(RuntimeError, match=r'Missing key.*"W_q.weight"'):
        fresh("additive").load_state_dict({k: x for k, x in state.items() if k != "W_q.weight"})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        fresh("additive").load_state_dict(state | {"other": torch.ones(1)})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"W_v.weight"'):
        fresh("additive").load_state_dict(state | {"W_v.weight": torch.ones(1, HIDDEN)})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*W_q.weight"):
        fresh("gaussian").load_state_dict(make("gaussian").state_dict() | state)
    loose = fresh("additive").load_state_dict({"W_k.weight": torch.ones(HIDDEN, D)}, strict=False)
    assert set(loose.missing_keys) == {"W_q.weight", "w_v.weight"}


def test_a_state_dict_of_another_hidden_width_is_refused() -> None:
    other = Attention("additive", hidden=HIDDEN + 1, d_q=D, d_k=D).state_dict()
    with pytest.raises(RuntimeError, match=r"size mismatch for W_q\.weight"):
        make("additive").load_state_dict(other)

    def load_and_call(layer: Attention) -> None:
        layer.load_state_dict(other)
        layer(*inputs())

    with pytest.raises((RuntimeError, ValueError), match="W_q"):
        load_and_call(lazy("additive"))


def test_loading_leaves_the_state_dict_alone() -> None:
    state = {
        "W_q.weight": torch.ones(3, D),
        "W_k.weight": torch.ones(3, D),
        "v.weight": torch.ones(1, 3),
    }
    before = dict(state)
    nested = nn.ModuleDict({"one": AdditiveAttention(3), "two": AdditiveAttention(3)})
    nested.load_state_dict({f"{name}.{key}": x for name in nested for key, x in state.items()})
    AdditiveAttention(3).load_state_dict(state)
    assert state == before
    assert torch.equal(nested["two"].w_v.weight, torch.ones(1, 3))


# Copies and casts


@COPIES
@BY_NAME
def test_copies_of_layers(name: str, copied: Copy) -> None:
    q, k, v = inputs()
    unmet = copied(lazy(name))
    assert unmet.attention_weights is None
    assert unmet(q, k, v).shape == (2, T_Q, D_V)
    layer = lazy(name)
    output = layer(q, k, v, torch.tensor([0, 3]))
    same = copied(layer)
    assert same.attention_weights is None  # a copy does not carry a batch of data
    assert layer.attention_weights is not None
    assert torch.equal(same(q, k, v, torch.tensor([0, 3])), output)
    for one, other in zip(same.parameters(), layer.parameters(), strict=True):
        assert one.data_ptr() != other.data_ptr()


@COPIES
def test_copies_of_layers_of_score_objects(copied: Copy) -> None:
    q, k, v = inputs()
    for score in (ScaledDot(), Gaussian(torch.tensor(2.0)), Gaussian(nn.Parameter(torch.ones(())))):
        layer = Attention(score)
        output = layer(q, k, v)
        same = copied(layer)
        torch.testing.assert_close(same(q, k, v), output)
        assert shapes(same) == shapes(layer)


@BY_NAME
@pytest.mark.parametrize("known", [True, False])
def test_casts(name: str, known: bool) -> None:
    layer = make(name) if known else lazy(name)
    layer.double()
    assert layer(*inputs(torch.float64)).dtype == torch.float64
    q, k, v = inputs(torch.bfloat16)
    layer.bfloat16()
    output = layer(q, k, v, torch.tensor([3, 7]))
    assert output.dtype == torch.bfloat16
    assert layer.attention_weights.dtype == torch.bfloat16
    exact = layer.double()(q.double(), k.double(), v.double(), torch.tensor([3, 7]))
    torch.testing.assert_close(output.double(), exact, rtol=0.05, atol=0.05)


@BY_NAME
def test_autocast(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    exact = layer(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(q, k, v)
        inside = layer.attention_weights
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), exact, rtol=0.05, atol=0.05)
    assert torch.equal(layer.attention_weights, inside)
    if list(layer.parameters()):
        output.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


# Recorded weights


@BY_NAME
def test_recorded_weights_are_those_of_the_call(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    assert layer.attention_weights is None
    layer(q, k, v, torch.tensor([0, 3]))
    weights = layer.attention_weights
    score = score_of(layer, name)
    same = attention(q, k, v, score=score, valid_lens=torch.tensor([0, 3]), return_weights=True)
    torch.testing.assert_close(weights, same.weights)
    assert weights.shape == (2, T_Q, T_K)
    assert (weights[0] == 0).all()
    assert not weights.requires_grad
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(-3.0).add_(1.0)
    assert torch.equal(layer.attention_weights, weights)
    layer(2 * q, k, v)
    assert not torch.allclose(layer.attention_weights, weights)


@pytest.mark.parametrize(
    "score",
    [
        lambda p: ScaledDot(p[0, 0, 0]),
        lambda p: Gaussian(p[0, 0, 0]),
        lambda p: Additive(None, None, p[0, 0]),
        lambda p: Additive(None, None, torch.ones(D), p[0, 0]),
    ],
)
def test_recorded_weights_do_not_change_with_parameters_of_objects(
    score: Callable[[torch.Tensor], Score],
) -> None:
    data = torch.rand(1, 1, D) + 0.5
    fields = {k: nn.Parameter(x.clone()) for k, x in score(data).tensors().items()}
    layer, (q, k, v) = Attention(type(score(data))(**(vars(score(data)) | fields))), inputs()
    layer(q, k, v)
    weights = layer.attention_weights
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(-3.0)
    assert torch.equal(layer.attention_weights, weights)
    layer(q, k, v)
    assert not torch.allclose(layer.attention_weights, weights, atol=1e-4)


def test_recording_keeps_no_graph() -> None:
    layer, (q, k, v) = make("additive"), inputs()
    leaf = q.requires_grad_()
    layer(leaf * 1, k, v)
    held = [x for x in layer._last.score if isinstance(x, torch.Tensor)]
    assert len(held) >= 3
    assert all(x.grad_fn is None and not x.requires_grad for x in held)
    assert layer._last.value is None


def test_recorded_in_inference_mode() -> None:
    layer, (q, k, v) = make("gatv2"), inputs()
    with torch.inference_mode():
        layer(q, k, v)
    assert layer.attention_weights.shape == (2, T_Q, T_K)
    copy.deepcopy(layer).train()(q, k, v).sum().backward()


@COPIES
def test_copies_leave_the_last_batch_behind(copied: Copy) -> None:
    x = torch.randn(8, 200, 4)
    for layer in (AdditiveAttention(8, query_size=4, key_size=4), MultiHeadAttention(4, 2)):
        before = len(pickle.dumps(layer))
        layer(x, x, x)
        assert layer.attention_weights is not None
        assert len(pickle.dumps(layer)) == before
        assert copied(layer).attention_weights is None


# As any module


def test_names_and_representation() -> None:
    assert repr(lazy("additive", dropout=0.1)) == (
        "Attention(\n  Additive, dropout=0.1\n  (W_q): Linear(uninitialised)\n"
        "  (W_k): Linear(uninitialised)\n  (w_v): Weight(uninitialised)\n)"
    )
    assert "(W_q): Linear((3, 5))" in repr(make("additive"))
    assert "ScaledDot" in repr(Attention())
    assert isinstance(AdditiveAttention(3), Attention)
    for name in SCORES:
        assert SCORES[name].__name__ in repr(make(name))


def test_parametrized_and_shared() -> None:
    layer, (q, k, v) = make("additive"), inputs()
    expected = layer(q, k, v)
    nn.utils.parametrizations.weight_norm(layer.w_v)  # normed Bahdanau attention
    torch.testing.assert_close(layer(q, k, v), expected)
    layer(q, k, v).square().sum().backward()
    assert (layer.w_v.parametrizations.weight.original1.grad != 0).any()
    assert make("additive").share_memory().W_q.weight.is_shared()


def test_in_a_sequence_of_modules() -> None:
    model = nn.Sequential(nn.Linear(D, 6), SelfAttention(6, 3), nn.Linear(6, 2))
    assert model(torch.randn(2, T_K, D)).shape == (2, T_K, 2)
    assert model.half().bfloat16()(torch.randn(2, T_K, D).bfloat16()).dtype == torch.bfloat16
