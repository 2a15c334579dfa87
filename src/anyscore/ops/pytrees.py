"""Masks, scores and prepared keys as trees of tensors, for frameworks that map over such trees.

`flatten` takes a tree apart into its children (tensors, numbers, lists, or such trees again) and
its structure; `unflatten` puts it together of what the framework gives in place of the children:
tensors, but also tracers, axes or placeholders, so nothing is checked again.

Nothing here imports a framework. Our classes are registered with a framework once it has been
imported: when an object of theirs is made, or when a call first meets its tensors.
"""

from __future__ import annotations

import sys
from importlib import import_module
from numbers import Real
from typing import Any, TypeAlias, TypeVar

from anyscore.ops import framework

T = TypeVar("T", bound=type)
Structure: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The names of the children, and the other fields with their values; can be hashed."""

TREES: list[type] = []
"""The classes whose objects are trees."""
_unregistered: dict[str, list[type]] = {"torch": [], "jax": [], "flax": []}
"""The classes that are not registered with a framework yet."""


def tree(cls: T) -> T:
    """Make a class one of `TREES`.

    Its attribute `static` names fields that are never children, `derived` those that are left out;
    of a score, which has `shapes` instead, the children are its tensors.
    """
    TREES.append(cls)
    for waiting in _unregistered.values():
        waiting.append(cls)
    return cls


def named_tuple(cls: T) -> T:
    """Make a class of named tuples known to frameworks, whose exports hold it by name."""
    for waiting in _unregistered.values():
        waiting.append(cls)
    return cls


def register_pytrees() -> None:
    """Register the classes with the frameworks that have been imported, where they are not."""
    for name, waiting in _unregistered.items():
        if waiting and sys.modules.get(name) is not None:
            classes = waiting[:]
            waiting.clear()
            import_module(f"anyscore.ops.{name}_pytrees").register(classes)


def flatten(x: Any, numbers: bool = False) -> tuple[tuple[Any, ...], Structure]:
    """Take an object of `TREES` apart: its children, and its structure.

    A field that is None is structure, and so is a scale of a score (`sigma`, `tau`, …) that is a
    number, unless numbers and None are children, as in JAX; a field that must be a number never is.
    """
    children: dict[str, Any] = {}
    structure: dict[str, Any] = {}
    for name, value in vars(x).items():
        if name in getattr(type(x), "derived", ()):
            structure[name] = None  # made again of the children
            continue
        (children if _is_child(type(x), name, value, numbers) else structure)[name] = value
    return tuple(children.values()), (tuple(children), tuple(structure.items()))


def _is_child(cls: Any, name: str, value: Any, numbers: bool) -> bool:
    shapes = getattr(cls, "shapes", None)
    if value is None:
        return numbers and (name not in cls.static if shapes is None else name in shapes)
    if shapes is None:
        return name not in cls.static
    if name in shapes:  # a number there may also stand for a child
        scale = isinstance(value, Real) and shapes[name] == ()
        return not scale or (numbers and name not in cls.number_fields)
    return framework(value) is not None


def unflatten(cls: type, structure: Structure, children: Any) -> Any:
    """Make an object of `cls` of its structure and of what stands for its children."""
    names, others = structure
    x: Any = object.__new__(cls)
    vars(x).update(zip(names, children, strict=True))
    vars(x).update(others)
    return x


def name_of(cls: type) -> str:
    """Name a class of `TREES` for exports."""
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def dump(structure: Structure) -> Any:
    """Make a structure JSON; a class, that of the score of prepared keys, is written by name."""
    names, others = structure
    plain = {name: [name_of(x)] if isinstance(x, type) else x for name, x in others}
    return names, plain


def load(dumped: Any) -> Structure:
    """Make the structure again of what `dump` gave."""
    names, others = dumped
    classes = {name_of(cls): cls for cls in TREES}
    loaded = ((name, classes[x[0]] if isinstance(x, list) else x) for name, x in others.items())
    return tuple(names), tuple(loaded)
