"""Masks, scores and prepared keys in files of Flax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from flax import serialization

from anyscore.ops.pytrees import flatten, unflatten


def register(classes: Iterable[type]) -> None:
    """Register classes with `flax.serialization`, which handles named tuples itself."""
    for cls in classes:
        if not issubclass(cls, tuple):
            serialization.register_serialization_state(  # type: ignore[no-untyped-call]
                cls, _state, partial(_restored, cls)
            )


def _state(x: Any) -> dict[str, Any]:
    children, (names, _) = flatten(x, numbers=True)
    return dict(zip(names, map(serialization.to_state_dict, children), strict=True))


def _restored(cls: type, target: Any, state: Mapping[str, Any]) -> Any:
    """Return the target with the children of a state, and its own structure."""
    children, structure = flatten(target, numbers=True)
    names = structure[0]
    if set(names) != set(state):
        raise ValueError(
            f"the file has {', '.join(state) or 'no fields'} of a {cls.__name__}, expected "
            f"{', '.join(names) or 'none'}, as in the object that it is loaded into."
        )
    fields = zip(names, children, strict=True)
    restored = [serialization.from_state_dict(x, state[name], name=name) for name, x in fields]
    return unflatten(cls, structure, restored)
