"""The Gluon front: the notebooks' layers, parameters in files and arrays, hybridized parents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from arrays import numbers, to
from mxnet import autograd, gluon
from mxnet.gluon import nn

from anyscore import Additive, Causal, Gaussian, attention
from anyscore.layers import SCORES
from anyscore.mxnet import (
    AdditiveAttention,
    Attention,
    DotProductAttention,
    MLPAttention,
    MultiHeadAttention,
    SelfAttention,
    masked_softmax,
)

B, T_Q, T_K, D, D_V = 2, 3, 7, 4, 5
LENGTHS = np.float32([2, 6])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("float32")


def inputs(kind: str) -> list[Any]:
    """Queries, keys, values and their lengths."""
    shapes = (B, T_Q, D), (B, T_K, D), (B, T_K, D_V)
    return [*(to(normal(*shape), kind=kind) for shape in shapes), to(LENGTHS, kind=kind)]


def options(name: str) -> dict[str, Any]:
    return {"hidden": 6} if name in ("additive", "concat", "gatv2") else {}


class Parent(nn.HybridBlock):
    """A parent that calls a layer among other operations."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(D, flatten=False)
            self.layer = layer

    def hybrid_forward(self, F: Any, queries: Any, *others: Any) -> Any:
        return self.layer(self.first(queries), *others) * 2


LAYERS = {
    "additive": lambda: AdditiveAttention(6),
    "gaussian": lambda: Attention("gaussian"),
    "trilinear": lambda: Attention("trilinear"),
    "dot": DotProductAttention,
    "heads": lambda: MultiHeadAttention(D, 2, d_v=D_V),
    "heads_additive": lambda: MultiHeadAttention(D, 2, kv_heads=1, d_v=D_V, score="additive"),
}


# ------------------------------------------------------------------------------ the notebooks


@pytest.mark.parametrize("make", [lambda: DotProductAttention(0.5), lambda: MLPAttention(8, 0.1)])
def test_the_notebook(make: Any, kind: str) -> None:
    """Valid lengths of 2 and 6 give the means of the first two and six values."""
    M = mx.np if kind == "np" else mx.nd
    layer = make()
    layer.initialize()
    keys = M.ones((2, 10, 2))
    values = M.arange(40).reshape((1, 10, 4)).repeat(2, axis=0)
    output = layer(M.ones((2, 1, 2)), keys, values, M.array([2, 6]))
    assert type(output) is type(keys)
    np.testing.assert_allclose(numbers(output)[:, 0], [[2, 3, 4, 5], [10, 11, 12, 13]], rtol=1e-6)
    weights = numbers(layer.attention_weights)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    assert not weights[0, :, 2:].any()
    assert not weights[1, :, 6:].any()


def test_additive_attention_of_the_book(kind: str) -> None:
    """Queries of another width, and lengths per query."""
    layer = AdditiveAttention(num_hiddens=8, dropout=0.1)
    layer.initialize()
    queries, keys = to(normal(2, 1, 20), kind=kind), to(normal(2, 10, 2), kind=kind)
    values, lengths = to(normal(2, 10, 4), kind=kind), to(LENGTHS[:, None], kind=kind)
    assert layer(queries, keys, values, lengths).shape == (2, 1, 4)
    shapes = {name: p.shape for name, p in layer.parameters().items()}
    assert shapes == {"W_q.weight": (8, 20), "W_k.weight": (8, 2), "w_v.weight": (1, 8)}


def test_masked_softmax(kind: str) -> None:
    x = normal(2, 2, 4)
    for lengths in (np.float32([2, 3]), np.float32([[1, 3], [2, 4]])):
        found = masked_softmax(to(x, kind=kind), to(lengths, kind=kind))
        kept = np.arange(4) < (lengths[:, None] if lengths.ndim == 1 else lengths)[..., None]
        e = np.exp(x) * kept
        np.testing.assert_allclose(numbers(found), e / e.sum(-1, keepdims=True), rtol=1e-5)
    with pytest.raises(TypeError, match="expected an MXNet array"):
        masked_softmax(x)


# ------------------------------------------------------------------------- scores and numbers


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("name", SCORES)
def test_named_scores_are_those_of_the_function(name: str, rank: int, kind: str) -> None:
    """With parameters taken out as arrays, `attention` in NumPy gives the same."""
    layer = Attention(name, **options(name))
    layer.initialize()
    lead = (2, 3)[: rank - 2]
    q, k, v = (normal(*lead, n, d) for n, d in ((T_Q, D), (T_K, D), (T_K, D_V)))
    found = layer(*(to(x, kind=kind) for x in (q, k, v)), 5)
    values = layer.numpy_parameters()
    fields = {}
    for full, x in values.items():
        field = full.removesuffix(".weight")
        if field.startswith("log_"):
            assert x.shape == ()
            fields[field.removeprefix("log_")] = np.exp(x)
        else:
            fields[field] = x[0] if field == "w_v" else x
    if name == "bilinear":
        fields["scale"] = D**-0.5
    expected = attention(q, k, v, score=SCORES[name](**fields), valid_lens=5)
    np.testing.assert_allclose(numbers(found), expected, atol=2e-6)
    for parameter in layer.parameters().values():
        assert rank == 2 or parameter.shape is not None


@pytest.mark.parametrize("name", ["gaussian", "laplace", "cosine"])
def test_learned_scales(name: str, kind: str) -> None:
    """Their gradients arrive, outside of MXNet's mode too."""
    layer = Attention(name)
    layer.initialize()
    with autograd.record():
        output = layer(*inputs(kind))
    output.backward()
    (scale,) = layer.parameters().values()
    assert abs(numbers(scale.grad())).max() > 1e-4


def test_a_score_object_with_parameters_and_constants(kind: str) -> None:
    W_q = gluon.Parameter("query_weight", shape=(6, D))
    w_v = to(normal(6), kind=kind)
    layer = Attention(Additive(W_q, to(normal(6, D, seed=2), kind=kind), w_v))
    layer.initialize()
    with autograd.record():
        output = layer(*inputs(kind))
    output.backward()
    assert abs(numbers(W_q.grad())).max() > 0
    assert set(layer.parameters()) == {"W_q.weight", "W_k.weight", "w_v.weight"}
    q, k, v, _ = (numbers(x) for x in inputs("np"))
    score = Additive(numbers(W_q.data()), normal(6, D, seed=2), normal(6))
    np.testing.assert_allclose(
        numbers(output), attention(q, k, v, score=score, valid_lens=LENGTHS), atol=2e-6
    )


def test_self_attention_counts_its_parameters(kind: str) -> None:
    layer = SelfAttention(D, 3, bias=False)
    layer.initialize()
    assert sum(x.size for x in layer.numpy_parameters().values()) == D * (2 * 3 + D)
    x = to(normal(B, T_Q, D), kind=kind)
    output = layer(x, to(LENGTHS, kind=kind), mask=Causal())
    assert output.shape == (B, T_Q, D)
    assert layer.attention_weights.shape == (B, T_Q, T_Q)
    projected = SelfAttention(D, 3, d_v=2, project_output=True)
    projected.initialize()
    assert projected(x).shape == (B, T_Q, D)


# ------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_go_both_ways(name: str, kind: str) -> None:
    first, second, third = (LAYERS[name]() for _ in range(3))
    first.initialize()
    given = inputs(kind)
    output = numbers(first(*given))
    arrays = first.numpy_parameters()
    second.load_numpy_parameters(arrays)  # before it is initialised
    third.initialize()
    third(*given)
    third.load_numpy_parameters(arrays)
    for layer in (second, third):
        np.testing.assert_array_equal(numbers(layer(*given)), output)
        for x, y in zip(arrays.values(), layer.numpy_parameters().values(), strict=True):
            np.testing.assert_array_equal(x, y)


def test_old_names_are_accepted(kind: str) -> None:
    """Of the book's earlier layers, and of torch.nn.MultiheadAttention."""
    layer = MLPAttention(6)
    given = {"W_q.weight": normal(6, D), "W_k.weight": normal(6, D), "v.weight": normal(1, 6)}
    layer.load_numpy_parameters(given)
    np.testing.assert_array_equal(layer.numpy_parameters()["w_v.weight"], given["v.weight"])
    heads = MultiHeadAttention(D, 2)
    fused = {"in_proj_weight": normal(3 * D, D), "in_proj_bias": normal(3 * D)}
    fused |= {"out_proj.weight": normal(D, D), "out_proj.bias": normal(D)}
    heads.load_numpy_parameters(fused)
    made = heads.numpy_parameters()
    np.testing.assert_array_equal(made["W_k.weight"], fused["in_proj_weight"][D : 2 * D])
    with pytest.raises(ValueError, match=r"expected parameters W_q\.weight"):
        layer.load_numpy_parameters({"W_q.weight": normal(6, D)})
    with pytest.raises(ValueError, match=r"W_q\.weight has shape \(5, 4\), expected \(6, 4\)"):
        layer.load_numpy_parameters({**given, "W_q.weight": normal(5, D)})


@pytest.mark.parametrize("name", LAYERS)
def test_files(name: str, kind: str, tmp_path: Path) -> None:
    first, second, third = (LAYERS[name]() for _ in range(3))
    first.initialize()
    given = inputs(kind)
    output = numbers(first(*given))
    path = str(tmp_path / "layer.params")
    first.save_parameters(path)
    second.load_parameters(path)  # before the sizes are known
    third.initialize()
    third(*given)
    third.load_parameters(path)
    for layer in (second, third):
        np.testing.assert_array_equal(numbers(layer(*given)), output)


def test_a_file_of_the_book(kind: str, tmp_path: Path) -> None:
    """Written by its layer of `nn.Dense` blocks of these names."""

    class Book(nn.Block):
        def __init__(self) -> None:
            super().__init__()
            self.W_k = nn.Dense(6, use_bias=False, flatten=False)
            self.W_q = nn.Dense(6, use_bias=False, flatten=False)
            self.w_v = nn.Dense(1, use_bias=False, flatten=False)

        def forward(self, queries: Any, keys: Any) -> None:
            q, k = self.W_q(queries), self.W_k(keys)
            self.w_v(q[:, :1] + k[:, :1])

    book, layer = Book(), AdditiveAttention(6)
    book.initialize()
    queries, keys, values, lengths = inputs(kind)
    book(queries, keys)
    path = str(tmp_path / "book.params")
    book.save_parameters(path)
    layer.load_parameters(path)
    layer(queries, keys, values, lengths)
    np.testing.assert_array_equal(
        layer.numpy_parameters()["W_q.weight"], numbers(book.W_q.weight.data())
    )
    smaller = AdditiveAttention(5)
    smaller.load_parameters(path)
    with pytest.raises(ValueError, match=r"was loaded with shape \(6, 4\), expected \(5, 4\)"):
        smaller(queries, keys, values, lengths)


def test_not_initialized(kind: str) -> None:
    layer = AdditiveAttention(6)
    with pytest.raises(RuntimeError, match="has not been initialized"):
        layer(*inputs(kind))
    with pytest.raises(ValueError, match="initialize the layer"):
        layer.numpy_parameters()


def test_wrong_first_calls_make_nothing(kind: str) -> None:
    layer = AdditiveAttention(6)
    layer.initialize()
    queries, keys, values, _ = inputs(kind)
    with pytest.raises(ValueError, match="key has 7 tokens but value has 6"):
        layer(queries, keys, values[:, :6])
    with pytest.raises(ValueError, match="valid_lens has shape"):
        layer(queries, keys, values, to(np.float32([1, 2, 3]), kind=kind))
    assert layer(to(normal(B, T_Q, 9), kind=kind), keys, values).shape == (B, T_Q, D_V)
    with pytest.raises(ValueError, match="unknown score 'aditive': did you mean 'additive'"):
        Attention("aditive")


def test_start_and_reinitialisation() -> None:
    """Uniform in the bounds of the score, σ as it says; anew on demand."""
    layer = Attention("additive", hidden=64, d_q=50, d_k=30)
    layer.initialize()
    first = layer.numpy_parameters()
    bound = (3 * 0.5 / 50) ** 0.5
    assert 0.9 * bound < abs(first["W_q.weight"]).max() <= bound
    layer.initialize(force_reinit=True)
    assert not np.array_equal(layer.numpy_parameters()["W_q.weight"], first["W_q.weight"])
    scale = Attention("gaussian", d_q=D, d_k=D)
    scale.initialize()
    np.testing.assert_allclose(scale.numpy_parameters()["log_sigma.weight"], np.log(8) / 4)


# ------------------------------------------------------------------------ training and parents


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_training(name: str, hybrid: bool, kind: str) -> None:
    """A few steps of a trainer, deferred shapes included, lower the loss."""
    mx.random.seed(0)
    net = Parent(LAYERS[name]())
    net.initialize()
    if hybrid:
        net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.03})
    given = inputs(kind)
    losses = []
    for _ in range(12):
        with autograd.record():
            loss = ((net(*given) - 1) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(numbers(loss)))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_hybridized_parents(name: str, static: bool, kind: str) -> None:
    """Outputs and all gradients are those of the eager parent; two passes, one added up."""
    net = Parent(LAYERS[name]())
    net.initialize()
    given = inputs(kind)
    found = []
    for hybrid in (False, True):
        if hybrid:
            net.hybridize(static_alloc=static, static_shape=static)
        for x in given[:3]:
            x.attach_grad(grad_req="add")
        net(*given)
        parameters = list(net.collect_params().values())
        for parameter in parameters[-1:]:
            parameter.grad_req = "write"
            parameter.grad_req = "add"  # from zero
        for _ in range(2):
            with autograd.record():
                output = net(*given)
            output.backward()
        grads = [x.grad for x in given[:3]] + [p.grad() for p in parameters]
        found.append([numbers(x) for x in (output, *grads)])
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert numbers(net(*given)).shape == found[0][0].shape


def test_hybridized_without_values_and_lengths(kind: str) -> None:
    """Values default to keys; constants may be lengths and masks."""
    layer = AdditiveAttention(6)

    class Own(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.layer(x, x, None, [1, 3], mask=Causal())

    net = Own()
    net.initialize()
    net.hybridize()
    x = to(normal(B, T_Q, D), kind=kind)
    output = numbers(net(x))
    assert layer.attention_weights is None  # of eager calls alone
    net.hybridize(False)
    np.testing.assert_allclose(output, numbers(net(x)), atol=1e-6)
    assert layer.attention_weights.shape == (B, T_Q, T_Q)


def test_a_sequence_of_blocks(kind: str) -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(D, flatten=False), SelfAttention(D, 3, dropout=0.2), nn.Dense(1))
    net.initialize()
    x = to(normal(B, T_Q, 9), kind=kind)
    eager = numbers(net(x))
    net.hybridize()
    np.testing.assert_allclose(numbers(net(x)), eager, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybrid", [False, True])
def test_dropout_in_training_only(hybrid: bool, kind: str) -> None:
    """Drawn from MXNet's generator, and the same in the backward."""
    layer = DotProductAttention(0.5)

    class Own(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def hybrid_forward(self, F: Any, *given: Any) -> Any:
            return self.layer(*given)

    net = Own()
    net.initialize()
    if hybrid:
        net.hybridize()
    queries, keys, values, lengths = inputs(kind)
    still = numbers(net(queries, keys, values, lengths))
    np.testing.assert_array_equal(numbers(net(queries, keys, values, lengths)), still)
    values.attach_grad()
    outputs = []
    for _ in range(3):
        with autograd.record():
            output = net(queries, keys, values, lengths)
        output.backward()
        outputs.append(numbers(output))
        total = (numbers(values.grad) * numbers(values)).sum()
        np.testing.assert_allclose(total, outputs[-1].sum(), rtol=1e-4, atol=1e-5)
    assert not np.array_equal(outputs[0], outputs[1])
    with autograd.record(train_mode=False):
        same = net(queries, keys, values, lengths)
    np.testing.assert_array_equal(numbers(same), still)


def test_symbols_and_arrays_do_not_mix() -> None:
    layer = DotProductAttention()
    x = to(normal(B, T_Q, D), kind="nd")
    with pytest.raises(TypeError, match="got symbols and arrays"):
        layer(x, mx.sym.var("keys"), x)


def test_a_score_is_shared_by_no_graph_of_another_process() -> None:
    with pytest.raises(mx.MXNetError):
        mx.nd.Custom(mx.nd.ones((1, 2, 3)), op_type="anyscore_layer", token="unknown")


def test_prepared_keys(kind: str) -> None:
    for layer in (AdditiveAttention(6, query_size=D, key_size=D), MultiHeadAttention(D, 2)):
        layer.initialize()
        queries, keys, _, lengths = inputs(kind)
        prepared = layer.prepare_keys(keys)
        output = layer(queries, prepared, keys, lengths)
        assert type(output) is type(queries)
        np.testing.assert_allclose(
            numbers(output), numbers(layer(queries, keys, keys, lengths)), atol=1e-6
        )


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_cast(dtype: str, kind: str) -> None:
    for make in LAYERS.values():
        layer = make()
        layer.cast(dtype)
        layer.initialize()
        given = [x.astype(dtype) for x in inputs(kind)[:3]]
        assert layer(*given).dtype == np.dtype(dtype)


def test_padding_reaches_no_gradient(kind: str) -> None:
    for make in (LAYERS[name] for name in LAYERS if name != "dot"):
        layer = make()
        layer.initialize()
        queries, keys, values, lengths = inputs(kind)
        given = [numbers(x).copy() for x in (keys, values)]
        for x in given:
            x[0, 2:] = np.nan
        with autograd.record():
            output = layer(queries, *(to(x, kind=kind) for x in given), lengths)
        output.backward()
        for name, parameter in layer.parameters().items():
            assert np.isfinite(numbers(parameter.grad())).all(), name


def test_a_number_is_not_learned(kind: str) -> None:
    layer = Attention("gaussian", sigma=2.0)
    assert not layer.parameters()
    q, k, v, _ = inputs(kind)
    expected = attention(*(numbers(x) for x in (q, k, v)), score=Gaussian(2.0))
    np.testing.assert_allclose(numbers(layer(q, k, v)), expected, atol=2e-6)
