"""Masks, scores and prepared keys as pytrees of JAX: arguments of its transformations.

Nothing here imports JAX. It is told of our classes once it has been imported: when one of their
objects is made, or when our files for JAX are loaded.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T", bound=type)
_untold: list[type] = []


def pytree(cls: T) -> T:
    """Make a class a pytree, whose method `leaves` names the attributes that have leaves."""
    _untold.append(cls)
    return cls


def tell_jax() -> None:
    """Register what was not registered yet, where JAX has been imported."""
    if _untold and "jax" in sys.modules:
        while _untold:
            _register(_untold.pop())


def _register(cls: Any) -> None:
    import numpy as np
    from jax.tree_util import GetAttrKey, register_pytree_with_keys

    def flatten(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
        children, rest, of_leaves = [], [], x.leaves()
        for name, value in vars(x).items():
            if name not in of_leaves:
                rest.append((name, value))
                continue
            if isinstance(value, list):  # numbers, which are one array
                value = np.asarray(value)
            children.append((GetAttrKey(name), value))
        return children, (tuple(key.name for key, _ in children), tuple(rest))

    def unflatten(told: Any, children: Any) -> Any:
        """Not checked: JAX makes pytrees of anything, to say something about each leaf."""
        made, (names, rest) = object.__new__(cls), told
        for name, value in (*zip(names, children, strict=True), *rest):
            object.__setattr__(made, name, value)
        return made

    with suppress(ValueError):  # whose it is has done so
        register_pytree_with_keys(cls, flatten, unflatten)
