"""Jagged nested tensors of PyTorch as packed sequences, and results as nested tensors."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyscore.call.backend import Adapter
from anyscore.masks.sequences import Sequences


def sequences(query: Any, key: Any, value: Any) -> Sequences:
    """Return the sequences of nested tensors.

    Raises:
        TypeError, ValueError: a tensor is not nested, or not packed; sequences differ.
    """
    tensors: dict[str, Any] = {"query": query, "key": key, "value": value}
    _check_all_nested(tensors)
    for name, x in tensors.items():
        if x.layout != torch.jagged:
            raise TypeError(
                f"{name} is a nested tensor of the strided layout: make it with "
                "layout=torch.jagged."
            )
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


def _check_all_nested(tensors: dict[str, Any]) -> None:
    nested = [name for name, x in tensors.items() if is_nested(x)]
    for name, x in tensors.items():
        if name not in nested:
            what = "dense" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise TypeError(
                f"{nested[0]} is a nested tensor but {name} is {what}: pass all of them nested "
                "(layout=torch.jagged), or all padded, by torch.nested.to_padded_tensor(x, 0.0), "
                "with the lengths as valid_lens=."
            )


def tokens_of(names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return queries, keys and values of a layer's call, by the names of its first arguments.

    Omitted keys are the queries, and omitted values the keys.
    """
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = (*(given.get(name) for name in names), None, None, None)[:3]
    key = query if key is None else key
    return query, key, key if value is None else value


def is_nested(x: Any) -> bool:
    """Return whether x is a nested tensor."""
    return isinstance(x, Tensor) and x.is_nested


def call_packed(
    layer: Callable[..., Any],
    tokens: tuple[Any, Any, Any],
    mask: Sequences,
    args: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Return a layer's results for nested tensors, called with packed tokens in a batch of one."""
    query, key, _ = tokens
    kwargs = {name: _batch(x) for name, x in kwargs.items()}
    kwargs["mask"] = mask if kwargs.get("mask") is None else mask & kwargs["mask"]
    output = layer(*map(_batch, args), **kwargs)
    if isinstance(output, tuple):
        output, weights = output
        weights = None if weights is None else _pad_pairs(weights[0], query, key, 0.0)
        return _nest(output[0], query, 1), weights
    return _nest(output[0], query, 1)


def _batch(x: Any) -> Any:
    """Return the packed tokens of a nested tensor with a batch axis; any other x unchanged."""
    return x.values()[None] if is_nested(x) else x


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same lengths."""
    one, other = one.offsets(), other.offsets()
    return one is other or (not torch.compiler.is_compiling() and torch.equal(one, other))


class NestedAdapter(Adapter):
    """Packs tokens of jagged nested tensors, and returns results nested as the queries.

    (B, j, d) becomes (T, d), and (B, heads, j, d) becomes (1, heads, T, d).
    """

    def __init__(self, query: Any, key: Any, value: Any) -> None:
        self.sequences, self.tensors = sequences(query, key, value), (query, key, value)

    def take(self, tensors: tuple[Any, ...], score: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple(map(self._tokens, tensors)), score

    def _tokens(self, x: Any) -> Any:
        if not any(x is y for y in self.tensors):
            return x
        return x.values() if x.dim() == 3 else x.values()[None]

    def give(self, x: Tensor, own: int = 1) -> Tensor:
        return _nest(self._without_batch(x), self.tensors[0], own)

    def give_pairs(self, x: Tensor, otherwise: float) -> Tensor:
        return _pad_pairs(self._without_batch(x), *self.tensors[:2], otherwise)

    def _without_batch(self, x: Tensor) -> Tensor:
        return x if self.tensors[0].dim() == 3 else x[0]


def _nest(values: Tensor, like: Any, own: int) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(
        values, like.offsets(), jagged_dim=values.dim() - own
    )


def _pad_pairs(x: Tensor, query: Any, key: Any, otherwise: float) -> Tensor:
    """Return x (..., T_q, T_k) of packed tokens as dense (B, ..., longest query, longest key)."""
    rows, columns = (y.offsets().tolist() for y in (query, key))
    most = [max((b - a for a, b in pairwise(y)), default=0) for y in (rows, columns)]
    found = []
    for (top, bottom), (left, right) in zip(pairwise(rows), pairwise(columns), strict=True):
        rest = most[1] - (right - left), most[0] - (bottom - top)
        part = x[..., top:bottom, left:right]
        found.append(F.pad(part, (0, rest[0], 0, rest[1]), value=otherwise))
    return torch.stack(found)
