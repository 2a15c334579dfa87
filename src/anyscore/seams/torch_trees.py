"""Masks, prepared keys and scores as trees of PyTorch: arguments of vmap, grad and exports."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from anyscore.trees import Structure, flatten, unflatten

_CLASSES: dict[str, type] = {}


def _flatten(x: Any) -> tuple[list[Any], Structure]:
    """A list, as which `dynamic_shapes` are given for the children."""
    children, structure = flatten(x)
    return list(children), structure


def _unflatten(cls: type, children: Any, structure: Structure) -> Any:
    return unflatten(cls, structure, children)


def _flatten_with_keys(x: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    children, structure = flatten(x)
    keys = map(pytree.GetAttrKey, structure[0])
    return list(zip(keys, children, strict=True)), structure


def _dump(structure: Structure) -> Any:
    """Make the structure JSON; a class, that of the score of prepared keys, is written by name."""
    names, others = structure
    return names, {name: [x.__name__] if isinstance(x, type) else x for name, x in others}


def _load(dumped: Any) -> Structure:
    names, others = dumped
    loaded = ((name, _CLASSES[x[0]] if isinstance(x, list) else x) for name, x in others.items())
    return tuple(names), tuple(loaded)


def register(classes: Iterable[type]) -> None:
    """Make classes trees, which exported programs and their example arguments may hold."""
    for cls in classes:
        name = cls.__name__ if cls.__module__.startswith("anyscore.") else cls.__qualname__
        _CLASSES[name] = cls
        pytree.register_pytree_node(
            cls,
            _flatten,
            partial(_unflatten, cls),
            serialized_type_name=f"{cls.__module__.partition('.')[0]}.{name}",
            to_dumpable_context=_dump,
            from_dumpable_context=_load,
            flatten_with_keys_fn=_flatten_with_keys,
        )
    torch.serialization.add_safe_globals([*classes])
