"""`anyscore.torch.replace` exchanges multi-head layers of PyTorch's modules in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyscore.score import SCORES
from anyscore.torch import MultiHeadAttention, replace
from helpers.by_pair import by_pair

pytestmark = [
    pytest.mark.sample,
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]
B, H, D, T, S = 3, 2, 12, 5, 7
PADDING = torch.arange(S) >= torch.tensor([7, 3, 5])[:, None]
CAUSAL = nn.Transformer.generate_square_subsequent_mask(T)


def transformer(batch_first: bool = True, **options: Any) -> nn.Transformer:
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 16}
    return nn.Transformer(D, H, batch_first=batch_first, dropout=0.0, **sizes, **options)


def slopes(model: nn.Module, run: Any) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    output = run(model)
    output.square().mean().backward()
    return output, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_whole_transformer(training: bool, batch_first: bool, norm_first: bool) -> None:
    """With scaled dot products, a replaced model gives the same outputs and gradients."""
    model = transformer(batch_first, norm_first=norm_first).train(training)
    source, target = torch.randn(B, S, D), torch.randn(B, T, D)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    masks = {"tgt_mask": CAUSAL, "src_key_padding_mask": PADDING}
    masks["memory_key_padding_mask"] = PADDING

    def run(model: nn.Module) -> Tensor:
        return model(source, target, **masks)  # type: ignore[no-any-return]

    expected, theirs = slopes(model, run)
    assert replace(model) is model
    assert not any(isinstance(m, nn.MultiheadAttention) for m in model.modules())
    assert sum(isinstance(m, MultiHeadAttention) for m in model.modules()) == 6
    found, ours = slopes(model, run)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for layer in ("encoder.layers.0.self_attn", "decoder.layers.1.multihead_attn"):
        fused = torch.cat([ours[f"{layer}.W_{x}.weight"] for x in "qkv"])
        torch.testing.assert_close(fused, theirs[f"{layer}.in_proj_weight"], rtol=1e-3, atol=1e-6)
    assert all(m.training == training for m in model.modules())


@pytest.mark.parametrize("sizes", [{}, {"kdim": 5, "vdim": 9}, {"bias": False}])
@pytest.mark.parametrize("weights", [True, False])
def test_the_call_of_the_layer(sizes: dict[str, Any], weights: bool) -> None:
    """The call keeps positions of arguments and defaults; frozen weights stay frozen."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True, **sizes)
    for name, p in theirs.named_parameters():
        p.requires_grad_("in_proj" not in name and "q_proj" not in name)
    ours = replace(theirs)
    assert isinstance(ours, MultiHeadAttention)
    q, k = torch.randn(B, T, D), torch.randn(B, S, sizes.get("kdim", D))
    v = torch.randn(B, S, sizes.get("vdim", D))
    mask = torch.zeros(T, S).masked_fill(torch.arange(S) > torch.arange(T)[:, None] + 2, -torch.inf)
    expected = theirs(q, k, v, PADDING, weights, mask.isinf())
    found = ours(q, k, v, PADDING, weights, mask.isinf())
    torch.testing.assert_close(found[0], expected[0])
    assert (found[1] is None) == (not weights)
    if weights:
        torch.testing.assert_close(found[1], expected[1])
        assert len(ours(q, k, v)) == 2
    assert not ours.W_q.weight.requires_grad  # type: ignore[union-attr]
    assert ours.W_o.weight.requires_grad  # type: ignore[union-attr]


@by_pair("score", SCORES)
def test_every_score_in_chosen_layers(score: str) -> None:
    model = replace(transformer(), score, layers=["decoder", 1])
    changed = [n for n, m in model.named_modules() if isinstance(m, MultiHeadAttention)]
    assert changed == ["encoder.layers.1.self_attn"] + [
        f"decoder.layers.{i}.{x}_attn" for i in (0, 1) for x in ("self", "multihead")
    ]
    assert model(torch.randn(B, S, D), torch.randn(B, T, D)).isfinite().all()
    replace(model, score)  # all layers again
    assert len([m for m in model.modules() if isinstance(m, MultiHeadAttention)]) == 6


def test_projections_stay_when_a_score_is_exchanged_again() -> None:
    model = transformer()
    weight = model.encoder.layers[0].self_attn.in_proj_weight.detach().clone()
    replace(replace(model, "additive"), "gaussian")
    layer: Any = model.encoder.layers[0].self_attn
    assert torch.equal(torch.cat([getattr(layer, f"W_{x}").weight for x in "qkv"]), weight)
    assert "log_sigma" in dict(layer.attention.named_modules())


def test_one_layer_in_two_places_stays_one() -> None:
    layer = nn.MultiheadAttention(D, H)
    model = replace(nn.ModuleDict({"a": layer, "b": layer}), "additive")
    assert isinstance(model, nn.ModuleDict)
    assert model["a"] is model["b"]
    assert isinstance(model["a"], MultiHeadAttention)


def test_an_exchanged_score_trains() -> None:
    model = replace(nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, 16, 0.0), 2), "additive")
    x, y = torch.randn(T, B, D), torch.randn(T, B, D)
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(30):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


def test_errors_leave_the_model_as_it_was() -> None:
    model, names = transformer(), None
    names = list(model.state_dict())
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "did you mean 'additive'", {"score": "aditive"}),
        (TypeError, "batch_first= is what the layers say: leave it out", {"batch_first": True}),
        (IndexError, "layer 6: the model has 6 attention layers", {"layers": 6}),
        (ValueError, "layers is empty: leave it out for all layers", {"layers": []}),
        (TypeError, "layers must be numbers or names .*, got 1.0", {"layers": 1.0}),
    ]
    for error, text, arguments in wrong:
        with pytest.raises(error, match=text):
            replace(model, **arguments)
    assert list(model.state_dict()) == names
    with pytest.raises(ValueError, match=r"Linear has no torch.nn.Multihead.*anyscore.hf.use"):
        replace(nn.Linear(2, 2), "additive")
    with pytest.raises(TypeError, match=r"model is a int, expected a torch.nn.Module"):
        replace(3)  # type: ignore[arg-type]
    for option in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match=f"the layer has {option}=True, unknown to anyscore"):
            replace(nn.MultiheadAttention(D, H, **{option: True}))


class Rotated(nn.MultiheadAttention):
    """Subclass with a computation of its own."""

    def forward(self, query: Tensor, *args: Any, **options: Any) -> Any:
        return super().forward(query.flip(-1), *args, **options)


class Named(nn.MultiheadAttention):
    """Subclass without a computation of its own."""


def test_subclasses_with_a_forward_of_their_own_are_left_alone() -> None:
    model = nn.ModuleDict({"own": Rotated(D, H), "named": Named(D, H)})
    replace(model, "additive", layers=0)
    assert type(model["own"]) is Rotated
    assert isinstance(model["named"], MultiHeadAttention)
    with pytest.raises(ValueError, match=r"self_attn is a Rotated, whose forward is its own: put"):
        replace(nn.ModuleDict({"self_attn": Rotated(D, H)}), "additive")


@pytest.mark.parametrize("weight", ["in_proj_weight", "out_proj.weight"])
def test_parametrized_weights_are_refused(weight: str) -> None:
    layer = nn.MultiheadAttention(D, H)
    owner, _, name = weight.rpartition(".")
    nn.utils.parametrizations.weight_norm(layer.get_submodule(owner), name)
    with pytest.raises(ValueError, match=r"no plain weights for W_.*: remove parametrizations"):
        replace(layer)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors() -> None:
    """Jagged tensors are packed sequences, by position or by name; strided tensors raise."""
    layer = replace(nn.MultiheadAttention(D, H, batch_first=True), "additive")
    tensors = [torch.randn(n, D) for n in (T, S, 2)]
    nested = torch.nested.nested_tensor(tensors, layout=torch.jagged)
    output, weights = layer(nested, key=nested, value=nested)
    assert weights.shape == (3, S, S)
    for x, found in zip(tensors, output.unbind(), strict=True):
        torch.testing.assert_close(found, layer(x, x, x)[0])
    strided = torch.nested.nested_tensor(tensors)
    with pytest.raises(TypeError, match=r"strided layout: make it with layout=torch.jagged"):
        layer(strided, strided, strided)
    with pytest.raises(ValueError, match="query is a nested tensor, which has its own lengths"):
        layer(nested, nested, nested, torch.zeros(3, S, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"nested tensor, .*, and make the layer with batch_first"):
        replace(nn.MultiheadAttention(D, H))(nested, nested, nested)
