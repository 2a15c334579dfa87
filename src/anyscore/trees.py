"""Masks, prepared keys and scores as trees of tensors, for frameworks that map over such trees.

`flatten` takes one apart into its children (tensors, numbers, lists, or such trees again) and what
is structure; `unflatten` puts together what the framework puts in the place of the children:
tensors, but also tracers, axes or placeholders, so nothing is checked again.
"""

from __future__ import annotations

from dataclasses import fields
from numbers import Real
from typing import Any, TypeAlias

from anyscore.cache import PreparedKeys
from anyscore.layers import SCORES
from anyscore.masks import All, Causal, Interval, Keep, Keys, Lengths, Window

Structure: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The names of the children, and the other fields with their values; can be hashed."""

TREES: tuple[type, ...] = (
    All, Causal, Interval, Keep, Keys, Lengths, Window, PreparedKeys, *SCORES.values(),
)  # fmt: skip
"""The classes whose objects are trees."""

_STRUCTURE = {"align", "left", "right", "score"}
"""Fields that are never children: they say what to compute, and hold no tensors."""


def flatten(x: Any) -> tuple[tuple[Any, ...], Structure]:
    """Take an object of `TREES` apart: its children, and its structure.

    What is None is structure, and so is a scale of a score (`sigma`, `tau`, …) that is a number.
    """
    children: dict[str, Any] = {}
    structure: dict[str, Any] = {}
    for field in fields(x):
        value = getattr(x, field.name)
        is_number = isinstance(value, Real) and getattr(type(x), "shapes", {}).get(field.name) == ()
        if value is None or is_number or field.name in _STRUCTURE:
            structure[field.name] = value
        else:
            children[field.name] = value
    return tuple(children.values()), (tuple(children), tuple(structure.items()))


def unflatten(cls: type, structure: Structure, children: Any) -> Any:
    """Make an object of `cls` of its structure and of what stands for its children."""
    names, others = structure
    made: Any = object.__new__(cls)
    vars(made).update(zip(names, children, strict=True))
    vars(made).update(others)
    return made
