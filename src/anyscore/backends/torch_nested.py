"""Jagged nested tensors of PyTorch: packed sequences, and results made nested again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyscore.sequences import Sequences


def sequences(query: Any, key: Any, value: Any) -> Sequences | None:
    """Return the sequences of nested tensors; None where one of them is not jagged.

    Raises TypeError, ValueError: they are not packed, or of other sequences than each other.
    """
    tensors: dict[str, Any] = {"query": query, "key": key, "value": value}
    if any(not x.is_nested or x.layout != torch.jagged for x in tensors.values()):
        return None
    for name, x in tensors.items():
        if x.lengths() is not None:
            raise TypeError(f"{name} is a nested tensor with holes: pass x.contiguous().")
        if x.dim() not in (3, 4) or x._ragged_idx != x.dim() - 2:
            got = ", ".join("j" if i == x._ragged_idx else str(n) for i, n in enumerate(x.shape))
            raise ValueError(
                f"{name} is a nested tensor of shape ({got}), expected (B, j, d) or (B, heads, j, "
                "d): of a tensor (B, j, heads, d) pass x.transpose(1, 2)."
            )
    counts = {name: x.size(0) for name, x in tensors.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"nested tensors hold other numbers of sequences: {counts}.")
    if not _is_same(key, value):
        raise ValueError(
            "key and value are nested tensors of other lengths: make one with the offsets of the "
            "other, as torch.nested.nested_tensor_from_jagged(x, key.offsets())."
        )
    return Sequences(query.offsets(), None if _is_same(query, key) else key.offsets())


def call_packed(layer: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a layer of nested queries, keys and values by their packed tokens, in a batch of one."""
    given = *args, *(kwargs.get(name) for name in ("x", "queries", "keys", "values"))
    tensors = [x for x in given if isinstance(x, Tensor) and x.is_nested]
    query, key, value = (*tensors, *tensors[-1:] * 2)[:3]
    mask = sequences(query, key, value)
    if mask is None:  # the layer says what it does not take
        return layer(*args, **kwargs)
    kwargs = {name: _batch(x) for name, x in kwargs.items()}
    kwargs["mask"] = mask if kwargs.get("mask") is None else mask & kwargs["mask"]
    output = layer(*map(_batch, args), **kwargs)
    if isinstance(output, tuple):
        output, weights = output
        weights = None if weights is None else _pad_pairs(weights[0], query, key, 0.0)
        return _nest(output[0], query, 1), weights
    return _nest(output[0], query, 1)


def _batch(x: Any) -> Any:
    """Give the packed tokens of a nested tensor with an axis before; anything else as it is."""
    return x.values()[None] if isinstance(x, Tensor) and x.is_nested else x


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same lengths."""
    one, other = one.offsets(), other.offsets()
    return one is other or (not torch.compiler.is_compiling() and torch.equal(one, other))


def pack(query: Any, key: Any, value: Any) -> tuple[tuple[Any, ...], Sequences | None]:
    """Give packed tokens (T, d) of (B, j, d), or (1, heads, T, d) of (B, heads, j, d)."""
    tensors = query, key, value
    found = sequences(*tensors)
    if found is None:
        return tensors, None
    return tuple(x.values() if x.dim() == 3 else x.values()[None] for x in tensors), found


def nest(x: Tensor, like: Any, own: int = 1) -> Tensor:
    """Give x, (…, T) of packed queries and `own` axes after, as a tensor nested as they are."""
    return _nest(x if like.dim() == 3 else x[0], like, own)


def _nest(values: Tensor, like: Any, own: int) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(
        values, like.offsets(), jagged_dim=values.dim() - own
    )


def pad_pairs(x: Tensor, query: Any, key: Any, otherwise: float) -> Tensor:
    """Give x (…, T_q, T_k) of packed tokens as (B, …, longest query, longest key), dense."""
    return _pad_pairs(x if query.dim() == 3 else x[0], query, key, otherwise)


def _pad_pairs(x: Tensor, query: Any, key: Any, otherwise: float) -> Tensor:
    rows, columns = (y.offsets().tolist() for y in (query, key))
    most = [max((b - a for a, b in pairwise(y)), default=0) for y in (rows, columns)]
    found = []
    for (top, bottom), (left, right) in zip(pairwise(rows), pairwise(columns), strict=True):
        rest = most[1] - (right - left), most[0] - (bottom - top)
        part = x[..., top:bottom, left:right]
        found.append(F.pad(part, (0, rest[0], 0, rest[1]), value=otherwise))
    return torch.stack(found)
