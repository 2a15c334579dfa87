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
hidden: width h of the hidden layer of "additive", "concat" and "gatv2"; if `projected`, the
    width of the queries.
d_q, d_k: widths of queries and keys; inferred from the first inputs if left out.
dropout: rate p in [0, 1) on the weights, in training only.
bias: True adds a bias to the hidden layer of "additive" or "concat".
heads, kv_heads: numbers of query heads and key heads (axis −3); each head then has its own
    parameters.
projected: True if queries and keys are already projected: the score has no W_q and W_k."""

_OPTIONS = """\
impl: as for `anyscore.attention`.
softcap: c > 0 caps the scores after scale and biases: s → c · tanh(s / c). 0: no cap.
    Source: Gemma Team 2024, Gemma 2, section 2.
sink: one more logit without a value, so that weights sum to less than 1; see
    `anyscore.modifiers.sinks`. True: learned, one for each head if the layer has `heads`;
    the initial value 0 is "softmax one" (Miller 2023). A number: fixed. None: no sink.
normalizer: "softmax", "sigmoid", "sparsemax" or "entmax15", as for `anyscore.attention`."""

_ERRORS = """\
Raises:
    TypeError, ValueError: an unknown score or argument, or a missing size."""

_MULTI_HEAD_ERRORS = """\
Raises:
    TypeError, ValueError: an unknown score or argument, a missing size, or numbers of heads
        that do not divide."""

TEXTS = {
    "sizes": _SIZES,
    "options": f"{_SIZES}\n{_OPTIONS}",
    "scales": """\
scales: sigma=, tau=, scale= or negative_slope= of the score: a fixed number in place of the
    learned or default one.""",
    "errors": _ERRORS,
    "self_attention": """\
embedding_size: width d of the input.
d_k: width of queries and keys.
d_v: width of values; d if left out. Without a bias the projection has d · (2 · d_k + d_v)
    parameters.
score, dropout, options: as for `Attention`. The score takes projected queries and keys.
bias: True adds a bias to each projection.
project_output: True adds a linear layer from d_v to d.""",
    "multi_head": """\
embedding_size: width d of the output; the width of a head is d / n_heads.
n_heads: number of query heads.
kv_heads: number of key and value heads, a divisor of n_heads; n_heads if left out.
score, dropout, options: as for `Attention`. The score takes projected queries and keys,
    with its own parameters in each head.
d_q, d_k, d_v: widths of queries, keys and values; d if left out.
bias: True adds a bias to each projection.
project_output: True adds a linear layer over the merged heads. Without bias and
    project_output, and with kv_heads = n_heads, the projections have d · (d_q + d_k + d_v)
    parameters.""",
    "multi_head_errors": _MULTI_HEAD_ERRORS,
    "masked_softmax": """\
Return the softmax over the last axis of X (..., queries, keys), over attended keys alone.

The result has the shape and dtype of X. A row without attended keys is 0.

X: floating point. valid_lens: (batch,) or (batch, queries), see `anyscore.Lengths`. mask: see
`anyscore.masks`.

Raises:
    TypeError, ValueError: X is no tensor of the framework, or the mask does not fit X.""",
}
"""Texts by name, without a margin."""
