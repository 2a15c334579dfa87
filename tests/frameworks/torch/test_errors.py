"""Errors name mistakes in making and calling `Attention`, and leave the layer usable."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from anyscore import Dot
from anyscore.torch import Attention, MultiHeadAttention, SelfAttention
from frameworks.torch.test_layers import D_V, HIDDEN, T_Q, inputs, make

pytestmark = pytest.mark.sample


@pytest.mark.parametrize(
    ("score", "options", "words"),
    [
        ("aditive", {}, "unknown score 'aditive': did you mean 'additive'"),
        ("Additive", {}, "did you mean 'additive'"),
        ("", {}, "unknown score ''"),
        ("additive", {}, "(?i)additive'? needs hidden="),
        ("concat", {}, "needs hidden="),
        ("gatv2", {"d_q": 2, "d_k": 3}, "needs hidden="),
        ("gatv2", {"hidden": 3, "bias": True}, "GATv2 has no bias"),
        ("dot", {"bias": True}, "Dot has no bias"),
        ("concat", {"hidden": 3, "heads": 4, "kv_heads": 2}, "use Additive"),
        ("dot", {"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ("dot", {"dropout": -0.1}, "dropout must be in"),
        ("dot", {"dropout": math.nan}, "dropout must be in"),
        ("dot", {"dropout": "0.1"}, "dropout must be a number"),
        ("dot", {"dropout": True}, "dropout must be a number"),
        ("additive", {"hidden": 0}, "hidden"),
        ("additive", {"hidden": -1}, "hidden"),
        ("additive", {"hidden": 3.5}, "hidden"),
        (3, {}, "score must be"),
        (None, {}, "score must be"),
    ],
)
def test_mistakes_are_named_when_the_layer_is_made(score: Any, options: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        Attention(score, **options)


@pytest.mark.parametrize("options", [{"heads": 3}, {"bias": True}, {"projected": True}])
def test_options_that_need_a_name_are_refused_with_an_object(options: dict[str, Any]) -> None:
    for score in (Dot(), lambda q, k: q @ k.mT):
        with pytest.raises((TypeError, ValueError), match=next(iter(options))):
            Attention(score, **options)


def test_one_size_given_is_kept() -> None:
    q, k, v = inputs()
    with pytest.raises(ValueError, match="20"):
        Attention("additive", hidden=HIDDEN, d_q=20)(q, k, v)


def test_widths_are_checked_after_the_first_call() -> None:
    layer, (q, k, v) = make("additive", d_q=None, d_k=None), inputs()
    layer(q, k, v)
    with pytest.raises(ValueError, match=r"Additive.*d_q=4"):
        layer(q[..., :4], k, v)
    with pytest.raises(ValueError, match="ScaledDot needs queries and keys of one width"):
        Attention()(q[..., :4], k, v)
    with pytest.raises(TypeError, match=r"query is float64 but Additive.W_q is float32"):
        layer(q.double(), k.double(), v.double())


def test_a_failed_first_call_does_not_spoil_the_layer() -> None:
    layer, (q, k, v) = make("bilinear", d_q=None, d_k=None), inputs()
    with pytest.raises(TypeError, match="expected a tensor"):
        layer(q, k, "v")
    assert layer(q, k, v).shape == (2, T_Q, D_V)
    layer = make("trilinear", d_q=None, d_k=None)
    with pytest.raises(ValueError, match="one width"):
        layer(q, k[..., :4], v)
    assert layer(q, k, v).shape == (2, T_Q, D_V)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: MultiHeadAttention(16, 4, score="additive", hidden=8),
            ValueError,
            "hidden=8, but Additive meets queries and keys projected to width 4, which is the "
            "width of its hidden layer here: leave out hidden=.",
        ),
        (
            lambda: MultiHeadAttention(16, 4, hidden=8),
            ValueError,
            "ScaledDot has no hidden layer: leave out hidden=8.",
        ),
        (
            lambda: Attention("gaussian", hidden=8),
            ValueError,
            "Gaussian has no hidden layer: leave out hidden=8.",
        ),
        (
            lambda: Attention("additive", hiden=4),
            TypeError,
            "unknown argument 'hiden': did you mean 'hidden'? A layer of Additive takes hidden, "
            "d_q, d_k, heads, kv_heads, dropout, bias, projected, impl, softcap, sink, normalizer, "
            "scale.",
        ),
        (
            lambda: Attention(embed=4),
            TypeError,
            "unknown argument 'embed': leave it out. A layer of ScaledDot takes hidden, d_q, d_k, "
            "heads, kv_heads, dropout, bias, projected, impl, softcap, sink, normalizer, scale.",
        ),
        (
            lambda: Attention("gaussian", sigma="1"),
            TypeError,
            "sigma must be a number, got '1'.",
        ),
        (
            lambda: Attention(impl="flash"),
            ValueError,
            "impl must be one of 'auto', 'reference', 'fused', 'separable', got 'flash'.",
        ),
    ],
)
def test_arguments_of_layers(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value) == text


def test_a_hidden_width_that_is_that_of_the_heads() -> None:
    x = torch.randn(2, 5, 16)
    assert MultiHeadAttention(16, 4, score="additive", hidden=4)(x).shape == x.shape
    layer = Attention("additive", projected=True, hidden=8)
    with pytest.raises(ValueError, match="hidden=8, but Additive meets queries and keys"):
        layer(x, x)


@pytest.mark.parametrize("layer", [Attention(), MultiHeadAttention(4, 2)])
def test_arrays_of_another_framework(layer: Any) -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 3, 4).numpy()
    with pytest.raises(TypeError, match="queries is a ndarray, expected a PyTorch tensor"):
        layer(y, y, y)
    with pytest.raises(TypeError, match="queries is a PyTorch tensor but keys is a NumPy tensor"):
        layer(x, y, y)
    with pytest.raises(TypeError, match="queries is a list, expected a tensor of one of"):
        layer([1.0], x, x)


@pytest.mark.parametrize("layer", [Attention(), MultiHeadAttention(4, 2), SelfAttention(4, 2)])
@pytest.mark.parametrize("shape", [(), (4,)], ids=str)
def test_too_few_axes(layer: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"(queries|query|x) has shape .*expected"):
        layer(*[torch.ones(shape)] * (2 if isinstance(layer, Attention) else 1))


def test_a_first_call_that_fails_fixes_no_sizes() -> None:
    layer = Attention("additive", hidden=8)
    with pytest.raises(ValueError, match="valid_lens has shape"):
        layer(torch.randn(2, 3, 4), torch.randn(2, 5, 4), valid_lens=[1, 2, 3])
    layer(torch.randn(2, 3, 6), torch.randn(2, 5, 4), valid_lens=[1, 2])
