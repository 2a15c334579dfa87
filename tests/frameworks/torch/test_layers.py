"""`anyscore.torch.Attention` has right sizes, parameters, training, weights and errors."""

from __future__ import annotations

import math
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from anyscore import (
    Additive,
    Bilinear,
    Causal,
    Cosine,
    Dot,
    GATv2,
    Gaussian,
    Laplace,
    Lengths,
    Lorentz,
    ScaledDot,
    Score,
    StudentT,
    attention,
)
from anyscore.torch import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
    MultiHeadAttention,
    SelfAttention,
)
from anyscore.torch import attention as torch_attention
from helpers.by_pair import by_pair
from helpers.hang import HANG
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

D, HIDDEN, T_Q, T_K, D_V = 5, 3, 2, 7, 11
BY_NAME = by_pair("name", TABLE)
SHAPES = {name: row.learned(D, D, HIDDEN) for name, row in TABLE.items()}
for _shapes in SHAPES.values():  # w_v is the weight of a linear layer
    _shapes |= {name: (1, *shape) for name, shape in _shapes.items() if name == "w_v"}


def make(name: str, **options: Any) -> Attention:
    options = {"d_q": D, "d_k": D} | options
    return Attention(name, hidden=HIDDEN if TABLE[name].hidden else None, **options)


def score_of(layer: Attention, name: str) -> Score:
    """Return the score object with the parameters of `layer`."""
    d = layer._spec.d_q or D
    made: Score = TABLE[name].of_layer(dict(layer.named_parameters()), d, d)
    return made


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(2, T_Q, D, dtype=dtype),
        torch.randn(2, T_K, D, dtype=dtype),
        torch.randn(2, T_K, D_V, dtype=dtype),
    )


def shapes(layer: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in layer.named_parameters()}


# Sizes and initial values


@BY_NAME
def test_sizes_given_and_sizes_met_are_the_same(name: str) -> None:
    expected = {f"{field}.weight": shape for field, shape in SHAPES[name].items()}
    given, met = make(name), make(name, d_q=None, d_k=None)
    assert shapes(given) == expected
    assert met(*inputs()).shape == (2, T_Q, D_V)
    assert shapes(met) == expected
    again = met(*inputs())
    assert again.shape == (2, T_Q, D_V)


@BY_NAME
def test_a_layer_computes_its_score(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    score = score_of(layer, name)
    mask = Causal(align="end") & Lengths(torch.tensor([3, 7]))
    expected = attention(q, k, v, score=score, mask=mask, return_weights=True)
    torch.testing.assert_close(layer(q, k, v, mask=mask), expected.output)
    torch.testing.assert_close(layer.attention_weights, expected.weights)


@pytest.mark.parametrize(
    ("name", "numbers", "score"),
    [
        ("gaussian", {"sigma": 2.0}, Gaussian(2.0)),
        ("laplace", {"sigma": 0.5}, Laplace(0.5)),
        ("student_t", {"nu": 1, "sigma": 0.5}, StudentT(1, 0.5)),
        ("lorentz", {"scale": 2.0, "sigma": 0.5}, Lorentz(0.5, 2.0)),
        ("cosine", {"tau": 0.1}, Cosine(0.1)),
        ("scaled_dot", {"scale": 3}, ScaledDot(3)),
    ],
)
def test_a_scale_may_be_given_instead_of_learned(
    name: str, numbers: dict[str, float], score: Score
) -> None:
    layer, (q, k, v) = Attention(name, **numbers), inputs()
    torch.testing.assert_close(layer(q, k, v), attention(q, k, v, score=score))
    assert not list(layer.parameters())
    with pytest.raises(TypeError, match="Additive has no scale 'sigma'; it has scale"):
        Attention("additive", hidden=3, sigma=1.0)
    with pytest.raises(TypeError, match="Gaussian has no scale 'tau'; it has sigma"):
        Attention("gaussian", tau=1.0)


@BY_NAME
def test_initial_values(name: str) -> None:
    """Values fill the uniform bounds of the stated variance, or equal the stated constant."""
    row = TABLE[name]
    same = all("d_k" not in letter for letters in row.fields.values() for letter in letters)
    d_q, d_k, h = 48, 48 if same else 72, 64
    layer = Attention(name, hidden=h if row.hidden else None, d_q=d_q, d_k=d_k)
    for parameter, values in layer.named_parameters():
        field = parameter.removesuffix(".weight").removeprefix("log_")
        expected = row.layer[field](d_q, d_k, h)
        if parameter.startswith("log_"):
            assert values.exp().item() == pytest.approx(expected, rel=1e-4)
        else:
            bound = math.sqrt(3 * expected)
            assert 0.9 * bound < values.abs().max() <= 1.001 * bound
            assert values.var().item() == pytest.approx(expected, rel=0.4)


def test_bias_of_the_additive_scores() -> None:
    for name in ("additive", "concat"):
        layer, (q, k, v) = make(name, bias=True), inputs()
        assert shapes(layer)["bias.weight"] == (HIDDEN,)
        assert (layer.bias.weight == 0).all()
        before = layer(q, k, v)
        nn.init.constant_(layer.bias.weight, 2.0)
        assert not torch.allclose(layer(q, k, v), before, atol=1e-4)
    assert "bias.weight" in shapes(AdditiveAttention(HIDDEN, query_size=D, key_size=D, bias=True))


@BY_NAME
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, None), (6, 2), (2, 1)])
def test_heads_have_their_own_parameters(name: str, heads: int, kv_heads: int | None) -> None:
    if TABLE[name].of_both and kv_heads:
        return
    layer = make(name, heads=heads, kv_heads=kv_heads)
    owned = {"W_k": kv_heads or heads, "w_k": kv_heads or heads}
    for field, shape in SHAPES[name].items():
        shape = shape[1:] if field == "w_v" else shape
        assert shapes(layer)[f"{field}.weight"] == (owned.get(field, heads), *shape)
    kv = kv_heads or heads
    q, k = torch.randn(2, heads, T_Q, D), torch.randn(2, kv, T_K, D)
    output = layer(q, k)
    for h in range(heads):
        one = make(name)
        own = {
            field: p[h * kv // heads if field[:3] in ("W_k", "w_k") else h]
            for field, p in layer.state_dict().items()
        }
        one.load_state_dict({f: x[None] if f == "w_v.weight" else x for f, x in own.items()})
        torch.testing.assert_close(output[:, h], one(q[:, h], k[:, h * kv // heads]))


def test_projected_layers_have_no_projections() -> None:
    for name in ("additive", "gatv2"):
        layer = Attention(name, d_q=D, d_k=D, projected=True)
        assert shapes(layer) == {"w_v.weight": (1, D)}
        full = Attention(name, hidden=D, d_q=D, d_k=D)
        eye = torch.eye(D)
        state = layer.state_dict() | {"W_q.weight": eye, "W_k.weight": eye}
        full.load_state_dict(state)
        q, k, v = inputs()
        torch.testing.assert_close(layer(q, k, v), full(q, k, v))


def test_device_and_dtype() -> None:
    layer = make("additive", dtype=torch.float64)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert layer(*inputs(torch.float64)).dtype == torch.float64
    lazy = make("gaussian", d_q=None, d_k=None, dtype=torch.bfloat16)
    assert lazy(*inputs(torch.bfloat16)).dtype == torch.bfloat16
    assert make("bilinear", device="meta").W.weight.is_meta
    with torch.device("meta"):
        assert make("bilinear").W.weight.is_meta


# Training


@BY_NAME
def test_gradients_reach_all_parameters(name: str) -> None:
    layer, (q, k, v) = make(name), inputs()
    layer(q.requires_grad_(), k, v, torch.tensor([3, 7])).square().sum().backward()
    for parameter, values in layer.named_parameters():
        if name == "trilinear" and parameter == "w_q.weight":
            assert (values.grad == 0).all()  # the query's own term cancels in the softmax
        else:
            assert (values.grad != 0).all(), parameter


def test_reset_parameters() -> None:
    layer = make("additive", bias=True)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    nn.init.ones_(layer.bias.weight)
    layer.reset_parameters()
    assert (layer.bias.weight == 0).all()
    assert not torch.equal(layer.W_q.weight, before["W_q.weight"])
    sigma = make("gaussian")
    nn.init.zeros_(sigma.log_sigma.weight)
    sigma.reset_parameters()
    assert sigma.log_sigma.weight.exp().item() == pytest.approx((2 * D) ** 0.25)
    make("additive", d_q=None, d_k=None).reset_parameters()


def test_dropout_is_for_training() -> None:
    layer = DotProductAttention(dropout=0.5)
    q, k, v = torch.randn(2, 13, D), torch.randn(2, 17, D), torch.ones(2, 17, 1)
    trained = layer(q, k, v)
    weights = layer.attention_weights
    assert trained.std() > 0.05  # the kept weights no longer sum to 1
    assert not torch.equal(layer(q, k, v), trained)
    torch.manual_seed(7)
    first = layer(q, k, v)
    torch.manual_seed(7)
    assert torch.equal(layer(q, k, v), first)
    layer.eval()
    torch.testing.assert_close(layer(q, k, v), torch.ones(2, 13, 1))
    torch.testing.assert_close(layer.attention_weights, weights)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 13))


def test_score_objects_train() -> None:
    score = Additive(*(nn.Parameter(torch.randn(*n)) for n in ((3, D), (3, D), (3,))))
    layer, (q, k, v) = Attention(score), inputs()
    assert shapes(layer) == {"W_q.weight": (3, D), "W_k.weight": (3, D), "w_v.weight": (3,)}
    torch.testing.assert_close(layer(q, k, v), attention(q, k, v, score=score))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(q, k, v).square().sum().backward()
    before = layer(q, k, v).detach()
    optimizer.step()
    assert not torch.allclose(layer(q, k, v), before, atol=1e-3)


def test_plain_tensors_of_score_objects_are_buffers() -> None:
    layer = Attention(Gaussian(torch.tensor(2.0)))
    assert (shapes(layer), list(layer.state_dict())) == ({}, ["sigma.weight"])
    layer.to(torch.float64)
    assert layer.sigma.weight.dtype == torch.float64
    q, k, v = inputs(torch.float64)
    torch.testing.assert_close(layer(q, k, v), attention(q, k, v, score=Gaussian(2.0)))
    assert Attention(Gaussian(2.0))(q, k, v).equal(attention(q, k, v, score=Gaussian(2.0)))


def test_callables_and_modules_are_scores() -> None:
    q, k, v = inputs()
    torch.testing.assert_close(
        Attention(lambda q, k: q @ k.mT)(q, k, v), attention(q, k, v, score=Dot())
    )

    class Biaffine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(D, D)

        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return self.layer(q) @ k.mT

    layer = Attention(Biaffine(), dropout=0.1)
    assert list(layer.state_dict()) == ["score.layer.weight", "score.layer.bias"]
    layer(q, k, v).square().sum().backward()
    assert (layer.score.layer.weight.grad != 0).all()
    assert layer.attention_weights.shape == (2, T_Q, T_K)


@pytest.mark.parametrize("first", [Gaussian(1.0), "gaussian", Dot(), Bilinear(torch.eye(D))])
def test_a_score_that_replaces_the_first(first: Any) -> None:
    """Calls that were repeated before, too, have the new score."""
    layer, (q, _, v) = Attention(first), inputs()
    for score in (None, Gaussian(5.0), Dot(), lambda q, k: q @ k.mT):
        if score is not None:
            layer.score = score
            expected = attention(q, q, v[:, :T_Q], score=score)
        for _ in range(4):
            found = layer(q, q, v[:, :T_Q])
            assert score is None or torch.allclose(found, expected, atol=1e-6)
    for wrong in ("dot", Dot):
        layer.score = wrong
        with pytest.raises(TypeError, match="parameters are of the first score: put a score obj"):
            layer(q, q, v[:, :T_Q])


def test_a_score_class_is_as_good_as_its_name() -> None:
    q, k, v = inputs()
    torch.testing.assert_close(Attention(ScaledDot)(q, k, v), attention(q, k, v))
    assert Attention(Additive, hidden=HIDDEN)(q, k, v).shape == (2, T_Q, D_V)


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: Attention(lambda q, k: q @ k.mT, **options),
        lambda **options: MultiHeadAttention(D, 1, score=lambda q, k: q @ k.mT, **options),
        lambda **options: SelfAttention(D, D, score=lambda q, k: q @ k.mT, **options),
    ],
)
def test_a_layer_takes_an_implementation(make: Any) -> None:
    """A callable has no fused implementation, so impl="fused" raises; the other choices agree."""
    x = torch.randn(2, T_K, D)
    layer = make(impl="fused")
    inputs = (x,) * (1 if isinstance(layer, SelfAttention) else 3)
    with pytest.raises(NotImplementedError, match=r"impl=.fused. cannot run: .*callable"):
        layer(*inputs)
    reference = make(impl="reference")
    reference.load_state_dict(layer.state_dict())
    auto = make()
    auto.load_state_dict(layer.state_dict())
    torch.testing.assert_close(reference(*inputs), auto(*inputs))


def test_slopes_of_each_head() -> None:
    """Key heads are as many as slopes, or one; fewer would need a key bias for each query head."""
    q, k = torch.randn(2, 4, 3, D), torch.randn(2, 4, 7, D)
    w, slope = torch.randn(4, D), torch.tensor([0.0, 0.2, 0.5, 1.5])
    for keys in (k, k[:, :1]):
        x = q[..., :, None, :] + keys[..., None, :, :]
        x = torch.where(x > 0, x, slope[:, None, None, None] * x)
        s = torch.einsum("bhijd,hd->bhij", x, w)
        out = attention(q, keys, keys, score=GATv2(None, None, w, slope))
        torch.testing.assert_close(out, torch.softmax(s, -1) @ keys)
    with pytest.raises(ValueError, match="of 4 heads, expected as many key heads or 1, got 2"):
        attention(q, k[:, :2], k[:, :2], score=GATv2(None, None, w, 0.5))


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.75])
def test_the_slope_at_0_is_that_of_negative_arguments(slope: float) -> None:
    """The slope at 0 is that of PyTorch's LeakyReLU: tokens of zeros are no accident."""
    q, k, v = torch.zeros(1, D), torch.zeros(3, D), torch.randn(3, 2)
    w, found = torch.randn(D), []
    for score in (
        GATv2(None, None, w, slope),
        lambda q, k: nn.functional.leaky_relu(q[:, None] + k, slope) @ w,
    ):
        inputs = [x.clone().requires_grad_() for x in (q, k)]
        attention(*inputs, v, score=score)[..., 0].sum().backward()
        found.append([x.grad for x in inputs])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y)


def test_a_first_call_in_inference_mode_leaves_parameters_that_train() -> None:
    layer, x = Attention("additive", hidden=8), torch.randn(2, 3, 4)
    with torch.inference_mode():
        layer(x, x)
    layer(x, x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_two_threads_at_the_first_call() -> None:
    x = torch.randn(2, 3, 64)
    for _ in range(20):
        layer, outputs = Attention("additive", hidden=64), []
        barrier = threading.Barrier(4)

        def work(layer: Attention = layer, outputs: list[Tensor] = outputs) -> None:
            barrier.wait()  # noqa: B023
            outputs.append(layer(x, x))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for y in outputs:  # MKL's product of so few rows depends on the thread, by rounding
            torch.testing.assert_close(y, layer(x, x))


@pytest.mark.filterwarnings("ignore")  # newer Pythons warn of any fork of a process with threads
def test_a_child_that_is_forked_during_a_first_call_makes_first_calls() -> None:
    x = torch.randn(2, 3, 4)
    with torch_attention._MAKING:
        if not (child := os.fork()):
            signal.alarm(HANG)  # a child that hangs is killed
            try:
                made = Attention("additive", hidden=3)(x, x).shape == x.shape
                os._exit(0 if made else 1)
            finally:
                os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_options_may_be_numbers_of_numpy() -> None:
    Attention("additive", hidden=np.int64(3), dropout=np.float32(0.1))  # type: ignore[arg-type]
