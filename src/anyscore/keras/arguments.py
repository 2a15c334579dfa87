"""The arguments of a call: by anyscore's names or by Keras's, one by one or in one list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from anyscore.ops import framework

Shape = tuple[int | None, ...]
Widths = tuple[int | None, int | None, int | None]

OURS = {"query": "queries", "key": "keys", "value": "values"}
OURS |= {f"{theirs}_mask": f"{ours}_mask" for theirs, ours in OURS.items()}
OURS |= {"inputs": "queries", "input": "queries"}
"""Keras's names of arguments → anyscore's."""

ORDER = (
    "by position the order is (queries, keys, values); in the order of Keras pass one list "
    "[query, value, key], or query=, value= and key= by name."
)

ONE_SEQUENCE = (
    "this layer attends one sequence to itself; Attention and MultiHeadAttention take two."
)


def by_our_names(
    positional: Sequence[str],
    args: Sequence[Any],
    named: Mapping[str, Any],
    ours: Mapping[str, str] = OURS,
) -> dict[str, Any]:
    """Map anyscore's names to the arguments of a call.

    With value= and without key= the keys are the values, as in Keras. The same tensor may have
    several names. positional: names of the positional arguments, in order.
    `ours` maps Keras's names to anyscore's.

    Raises:
        TypeError: too many arguments, or two tensors for one argument.
    """
    if len(args) > len(positional):
        raise TypeError(
            f"expected at most {len(positional)} arguments by position, "
            f"({', '.join(positional)}); got {len(args)}: pass the others by name."
        )
    arguments, pairs = dict(zip(positional, args, strict=False)), "keys" in positional
    for theirs, x in named.items():
        name = ours.get(theirs, theirs)
        other = arguments.get(name)
        if x is not None and other is not None and x is not other:
            raise TypeError(
                f"{name} came twice, once as {theirs}=: {ORDER if pairs else ONE_SEQUENCE}"
            )
        arguments[name] = x if other is None else other
    if pairs and named.get("value") is not None and arguments.get("keys") is None:
        arguments["keys"] = arguments["values"]
    return arguments


def three(queries: Any, keys: Any = None, values: Any = None) -> tuple[Any, Any, Any]:
    """Return (queries, keys, values), or their shapes, also from one list in Keras's order.

    Raises:
        ValueError: a list together with keys or values; or a list of another length than 2, 3.
    """
    if isinstance(queries, list | tuple) and (not queries or not _is_size(queries[0])):
        if keys is not None or values is not None or len(queries) not in (2, 3):
            raise ValueError(
                "expected layer(queries, keys, values), or one list [query, value] or [query, "
                f"value, key] in Keras's order; got a list of {len(queries)}"
                f"{' and more' if keys is not None or values is not None else ''}."
            )
        queries, values, *rest = queries
        keys = rest[0] if rest else values
    return queries, keys, keys if values is None else values


def check_packed(layer: str, tensors: Sequence[Any], taken: bool) -> None:
    """Check that no tensor is nested or ragged; a layer that takes these refuses strided ones.

    Raises:
        TypeError: the layer does not take a tensor of this layout.
    """
    for x in tensors:
        if isinstance(x, list | tuple):
            check_packed(layer, x, taken)
            continue
        nested = getattr(x, "is_nested", False) is True
        if nested and "jagged" not in str(x.layout):
            raise TypeError(
                "a nested tensor has the strided layout: make it with layout=torch.jagged."
            )
        if not taken and (nested or type(x).__name__ == "RaggedTensor"):
            raise TypeError(
                f"{layer} takes no {'nested' if nested else 'ragged'} tensor here: pass the tokens "
                "of all sequences, (1, tokens, width), with mask=Sequences(offsets), or padded "
                "tensors with valid_lens=. Attention takes it."
            )


def _is_size(x: Any) -> bool:
    return x is None or isinstance(x, int)


def check_shapes(expected: Widths, queries: Shape, keys: Shape, values: Shape) -> None:
    """Check widths against `expected` (None: any), and that T_k of keys and values are equal.

    Unknown sizes pass.

    Raises:
        ValueError: sizes that do not fit.
    """
    if min(map(len, (queries, keys, values))) < 2:
        return  # the check of ranks refuses these
    if not _alike(keys[-2], values[-2]):
        raise ValueError(
            f"keys have {keys[-2]} tokens but values have {values[-2]} (shapes {keys} and "
            f"{values}): each key needs one value."
        )
    shapes = {"queries": queries, "keys": keys, "values": values}
    for (name, shape), width in zip(shapes.items(), expected, strict=True):
        if not _alike(shape[-1], width):
            swapped = queries[-1], values[-1], keys[-1]
            fits = all(map(_alike, swapped, expected))
            raise ValueError(
                f"{name} have shape {shape}, expected width {width}{f': {ORDER}' if fits else '.'}"
            )


def _alike(n: Any, m: Any) -> bool:
    """Check if two sizes may be equal: an unknown size may equal any."""
    return not (isinstance(n, int) and isinstance(m, int)) or n == m


def output_shape(queries: Shape, keys: Shape, values: Shape) -> Shape:
    """Return the shape of the output, (..., T_q, d_v).

    Leading dimensions broadcast; with fewer key heads, the heads are those of the queries.
    """
    leads = [tuple(shape[:-2]) for shape in (queries, keys, values)]
    rank = max(map(len, leads))
    padded = [(1,) * (rank - len(lead)) + lead for lead in leads]
    lead = [next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True)]
    return (*lead, queries[-2], values[-1])


def shapes(*tensors: Any) -> list[Shape]:
    """List the shapes of tensors."""
    return [tuple(x.shape) for x in tensors]


def whole(lengths: Any) -> Any:
    """Convert lengths to integers: Keras would round floats to the precision of the layer."""
    if framework(lengths) in (None, "numpy") and not isinstance(lengths, keras.KerasTensor):
        lengths = np.asarray(lengths)
        if lengths.dtype.kind != "f":
            return lengths
    elif "float" not in keras.backend.standardize_dtype(lengths.dtype):
        return lengths
    ops = keras.ops
    lengths = ops.cast(lengths, "float32")
    lengths = ops.where(ops.isnan(lengths), 0.0, ops.clip(lengths, 0.0, 2.0**30))
    return ops.cast(ops.ceil(lengths), "int32")
