"""Lines of *Dive into Deep Learning* run with modules of Flax linen as printed.

The modules agree with the layers of `anyscore.jax`, whose errors name the lines to write.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anyscore.jax as layers
from anyscore import Causal
from frameworks.jax.test_layers import MADE, each_layer, inputs, lengths
from frameworks.jax.test_layers import make as make_layers
from helpers import book_lines as book
from helpers import machine
from helpers.hang import HANG

nn = pytest.importorskip("flax.linen", reason=machine.lacks("flax"))
front = importlib.import_module("anyscore.jax.linen")

KEY = jax.random.key(0)
INIT = (
    "attention.init_with_output(\nd2l.get_key(), queries, keys, values, valid_lens)",
    "attention.init_with_output(d2l.get_key(), queries, keys, values, valid_lens,\ntraining=False)",
)
APPLY = "attention.apply(params, queries, keys, values, valid_lens)"


def run(line: str, front: Any, tensors: list[np.ndarray], valid_lens: Any, **more: Any) -> Any:
    q, k, v = map(jnp.asarray, tensors)
    given = {"queries": q, "keys": k, "values": v, "X": q, "Y": k, "key": KEY}
    given |= {"valid_lens": jnp.asarray(valid_lens), "get_key": lambda: KEY}
    return eval(line, book.names(front, **given, **more))


def flax_state(state: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the variables of the book's Flax module: kernels (inputs, outputs)."""
    return {"params": {name.split(".")[0]: {"kernel": x.T} for name, x in state.items()}}


@book.each_line
def test_constructors_and_calls(line: book.Line) -> None:
    given = {"attention": book.make(line, front)}
    (output, attention_weights), params = run(
        INIT[line.heads is not None], front, book.inputs(line), book.lengths(line), **given
    )
    found = given["attention"].numpy_parameters(params)
    book.check(line, found, (output, attention_weights))
    output, weights = run(
        APPLY, front, book.inputs(line), book.lengths(line), params=params, **given
    )
    book.check(line, found, (output, weights))
    if line.heads is None:
        output, _ = run(
            APPLY, front, book.equal_keys(line), book.lengths(line), params=params, **given
        )
        np.testing.assert_allclose(output[:, 0], book.MEANS, rtol=1e-6)


def test_the_line_of_multi_head_attention() -> None:
    attention = eval("MultiHeadAttention(num_hiddens, num_heads, 0.5)", book.names(front))
    x, y = np.ones((2, 4, 100), "float32"), np.ones((2, 6, 100), "float32")
    line = (
        "attention.init_with_output(d2l.get_key(), X, Y, Y, valid_lens,\n"
        "                           training=False)[0][0]"
    )
    assert run(line, front, [x, y, y], np.array([3, 2]), attention=attention).shape == (2, 4, 100)


@book.each_state
def test_variables_of_the_book(line: book.Line) -> None:
    attention, state = book.make(line, front), book.state(line)
    tensors = [*map(jnp.asarray, book.inputs(line)), jnp.asarray(book.lengths(line))]
    own = jax.tree.map(jnp.shape, attention.init(KEY, *tensors))
    assert own == jax.tree.map(jnp.shape, flax_state(state))
    book.check(line, state, attention.apply(flax_state(state), *tensors))
    loaded = attention.load_numpy_parameters(state)
    jax.tree.map(np.testing.assert_array_equal, loaded, flax_state(state))


@book.each_line
def test_layers_without_flax_take_the_constructors(line: book.Line) -> None:
    layer = book.make(line, layers)
    tensors = [*map(jnp.asarray, book.inputs(line)), jnp.asarray(book.lengths(line))]
    result, params = layer.init_with_output(KEY, *tensors)
    book.check(line, layer.numpy_parameters(params), result)


@each_layer
def test_the_same_as_the_layers(name: str) -> None:
    """Values, weights, gradients, dropout and scores of a module are those of the layer."""
    kind, args, options, _ = MADE[name]
    module, (ours, _) = getattr(front, kind)(*args, **options), make_layers(name)
    given, masking = [*map(jnp.asarray, inputs(name))], {"valid_lens": lengths(name)}
    variables = jax.jit(module.init)(KEY, *given)
    params = ours.load_numpy_parameters(module.numpy_parameters(variables))
    expected = ours.apply(params, *given, **masking, return_weights=True)
    jax.tree.map(
        np.testing.assert_array_equal, module.apply(variables, *given, **masking), expected
    )
    alone = jax.jit(lambda v: module.apply(v, *given, **masking, return_weights=False))(variables)
    np.testing.assert_allclose(alone, expected[0], rtol=1e-5, atol=1e-6)

    def loss(run: Any, x: Any) -> Any:
        output, weights = run(x)
        return (output**2).sum() + (weights**3).sum()

    found = jax.grad(lambda v: loss(lambda v: module.apply(v, *given, **masking), v))(variables)
    exact = jax.grad(
        lambda p: loss(lambda p: ours.apply(p, *given, **masking, return_weights=True), p)
    )(params)
    found = module.numpy_parameters(found)
    assert found.keys() == exact.keys()
    for path, gradient in found.items():
        np.testing.assert_allclose(gradient, exact[path], rtol=1e-5, atol=1e-6)
    if kind == "Attention":
        scores = module.apply(variables, *given[:2], **masking, method="scores")
        np.testing.assert_array_equal(scores, ours.scores(params, *given[:2], **masking))


def test_dropout_takes_the_rngs_of_flax() -> None:
    module = front.AdditiveAttention(8, 0.5)
    q, k = jnp.ones((2, 3, 5), "float32"), jax.random.normal(KEY, (2, 10, 3), "float32")
    params, drop = module.init(KEY, q, k), {"dropout": jax.random.key(1)}
    still, weights = module.apply(params, q, k)
    dropped, same = module.apply(params, q, k, training=True, rngs=drop)
    assert not np.allclose(dropped, still)
    np.testing.assert_array_equal(weights, same)
    again, _ = module.apply(params, q, k, None, None, True, rngs=drop)
    np.testing.assert_array_equal(dropped, again)
    other, _ = module.apply(params, q, k, training=True, rngs={"dropout": jax.random.key(2)})
    assert not np.allclose(dropped, other)
    with pytest.raises(Exception, match='needs PRNG for "dropout"'):
        module.apply(params, q, k, training=True)
    none = front.AdditiveAttention(8, 0.0)
    np.testing.assert_array_equal(none.apply(params, q, k, training=True)[0], still)


class Decoder(nn.Module):
    """A decoder that asks one step after another, as Bahdanau's."""

    num_hiddens: int
    dropout: float = 0

    def setup(self) -> None:
        self.attention = front.AdditiveAttention(self.num_hiddens, self.dropout)
        self.dense = nn.Dense(3)

    @nn.compact
    def __call__(self, states: Any, enc_outputs: Any, training: bool = False) -> Any:
        outputs, attention_weights, context = [], [], enc_outputs[:, :1]
        for x in states:
            context, weights = self.attention(
                context + x, enc_outputs, enc_outputs, None, training=training
            )
            outputs.append(context)
            attention_weights.append(weights)
        self.sow("intermediates", "dec_attention_weights", attention_weights)
        return self.dense(jnp.concatenate(outputs, axis=1))


class Block(nn.Module):
    """A block of an encoder, which makes its attention where it calls it."""

    @nn.compact
    def __call__(self, x: Any, valid_lens: Any, training: bool = False) -> Any:
        attention = front.MultiHeadAttention(8, 2, 0.5, name="attention")
        output, weights = attention(x, x, x, valid_lens, training=training, mask=Causal())
        return nn.LayerNorm()(x + output), weights


def test_inside_of_other_modules() -> None:
    decoder, x = Decoder(16, 0.1), jax.random.normal(KEY, (4, 7, 16), "float32")
    states = jax.random.normal(KEY, (5, 4, 1, 16), "float32")
    variables = decoder.init(KEY, states, x)
    shapes = jax.tree.map(jnp.shape, variables["params"]["attention"])
    assert shapes == {
        "W_k": {"kernel": (16, 16)},
        "W_q": {"kernel": (16, 16)},
        "w_v": {"kernel": (16, 1)},
    }
    output, kept = jax.jit(lambda v: decoder.apply(v, states, x, mutable=["intermediates"]))(
        variables
    )
    assert output.shape == (4, 5, 3)
    (weights,) = kept["intermediates"]["dec_attention_weights"]
    assert [w.shape for w in weights] == [(4, 1, 7)] * 5
    drop = {"dropout": jax.random.key(1)}
    dropped = decoder.apply(variables, states, x, training=True, rngs=drop)
    assert not np.allclose(dropped, output)
    gradients = jax.grad(lambda v: (decoder.apply(v, states, x) ** 2).sum())(variables)
    assert all((g != 0).any() for g in jax.tree.leaves(gradients["params"]["attention"]))

    block = Block()
    variables = block.init(KEY, x[..., :8], jnp.array([2, 3, 5, 7]))
    assert variables["params"]["attention"]["W_o"].keys() == {"kernel", "bias"}
    (_, weights), _ = block.init_with_output(KEY, x[..., :8], jnp.array([2, 3, 5, 7]))
    assert weights.shape == (4, 2, 7, 7)
    assert (weights[0, :, :, 2:] == 0).all()
    assert (jnp.triu(weights[-1, 0], 1) == 0).all()
    remat = nn.remat(front.AdditiveAttention)(5)
    (output, _), _ = remat.init_with_output(KEY, x, x)
    assert output.shape == x.shape


@pytest.mark.parametrize("name", front.__all__)
def test_fields_are_the_arguments_of_the_layers(name: str) -> None:
    ours = inspect.signature(getattr(front, name)).parameters
    theirs = inspect.signature(getattr(layers, name)).parameters
    named = {x: y for x, y in theirs.items() if y.kind is not y.VAR_KEYWORD}
    assert {x: ours[x].default for x in named} == {x: y.default for x, y in named.items()}
    positional = [x for x, y in named.items() if y.kind is y.POSITIONAL_OR_KEYWORD]
    assert [*ours][: len(positional)] == positional


def test_widths_of_the_tokens() -> None:
    """The width of a later call is checked against the parameters."""
    module, x = front.MultiHeadAttention(100, 10, 0.5), jnp.ones((2, 4, 5))
    params = module.init(KEY, x)
    assert params["params"]["W_q"]["kernel"].shape == (5, 100)
    with pytest.raises(Exception, match="kernel"):
        module.apply(params, jnp.ones((2, 4, 7)))
    with pytest.raises(ValueError, match=r"d_q=5, got d_q=7"):
        front.Attention("additive", hidden=8, d_q=5, d_k=5).init(KEY, jnp.ones((2, 4, 7)), x)


@pytest.mark.parametrize("name", ["call", "rngs", "training"])
@pytest.mark.parametrize("kind", ["AdditiveAttention", "MultiHeadAttention"])
def test_lines_that_need_another(name: str, kind: str) -> None:
    attention = {"AdditiveAttention": (8, 0.1), "MultiHeadAttention": (100, 5, 0.5)}[kind]
    layer = getattr(layers, kind)(*attention)
    x = jnp.ones((2, 4, 100))
    params, given = layer.init(KEY, x, x), {"front": layers, "tensors": [x] * 3}
    book.check_different(
        name, lambda line: run(line, **given, valid_lens=[2, 3], attention=layer, params=params)
    )
    with pytest.raises(TypeError, match=f"anyscore.jax.linen.{kind}"):
        run(book.DIFFERENT[name].line, **given, valid_lens=[2, 3], attention=layer, params=params)


def test_two_names_split_a_batch_of_two() -> None:
    """Without an error: the page says the line to write, and modules of Flax return both."""
    layer, module = layers.AdditiveAttention(8, 0.1), front.AdditiveAttention(8, 0.1)
    x = jnp.ones((2, 4, 5), "float32")
    params, variables = layer.init(KEY, x, x), module.init(KEY, x, x)
    output, weights = layer.apply(params, x, x)
    assert output.shape == weights.shape == (4, 5)
    output, weights = layer.apply(params, x, x, return_weights=True)
    assert (output.shape, weights.shape) == ((2, 4, 5), (2, 4, 4))
    output, weights = module.apply(variables, x, x)
    assert (output.shape, weights.shape) == ((2, 4, 5), (2, 4, 4))
    row = "| `output, weights = layer.apply(params, …, return_weights=True)` |"
    assert row in book.PAGE.read_text(encoding="utf-8")


def test_tokens_of_another_width() -> None:
    layer, x = layers.MultiHeadAttention(100, 10, 0.5), np.ones((2, 4, 5), "float32")
    params = layer.init(KEY)

    def call(line: str) -> Any:
        return layer.apply(params, x, x, x, jnp.array([2, 3]))

    book.check_different("width", call)


def test_without_flax() -> None:
    """One sentence says what is missing, and `anyscore.jax` needs no Flax."""
    code = (
        "import sys; sys.modules['flax'] = None\n"
        "import anyscore.jax\n"
        "try:\n    import anyscore.jax.linen\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG
    )
    text = "anyscore.jax.linen has modules of Flax, which is not installed: pip install flax"
    assert done.stdout.strip() == text
