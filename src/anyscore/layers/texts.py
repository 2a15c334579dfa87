"""Texts that docstrings of layers share in all frameworks, and the decorator that inserts them.

@with_texts
class Attention(Layer):
    '''…
        {options}
        device, dtype: of the parameters.
    '''
"""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import indent
from typing import Any, TypeVar

Documented = TypeVar("Documented", bound="type[Any] | Callable[..., Any]")


def with_texts(documented: Documented) -> Documented:
    """Replace each line {name} of a docstring by the text `TEXTS[name]`, with the line's margin."""

    def text(line: re.Match[str]) -> str:
        return indent(TEXTS[line["name"]], line["margin"])

    if documented.__doc__:  # None under `python -OO`
        filled = re.sub(r"^(?P<margin> *){(?P<name>\w+)}$", text, documented.__doc__, flags=re.M)
        documented.__doc__ = filled
    return documented


_SIZES = """\
hidden: the width h of the hidden layer of "additive", "concat" and "gatv2", required there. If
    `projected`, it is the width of the queries.
d_q, d_k: the widths of queries and keys. By default None: the first call, in JAX `init`, finds
    them.
dropout: rate p in [0, 1) on the weights, in training only. By default 0.
bias: True adds a bias to the hidden layer of "additive" or "concat". By default False.
heads, kv_heads: the numbers of query heads and key heads (axis −3). Each head then has its own
    parameters. By default None: all heads share them; kv_heads is by default heads.
projected: True if queries and keys are already projected: the score has no W_q and W_k. By
    default False."""

_COMPUTATION = """\
impl: the implementation, as for `anyscore.attention`. By default "auto".
softcap: c > 0 caps the scores after scale and biases: s → c · tanh(s / c) (Gemma Team 2024, Gemma
    2, section 2). By default 0, no cap.
sink: one more logit without a value, so that weights sum to less than 1. True: learned, one for
    each head if the layer has `heads`; the initial value 0 is "softmax one" (Miller 2023). A
    number: fixed. By default None, no sink. See the page sinks of the documentation.
normalizer: "softmax" (the default), "sigmoid", "sparsemax" or "entmax15", as for
    `anyscore.attention`."""

_ERRORS = """\
Raises:
    TypeError, ValueError: The score or an argument is unknown, or a size is missing."""

_MULTI_HEAD_ERRORS = """\
Raises:
    TypeError, ValueError: The score or an argument is unknown, a size is missing, or numbers of
        heads do not divide."""

_COURSE = """\
dropout: rate p in [0, 1) on the weights, in training only. By default 0."""

TEXTS = {
    "sizes": _SIZES,
    "options": f"{_SIZES}\n{_COMPUTATION}",
    "scales": """\
scales: sigma=, tau=, nu=, scale= or negative_slope= of the score: a fixed number in place of the
    learned or default one.""",
    "errors": _ERRORS,
    "self_attention": """\
embedding_size: the width d of the input.
d_k: the width of queries and keys.
d_v: the width of values. By default None, for d. Without a bias the projection has
    d · (2 · d_k + d_v) parameters.
score, dropout, options: as for `Attention`. The score takes projected queries and keys.
bias: True, the default, adds a bias to each projection.
project_output: True adds a linear layer from d_v to d. By default False.""",
    "book_arguments": """\
The arguments of *Dive into Deep Learning* are accepted in all of its editions. By name they are
num_hiddens, num_heads, use_bias, query_size, key_size and value_size. By position, 5 to 7 arguments
begin with key_size, query_size, value_size.""",
    "multi_head": """\
embedding_size: the width d of the output. The width of a head is d / n_heads.
n_heads: the number of query heads.
dropout: rate p in [0, 1) on the weights, in training only. By default 0.
bias: True, the default, adds a bias to each projection.
kv_heads: the number of key and value heads, a divisor of n_heads. By default None, for n_heads.
score, options: as for `Attention`. The score takes projected queries and keys, with its own
    parameters in each head.
d_q, d_k, d_v: the widths of queries, keys and values. By default None, for d.
project_output: True, the default, adds a linear layer over the merged heads. Without bias and
    project_output, and with kv_heads = n_heads, the projections have d · (d_q + d_k + d_v)
    parameters.""",
    "prepare_keys": """\
Project keys and prepare them, as `Attention.prepare_keys`.

Args:
    keys: (batch, T_k, d_k).
    valid_lens, mask: keys that no query of any call may attend, as for `anyscore.prepare_keys`.

Returns:
    `PreparedKeys`, for calls `layer(queries, prepared, values)`.

Raises:
    TypeError, ValueError: As `anyscore.prepare_keys`.""",
    "multi_head_errors": _MULTI_HEAD_ERRORS,
    "dot_product": f"""\
Scaled dot-product attention, under its name in *Dive into Deep Learning*.

    output = softmax(queries keysᵀ / √d) values

Args:
{indent(_COURSE, "    ")}
    options: as for `Attention`.

{_ERRORS}

Source: Vaswani et al. 2017, Attention Is All You Need, eq. 1.""",
    "additive": f"""\
Additive attention, under its name in *Dive into Deep Learning*.

    score(q, k) = w_vᵀ tanh(W_q q + W_k k)

Args:
    num_hiddens: the width h of the hidden layer. Three or four arguments by position are
        key_size, query_size, num_hiddens, dropout, as in early editions.
{indent(_COURSE, "    ")}
    query_size, key_size: the widths of queries and keys. By default None: the first call, in
        JAX `init`, finds them.
    bias: True adds a bias to the hidden layer. By default False.
    options: as for `Attention`.

{_ERRORS}

Source: Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and
Translate, appendix A.1.2.""",
    "mlp": f"""\
Additive attention, under its name in early editions of *Dive into Deep Learning*.

    score(q, k) = w_vᵀ tanh(W_q q + W_k k)

Args:
    units: the width h of the hidden layer. Three or four arguments by position are key_size,
        query_size, units, dropout.
{indent(_COURSE, "    ")}
    options: as for `AdditiveAttention`.

{_ERRORS}

Source: Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and
Translate, appendix A.1.2.""",
    "keras_options": f"""\
{_COMPUTATION}
seed: the seed of dropout, an integer. By default None, a random one.
kernel_initializer, bias_initializer: Keras initializers of randomly initialised weights, and of
    biases. By default None: the initialisation of the score and the layer.""",
    "nnx": """\
Args:
    args, options: the arguments of the layer of `anyscore.jax`. The module draws its parameters at
        once, so all sizes are required.
    rngs: an `nnx.Rngs` with the streams "params" and, for dropout, "dropout".

`train()` switches dropout on, `eval()` off. Dropout of a new module is on.

Raises:
    TypeError, ValueError: The layer refuses an argument, or a size is missing.""",
    "linen": """\
Its fields are the arguments of the layer of `anyscore.jax`, in the same order. A call
`apply(params, queries, keys, values, valid_lens, training=True, rngs={"dropout": key})` has the
arguments of the layer besides. It returns (output, weights), or the output alone with
return_weights=False, which saves the memory of the weights. Dropout acts with training=True.

The module takes missing widths from the tokens, at `init`. Parameters of two axes are kernels
(inputs, outputs), as in `nn.Dense`; others have anyscore's names.

Raises:
    TypeError, ValueError: A field or a call is one that the layer refuses.""",
    "masked_softmax": """\
Return the softmax over the last axis, over attended keys alone.

    masked_softmax(X)_ij = e^X_ij / Σ_l e^X_il        over the attended keys l

A row without attended keys is 0.

Args:
    X: scores (..., T_q, T_k), floating point.
    valid_lens: the numbers of attended keys, (batch,) or (batch, T_q), as for `anyscore.Lengths`.
        By default None, all.
    mask: mask objects or booleans, True = may attend, as for `anyscore.attention`. By default
        None.

Returns:
    Weights of the shape and dtype of X.

Raises:
    TypeError, ValueError: X is no tensor of the framework, or the mask does not fit X.""",
}
"""Texts by name, without a margin."""
