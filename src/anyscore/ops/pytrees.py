"""Masks, scores and prepared keys as trees of tensors, for frameworks that map over such trees.

`flatten` returns the children of a tree (tensors, numbers, lists, or such trees again) and its
structure. `unflatten` rebuilds the tree from the framework's replacements of the children.
Replacements may be tracers, axes or placeholders, so `unflatten` checks nothing.

This module imports no framework. Classes are registered with a framework once it has been imported:
when an object of a class is made, or when a call first gets the framework's tensors.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from importlib import import_module
from numbers import Real
from typing import Any, TypeAlias, TypeVar

from anyscore.ops import framework
from anyscore.ops.checks import brief

T = TypeVar("T", bound=type)
Structure: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The names of the children, and the other fields with their values; hashable."""

TREES: list[type] = []
"""The classes whose objects are trees."""
_unregistered: dict[str, list[type]] = {"torch": [], "jax": [], "flax": []}
"""The classes that each framework has not registered yet."""


class Restored:
    """Base of dataclasses that pickles and `torch.load` make without their constructors."""

    def __setstate__(self, state: Any) -> None:
        """Set the fields, and check them as the constructor does.

        Raises:
            TypeError, ValueError: a field is missing or wrong.
        """
        names: list[str] = [x.name for x in fields(self)] if is_dataclass(self) else []
        if not isinstance(state, dict) or not state.keys() >= set(names):
            expected = ", ".join(names) or "none"
            raise ValueError(
                f"the file has a {type(self).__name__} of {brief(state)}, expected the fields "
                f"{expected}: it was not saved by this version."
            )
        vars(self).update(state)
        if hasattr(self, "__post_init__"):
            self.__post_init__()


def tree(cls: T) -> T:
    """Add a class to `TREES`.

    The attribute `static` names fields that are never children, `derived` fields that are left out.
    A score has `shapes` instead, and its children are its tensors.
    """
    TREES.append(cls)
    for waiting in _unregistered.values():
        waiting.append(cls)
    return cls


def named_tuple(cls: T) -> T:
    """Register a class of named tuples with frameworks, whose exports hold it by name."""
    for waiting in _unregistered.values():
        waiting.append(cls)
    return cls


def register_pytrees() -> None:
    """Register unregistered classes with the frameworks that have been imported."""
    for name, waiting in _unregistered.items():
        if waiting and sys.modules.get(name) is not None:
            classes = waiting[:]
            waiting.clear()
            import_module(f"anyscore.ops.{name}_pytrees").register(classes)


def flatten(x: Any, numbers: bool = False) -> tuple[tuple[Any, ...], Structure]:
    """Return the children and the structure of an object of `TREES`.

    A field that is None is structure, and so is a scale of a score (`sigma`, `tau`, …) that is a
    number. With `numbers`, as in JAX, both are children. A field that must be a number is never a
    child.
    """
    children: dict[str, Any] = {}
    structure: dict[str, Any] = {}
    for name, value in vars(x).items():
        if name in getattr(type(x), "derived", ()):
            structure[name] = None  # rebuilt from the children
            continue
        (children if _is_child(type(x), name, value, numbers) else structure)[name] = value
    return tuple(children.values()), (tuple(children), tuple(structure.items()))


def _is_child(cls: Any, name: str, value: Any, numbers: bool) -> bool:
    shapes = getattr(cls, "shapes", None)
    if value is None:
        return numbers and (name not in cls.static if shapes is None else name in shapes)
    if shapes is None:
        return name not in cls.static
    if name in shapes:  # a number may be a child too
        scale = isinstance(value, Real) and shapes[name] == ()
        return not scale or (numbers and name not in cls.number_fields)
    return framework(value) is not None


def unflatten(cls: type, structure: Structure, children: Any) -> Any:
    """Return an object of `cls` from its structure and replacements of its children."""
    names, others = structure
    x: Any = object.__new__(cls)
    vars(x).update(zip(names, children, strict=True))
    vars(x).update(others)
    return x


def name_of(cls: type) -> str:
    """Return the name of a class of `TREES` in exports."""
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


def dump(structure: Structure) -> Any:
    """Return a structure as JSON; the class of a score, in prepared keys, is written by name."""
    names, others = structure
    plain = {name: [name_of(x)] if isinstance(x, type) else x for name, x in others}
    return names, plain


def load(dumped: Any) -> Structure:
    """Return the structure from a result of `dump`."""
    names, others = dumped
    classes = {name_of(cls): cls for cls in TREES}
    loaded = ((name, classes[x[0]] if isinstance(x, list) else x) for name, x in others.items())
    return tuple(names), tuple(loaded)
