"""Layers for JAX, plain and as Flax NNX modules, agree in calls, gradients and dropout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import anyscore.jax as layers
import anyscore.torch as torch_layers
from anyscore import Additive, Causal
from helpers import machine
from helpers.by_pair import by_pair
from helpers.samples import normal, old_name

nnx = pytest.importorskip("flax.nnx", reason=machine.lacks("flax"))
modules = pytest.importorskip("anyscore.jax.nnx")

KEY = jax.random.key(0)
B, T_Q, T_K = 2, 3, 10
LENGTHS = jnp.array([2, 6])

BARE: dict[str, Any] = {"d_k": 3, "bias": False, "project_output": False}
MADE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], list[int]]] = {
    "additive": ("Attention", ("additive",), {"hidden": 8, "d_q": 5, "d_k": 3}, [5, 3, 4]),
    "bias": ("Attention", ("concat",), {"hidden": 8, "d_q": 5, "d_k": 3, "bias": True}, [5, 3]),
    "gaussian": ("Attention", ("gaussian",), {"d_q": 5, "d_k": 5}, [5, 5]),
    "trilinear": ("Attention", ("trilinear",), {"d_q": 5, "d_k": 5}, [5, 5]),
    "d2l": ("AdditiveAttention", (8,), {"query_size": 5, "key_size": 3}, [5, 3, 4]),
    "dot": ("DotProductAttention", (), {}, [5, 5, 4]),
    "heads": ("MultiHeadAttention", (8, 4), {"kv_heads": 2, "score": "additive"}, [8, 8, 8]),
    "bare": ("MultiHeadAttention", (8, 2), BARE, [8, 3, 8]),
    "self": ("SelfAttention", (6, 4), {"score": "laplace", "project_output": True}, [6]),
}  # fmt: skip
each_layer = by_pair("name", MADE)


def inputs(name: str) -> list[np.ndarray]:
    widths = MADE[name][3]
    tokens = [T_K] if len(widths) == 1 else [T_Q, T_K, T_K]
    return [normal(B, n, width).astype("f") for n, width in zip(tokens, widths, strict=False)]


def make(name: str) -> tuple[Any, Any]:
    """Return the layer in JAX, and the same layer in PyTorch."""
    kind, args, options, _ = MADE[name]
    return (getattr(module, kind)(*args, **options) for module in (layers, torch_layers))


def lengths(name: str) -> jax.Array:
    return LENGTHS if name != "self" else jnp.array([3, 7])


@each_layer
def test_the_same_as_in_pytorch_with_its_parameters(name: str) -> None:
    ours, theirs = make(name)
    given = inputs(name)
    params = ours.init(KEY, *map(jnp.asarray, given))
    for arrays in (theirs.numpy_parameters(), ours.numpy_parameters(params)):
        params = ours.load_numpy_parameters(arrays)
        theirs.load_numpy_parameters(arrays)
        n = lengths(name)
        found = jax.jit(ours.apply)(params, *map(jnp.asarray, given), valid_lens=n)
        expected = theirs(*map(torch.tensor, given), valid_lens=torch.tensor(np.asarray(n)))
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)


@each_layer
def test_init_with_output(name: str) -> None:
    ours, theirs = make(name)
    given = [*map(jnp.asarray, inputs(name))]
    (output, weights), params = ours.init_with_output(KEY, *given, valid_lens=lengths(name))
    np.testing.assert_allclose(
        output, ours.apply(params, *given, valid_lens=lengths(name)), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert {k: x.shape for k, x in params.items()} == {
        k: x.shape for k, x in theirs.numpy_parameters().items()
    }
    again = jax.eval_shape(ours.init, KEY, *given)
    assert jax.tree.map(jnp.shape, again) == jax.tree.map(jnp.shape, params)


def test_parameters_start_as_the_score_says() -> None:
    layer = layers.Attention("additive", hidden=64, d_q=200, d_k=100)
    params = layer.init(KEY)
    assert abs(float(params["W_q.weight"].var()) * 200 - 0.5) < 0.05
    assert abs(float(params["W_k.weight"].var()) * 100 - 0.5) < 0.05
    assert not np.array_equal(params["W_q.weight"], layer.init(jax.random.key(1))["W_q.weight"])
    sigma = layers.Attention("gaussian", d_q=5, d_k=5).init(KEY)["log_sigma.weight"]
    assert float(jnp.exp(sigma)) == pytest.approx(10**0.25)


def test_dropout_in_training_alone() -> None:
    layer = layers.AdditiveAttention(8, 0.5)
    q, k = jnp.ones((B, T_Q, 5), "float32"), jnp.asarray(normal(B, T_K, 3), "float32")
    params = layer.init(KEY, q, k)
    drop = {"training": True, "dropout_seed": jax.random.key(1)}
    still = layer.apply(params, q, k)
    assert not np.array_equal(layer.apply(params, q, k, **drop), still)
    np.testing.assert_array_equal(
        layer.apply(params, q, k, **drop), layer.apply(params, q, k, **drop)
    )
    with pytest.raises(ValueError, match="dropout_seed"):
        layer.apply(params, q, k, training=True)


def test_score_objects_and_callables() -> None:
    parameters = [jnp.asarray(normal(*shape), "float32") for shape in ((8, 5), (8, 5), (8,))]
    layer = layers.Attention(Additive(*parameters))
    q = jnp.asarray(normal(B, T_Q, 5), "float32")
    params = layer.init(KEY)
    assert set(params) == {"W_q.weight", "W_k.weight", "w_v.weight"}
    twice = jax.tree.map(lambda x: 2 * x, params)
    assert not np.array_equal(layer.apply(twice, q, q), layer.apply(params, q, q))
    dot = layers.Attention(lambda q, k: q @ k.swapaxes(-1, -2))
    expected = layers.Attention("dot").apply({}, q, q)
    np.testing.assert_allclose(dot.apply(dot.init(KEY), q, q), expected, rtol=1e-5)


def test_prepared_keys() -> None:
    layer = layers.MultiHeadAttention(8, 2, score="additive")
    params, x, y = layer.init(KEY), *(jnp.asarray(normal(B, n, 8), "float32") for n in (1, 5))
    prepared = layer.prepare_keys(params, y)
    expected = layer.apply(params, x, y, y, LENGTHS)
    np.testing.assert_allclose(layer.apply(params, x, prepared, y, LENGTHS), expected, rtol=1e-5)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="did you mean 'additive'"):
        layers.Attention("aditive")
    with pytest.raises(ValueError, match="hidden="):
        layers.Attention("additive")
    layer = layers.Attention("additive", hidden=8)
    with pytest.raises(ValueError, match="d_q= and d_k="):
        layer.init(KEY)
    with pytest.raises(ValueError, match=r"expected the parameters W_q\.weight"):
        layer.load_numpy_parameters({"W_q.weight": np.ones((8, 5))})
    old = {
        "W_q.weight": np.ones((8, 5)),
        "W_k.weight": np.ones((8, 3)),
        "W_v.weight": np.ones((1, 8)),
    }
    assert set(layer.load_numpy_parameters(old)) == {"W_q.weight", "W_k.weight", "w_v.weight"}
    with pytest.raises(ValueError, match="impl must be one of"):
        layers.Attention(impl="fast")


@each_layer
def test_numpy_arrays(name: str) -> None:
    """Inputs and parameters may be NumPy arrays; the output is a JAX array."""
    ours, _ = make(name)
    given = inputs(name)
    params = ours.init(KEY, *given)
    found = ours.apply(params, *given, valid_lens=lengths(name))
    exact = ours.apply(params, *map(jnp.asarray, given), valid_lens=lengths(name))
    assert isinstance(found, jax.Array)
    np.testing.assert_array_equal(found, exact)
    again = ours.apply(jax.tree.map(np.asarray, params), *given, valid_lens=lengths(name))
    np.testing.assert_array_equal(again, exact)


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention", "SelfAttention"])
def test_impl(kind: str, module: bool) -> None:
    """A layer with impl= runs that implementation."""
    sizes = {"Attention": (), "MultiHeadAttention": (8, 2), "SelfAttention": (8, 8)}[kind]
    x = jnp.asarray(normal(B, T_Q, 8), "float32")

    def run(impl: str) -> jax.Array:
        made = {"score": "additive", "impl": impl}
        made |= {"hidden": 8, "d_q": 8, "d_k": 8} if kind == "Attention" else {}
        given = (x, x) if kind == "Attention" else (x,)
        if module:
            return getattr(modules, kind)(*sizes, **made, rngs=nnx.Rngs(0))(*given)
        layer = getattr(layers, kind)(*sizes, **made)
        return layer.apply(layer.init(KEY, *given), *given)

    def text(impl: str) -> str:
        return jax.jit(lambda: run(impl)).lower().as_text()

    assert "anyscore_forward" in text("fused")
    assert "anyscore_forward" not in text("reference")
    np.testing.assert_allclose(run("fused"), run("reference"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [layers.MultiHeadAttention, layers.SelfAttention])
def test_old_names_of_layers_that_project(make: Any) -> None:
    layer = make(8, 2, score="gatv2")
    params = layer.init(KEY)
    found = layer.load_numpy_parameters({old_name(name): x for name, x in params.items()})
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_padding_reaches_no_gradient() -> None:
    layer = layers.MultiHeadAttention(8, 2)
    params = layer.init(KEY)
    x = jnp.asarray(normal(B, T_K, 8), "float32").at[0, 2:].set(jnp.nan)
    found = jax.grad(lambda p: layer.apply(p, x[:, :1], x, x, jnp.array([2, 6])).sum())(params)
    assert all(jnp.isfinite(g).all() for g in found.values())


@each_layer
def test_modules(name: str) -> None:
    """Modules agree with plain layers, and NNX differentiates, splits and merges modules."""
    kind, args, options, _ = MADE[name]
    module = getattr(modules, kind)(*args, **options, rngs=nnx.Rngs(0))
    ours, _ = make(name)
    given = [*map(jnp.asarray, inputs(name))]
    params = ours.load_numpy_parameters(module.numpy_parameters())
    expected = ours.apply(params, *given)
    np.testing.assert_allclose(module(*given), expected, rtol=1e-5, atol=1e-6)
    definition, state = nnx.split(module)
    np.testing.assert_allclose(nnx.merge(definition, state)(*given), expected, rtol=1e-5, atol=1e-6)
    module.load_numpy_parameters({k: 2 * x for k, x in module.numpy_parameters().items()})
    found = nnx.jit(nnx.grad(lambda module: (module(*given) ** 2).sum()))(module)
    exact = jax.grad(lambda p: (ours.apply(p, *given) ** 2).sum())(
        {k: 2 * x for k, x in params.items()}
    )
    for path, gradient in nnx.to_flat_state(found):
        np.testing.assert_allclose(gradient[...], exact[path[-1]], rtol=1e-4, atol=1e-4)


def test_modules_drop_in_training_alone() -> None:
    module = modules.DotProductAttention(0.5, rngs=nnx.Rngs(0))
    q = jnp.asarray(normal(B, T_Q, 5), "float32")
    assert not np.array_equal(module(q, q), module(q, q))
    module.eval()
    np.testing.assert_array_equal(module(q, q, mask=Causal()), module(q, q, mask=Causal()))
    module.train()
    np.testing.assert_array_equal(module(q, q, dropout_seed=3), module(q, q, dropout_seed=3))
