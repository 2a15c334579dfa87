"""Combine the masks of a call: anyscore's mask, Keras's padding masks, and Keras's options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import keras
import numpy as np

from anyscore.keras.arguments import Shape, shapes
from anyscore.keras.config import decode_tree, encode_tree
from anyscore.masks.context import MAX_RANK
from anyscore.masks.objects import BooleanMask, Causal, Keys, Lengths, Mask, parts
from anyscore.modifiers.biases import Bias
from anyscore.ops.pytrees import TREES, flatten


@keras.saving.register_keras_serializable("anyscore", "Held")  # its name in saved models
@dataclass(frozen=True, eq=False)
class Opaque:
    """A wrapper of a mask or bias: Keras would flatten these pytrees."""

    held: Mask | Bias

    def __post_init__(self) -> None:
        if any(isinstance(x, keras.KerasTensor) for x in _leaves(self.held)):
            raise TypeError(
                f"{type(self.held).__name__} holds a symbolic tensor, which Keras does not find in "
                "a mask or bias: pass it as valid_lens= or attention_mask=, or as the bias itself."
            )

    def get_config(self) -> dict[str, Any]:
        """Return the mask or bias for a saved model with this argument of a call."""
        return {"held": encode_tree(self.held)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Opaque:
        """Create the wrapper from a config of `get_config`."""
        return cls(decode_tree(config["held"]))


def _leaves(x: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors and numbers of a mask or bias; lists within themselves end."""
    if depth > MAX_RANK:
        return
    children = flatten(x)[0] if type(x) in TREES else x if isinstance(x, tuple | list) else None
    if children is None:
        yield x
    for child in children or ():
        yield from _leaves(child, depth + 1)


def unwrap(*biases: Any) -> tuple[Any, ...]:
    """Return biases of a call in the form of `anyscore.attention`."""
    return tuple(_unwrap(x) for x in biases)


def _unwrap(bias: Any) -> Any:
    if isinstance(bias, Opaque):
        return bias.held
    if bias is None or isinstance(bias, Bias):
        return bias
    return keras.ops.convert_to_tensor(bias)


def keras_mask(x: Any) -> Any:
    """Return the padding mask that Keras attached to a tensor; None without one."""
    return getattr(x, "_keras_mask", None)


def masks(
    first: Any,
    tensors: Sequence[Any],
    mask: Any,
    padding: Sequence[Any],
    attention_mask: Any,
    causal: bool,
    many: bool = False,
    by_wrapper: bool | None = None,
) -> Mask | None:
    """Return the intersection of all masks of a call; None without masks.

    Args:
        first: the first argument of the call, a tensor or a list of tensors.
        tensors: queries, keys and values.
        mask: anyscore's; or Keras's list [query mask, value mask] or
            [query mask, value mask, key mask].
        padding: masks that Keras attached to queries, keys and values. The output of a padded
            query is 0.
        attention_mask: booleans, or integers 0 and 1: (batch, T_q, T_k), (T_q, T_k), or with all
            leading dimensions.
        causal: True lets query i attend keys 0 … i alone.
        many: True if the layer splits the tensors into heads; masks without heads then get an
            axis.
        by_wrapper: for one tensor alone, whether another layer called `call`, as `TimeDistributed`
            does: its mask of tokens is Keras's. None for several tensors.

    Raises:
        TypeError, ValueError: masks of other dtypes or shapes, or one with two meanings.
    """
    of_tensors, mask = shapes(*tensors), mask.held if isinstance(mask, Opaque) else mask
    of_queries, of_keys, of_values = padding
    of_keras = mask is not None and mask is keras_mask(first)  # attached to the only tensor
    if not of_keras and by_wrapper is not None and _is_of_tokens(mask, of_tensors[0]):
        of_keras = by_wrapper
        of_pairs = *of_tensors[0][1:-1], of_tensors[1][-2]  # (T_q, T_k)
        if not of_keras and tuple(mask.shape) == of_pairs:
            raise ValueError(
                f"mask has shape {tuple(mask.shape)}, which fits (batch, tokens) and (queries, "
                "keys): pass mask=Keys(keep) for padding, or mask=keep[None] for pairs."
            )
    if of_keras:
        of_queries, mask = mask, None
        of_keys = of_queries if of_keys is None else of_keys
    if isinstance(of_queries, list | tuple):  # the masks of one list
        of_queries, of_values, of_keys = _listed(of_queries)
    if isinstance(mask, list | tuple):
        (of_queries, of_values, of_keys), mask = _listed(mask), None
    masks: list[Mask] = []
    for part in parts(mask):
        keep = part.keep if many and isinstance(part, BooleanMask) else None
        headless = keep is not None and len(getattr(keep, "shape", ())) == 3
        masks.append(BooleanMask(_with_heads(keep, "mask", of_tensors)) if headless else part)
    if attention_mask is not None:
        masks.append(BooleanMask(_as_boolean(attention_mask, of_tensors, many)))
    if of_keys is not None:
        masks.append(Keys(_padding(of_keys, "key", of_tensors[1])))
    if of_values is not None and of_values is not of_keys:
        masks.append(Keys(_padding(of_values, "value", of_tensors[2])))
    if of_queries is not None:
        keep = _padding(of_queries, "query", of_tensors[0])
        masks.append(Lengths(keras.ops.where(keep, 2**31 - 1, 0)))
    if causal:
        masks.append(Causal("start"))
    return reduce(and_, masks) if masks else None


def _is_of_tokens(mask: Any, of_tensor: Shape) -> bool:
    """Return whether a boolean mask has the shape (batch, …, tokens) of a tensor."""
    shape = None if isinstance(mask, Mask) else getattr(mask, "shape", None)
    if shape is None or len(shape) < 2 or len(shape) != len(of_tensor) - 1:
        return False
    is_boolean = keras.backend.standardize_dtype(mask.dtype) == "bool"
    pairs = zip(shape, of_tensor, strict=False)
    return is_boolean and all(n == m or n is None or m is None for n, m in pairs)


def _listed(given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return the masks of (queries, values, keys) in Keras's list."""
    if len(given) not in (2, 3):
        raise ValueError(
            "expected mask=[query mask, value mask] or [query mask, value mask, key mask], each "
            f"boolean (batch, tokens) or None; got a list of {len(given)}: for padded keys alone "
            "pass mask=[None, value mask], for padded queries alone [query mask, None]."
        )
    of_queries, of_values, *of_keys = given
    return of_queries, of_values, of_keys[0] if of_keys else None


def _padding(mask: Any, name: str, shape: Shape) -> Any:
    """Convert a padding mask of tokens (batch, tokens, width) to booleans."""
    mask = keras.ops.cast(mask, "bool")
    of_mask, lead = tuple(mask.shape), shape[:-2]
    allowed = dict.fromkeys([(*lead[:1], shape[-2]), (*lead, shape[-2])])
    if not any(_broadcasts(of_mask, full) for full in allowed):
        raise ValueError(
            f"the {name} mask has shape {of_mask}, expected (batch, tokens): "
            f"{' or '.join(map(str, allowed))}."
        )
    return mask


def _as_boolean(mask: Any, of_tensors: Sequence[Shape], many: bool) -> Any:
    """Convert Keras's attention_mask to booleans that broadcast to (*lead, T_q, T_k)."""
    mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise TypeError(
            f"attention_mask must be boolean, or integers 0 and 1, with 1 = may attend; got "
            f"{dtype}: for 0.0 and 1.0 pass attention_mask != 0, for an additive mask of 0 and "
            "−inf attention_mask == 0."
        )
    mask = keras.ops.cast(mask, "bool")
    headless = (many or max(map(len, of_tensors)) == 4) and len(mask.shape) == 3
    return _with_heads(mask, "attention_mask", of_tensors) if headless else mask


def _with_heads(mask: Any, name: str, of_tensors: Sequence[Shape]) -> Any:
    """Add an axis for heads to a mask (batch, T_q, T_k)."""
    queries, keys, _ = of_tensors
    full = queries[0], queries[-2], keys[-2]
    if not _broadcasts(tuple(mask.shape), full):
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, expected (batch, T_q, T_k): {full}; with heads "
            "(batch, heads, T_q, T_k)."
        )
    return mask[:, None]


def _broadcasts(shape: Shape, full: Shape) -> bool:
    """Check if a shape may broadcast to another of its rank; unknown sizes may."""
    pairs = zip(shape, full, strict=False)
    return len(shape) == len(full) and all(
        n == m or n in (1, None) or m in (1, None) for n, m in pairs
    )
