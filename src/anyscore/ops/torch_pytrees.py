"""Masks, prepared keys and scores as trees of PyTorch: arguments of vmap, grad and exports."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from anyscore.ops.pytrees import Structure, dump, flatten, load, name_of, unflatten


def _flatten(x: Any) -> tuple[list[Any], Structure]:
    """Return the children as a list, the type of `dynamic_shapes`, and the structure."""
    children, structure = flatten(x)
    return list(children), structure


def _unflatten(cls: type, children: Any, structure: Structure) -> Any:
    return unflatten(cls, structure, children)


def _flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    children, structure = flatten(x)
    keys = map(pytree.GetAttrKey, structure[0])
    return list(zip(keys, children, strict=True)), structure


def register(classes: Iterable[type]) -> None:
    """Register classes as trees, also for exported programs and their example arguments."""
    for cls in classes:
        if issubclass(cls, tuple):
            pytree._register_namedtuple(cls, serialized_type_name=name_of(cls))
            continue
        pytree.register_pytree_node(
            cls,
            _flatten,
            partial(_unflatten, cls),
            serialized_type_name=name_of(cls),
            to_dumpable_context=dump,
            from_dumpable_context=load,
            flatten_with_keys_fn=_flatten_with_keys,
        )
    torch.serialization.add_safe_globals([*classes])
