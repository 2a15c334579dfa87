"""All masks of a call as one: ours, those that Keras sends along with tensors, and its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from anyscore.keras.arguments import Shape, shapes
from anyscore.masks import Causal, Keep, Keys, Lengths, Mask, parts


@dataclass(frozen=True, eq=False)
class Held:
    """A mask of ours on its way through Keras, which would look inside: masks may be pytrees."""

    mask: Mask


def keras_mask(x: Any) -> Any:
    """The padding mask that Keras sent along with a tensor."""
    return getattr(x, "_keras_mask", None)


def masks(
    first: Any,
    tensors: Sequence[Any],
    mask: Any,
    padding: Sequence[Any],
    attention_mask: Any,
    causal: bool,
    many: bool = False,
) -> Mask | None:
    """All masks of a call as one; None if there is none.

    Args:
        first: the first argument of the call, a tensor or a list of tensors.
        tensors: queries, keys and values.
        mask: ours, or Keras's list [query mask, value mask] or [query mask, value mask, key mask].
        padding: what Keras sent along with queries, keys and values. Padded queries attend nothing.
        attention_mask: boolean or of integers 0 and 1, (batch, T_q, T_k), (T_q, T_k), or with all
            leading dimensions.
        many: the layer splits the tensors into heads, and gives masks without heads their axis.
    """
    given, mask = shapes(*tensors), mask.mask if isinstance(mask, Held) else mask
    of_queries, of_keys, of_values = padding
    if mask is not None and mask is keras_mask(first):  # sent along with the only tensor
        of_queries, mask = mask, None
        of_keys = of_queries if of_keys is None else of_keys
    if isinstance(of_queries, list | tuple):  # the masks of one list
        of_queries, of_values, of_keys = _listed(of_queries)
    if isinstance(mask, list | tuple):
        (of_queries, of_values, of_keys), mask = _listed(mask), None
    more: list[Mask] = []
    for part in parts(mask):
        one = part.keep if many and isinstance(part, Keep) else None
        three = one is not None and len(getattr(one, "shape", ())) == 3
        more.append(Keep(_with_heads(one, "mask", given)) if three else part)
    if attention_mask is not None:
        more.append(Keep(_read(attention_mask, given, many)))
    if of_keys is not None:
        more.append(Keys(_padding(of_keys, "key", given[1])))
    if of_values is not None and of_values is not of_keys:
        more.append(Keys(_padding(of_values, "value", given[2])))
    if of_queries is not None:
        keep = _padding(of_queries, "query", given[0])
        more.append(Lengths(keras.ops.where(keep, 2**31 - 1, 0)))
    if causal:
        more.append(Causal("start"))
    found: Mask | None = None
    for part in more:
        found = part if found is None else found & part
    return found


def _listed(given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Masks of queries, values and keys, of Keras's list."""
    if len(given) not in (2, 3):
        raise ValueError(
            "expected mask=[query mask, value mask] or [query mask, value mask, key mask], each "
            f"boolean (batch, tokens) or None; got a list of {len(given)}: for padded keys alone "
            "pass mask=[None, value mask], for padded queries alone [query mask, None]."
        )
    of_queries, of_values, *of_keys = given
    return of_queries, of_values, of_keys[0] if of_keys else None


def _padding(mask: Any, name: str, shape: Shape) -> Any:
    """A padding mask of tokens (batch, tokens, width) as booleans."""
    mask = keras.ops.cast(mask, "bool")
    came, lead = tuple(mask.shape), shape[:-2]
    allowed = dict.fromkeys([(*lead[:1], shape[-2]), (*lead, shape[-2])])
    if not any(_broadcasts(came, one) for one in allowed):
        raise ValueError(
            f"the {name} mask has shape {came}, expected (batch, tokens): "
            f"{' or '.join(map(str, allowed))}."
        )
    return mask


def _read(mask: Any, given: Sequence[Shape], many: bool) -> Any:
    """Keras's attention_mask as booleans that broadcast to (*lead, T_q, T_k)."""
    mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise TypeError(
            f"attention_mask must be boolean, or integers 0 and 1, with 1 = may attend; got "
            f"{dtype}: for 0.0 and 1.0 pass attention_mask != 0, for an additive mask of 0 and "
            "−inf attention_mask == 0."
        )
    mask = keras.ops.cast(mask, "bool")
    heads = many or max(map(len, given)) == 4
    return _with_heads(mask, "attention_mask", given) if heads and len(mask.shape) == 3 else mask


def _with_heads(mask: Any, name: str, given: Sequence[Shape]) -> Any:
    """A mask (batch, T_q, T_k) with an axis for heads."""
    queries, keys, _ = given
    full = queries[0], queries[-2], keys[-2]
    if not _broadcasts(tuple(mask.shape), full):
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, expected (batch, T_q, T_k): {full}; with heads "
            "(batch, heads, T_q, T_k)."
        )
    return mask[:, None]


def _broadcasts(shape: Shape, full: Shape) -> bool:
    """Whether a shape may broadcast to another of its rank: sizes that are not known do."""
    pairs = zip(shape, full, strict=False)
    return len(shape) == len(full) and all(
        n == m or n in (1, None) or m in (1, None) for n, m in pairs
    )
