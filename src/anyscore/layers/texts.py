"""The texts that docstrings of layers share in all frameworks, and the decorator that puts them in.

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
    """Put the text of a name of `TEXTS` in the place of each line {name} of a docstring."""

    def text(line: re.Match[str]) -> str:
        return indent(TEXTS[line["name"]], line["margin"])

    if documented.__doc__:  # which `python -OO` leaves out
        filled = re.sub(r"^(?P<margin> *){(?P<name>\w+)}$", text, documented.__doc__, flags=re.M)
        documented.__doc__ = filled
    return documented


_SIZES = """\
hidden: width h of "additive", "concat" and "gatv2"; with `projected` that of the queries.
d_q, d_k: widths of queries and keys; inferred from the first inputs if left out.
dropout: rate on the weights, in training only.
bias: whether an additive or concat score has one.
heads, kv_heads: give each head (axis −3) its own parameters.
projected: queries and keys come projected: leave out W_q and W_k."""

_OPTIONS = """\
impl: as of `anyscore.attention`.
softcap: c > 0 caps the scores, s → c · tanh(s / c), after scale and biases and before the
    softmax (Gemma Team 2024, Gemma 2, section 2); 0 does not.
sink: one more logit, which takes weight and gives no value, so that weights sum to less
    than 1 (`anyscore.modifiers.sinks`). True: learned, one for each head if the layer has
    `heads`, from 0 on, which is "softmax one" (Miller 2023); a number: fixed; None: none.
normalizer: as of `anyscore.attention`: "softmax", "sigmoid", "sparsemax", "entmax15"."""

_ERRORS = """\
Raises:
    TypeError, ValueError: an unknown score or argument, or sizes that it lacks."""

TEXTS = {
    "sizes": _SIZES,
    "options": f"{_SIZES}\n{_OPTIONS}",
    "scales": """\
scales: sigma=, tau=, scale= or negative_slope= of the score, numbers in place of a learned
    or default one.""",
    "errors": _ERRORS,
    "self_attention": """\
embedding_size: width d of the input.
d_k, d_v: widths of queries and keys, and of values (d if left out). Without a bias the
    projection has d · (2 · d_k + d_v) parameters.
score, dropout, options: as of `Attention`; the score meets projected queries and keys.
bias: whether the projections have one.
project_output: add a linear layer from d_v to d.""",
    "multi_head": """\
embedding_size: width d of the output; each head has d / n_heads.
n_heads: query heads; kv_heads: key and value heads, fewer if they divide n_heads.
score, dropout, options: as of `Attention`; each head has parameters of its own for the
    score, which meets projected queries and keys.
d_q, d_k, d_v: widths of queries, keys and values, d if left out.
bias, project_output: without both, and with kv_heads = n_heads, the projections have
    d · (d_q + d_k + d_v) parameters.""",
    "multi_head_errors": f"{_ERRORS[:-1]} or that do not\n        divide.",
    "masked_softmax": """\
Take the softmax over the last axis of X (..., queries, keys), of the attended keys alone.

X: floating point. valid_lens: (batch,) or (batch, queries), see `anyscore.Lengths`. mask: see
`anyscore.masks`. Returns weights of the shape and dtype of X; 0 in a row that attends nothing.

Raises TypeError, ValueError: X is no tensor of the framework, or the mask does not fit it.""",
}
"""Texts by name, each without the margin of the place that it takes."""
