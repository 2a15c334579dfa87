"""Masks, scores and prepared keys as pytrees of JAX: arguments of its transformations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from jax import export
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from anyscore.ops.pytrees import Structure, dump, flatten, load, name_of, unflatten


def register(classes: Iterable[type]) -> None:
    """Register classes as pytrees, also for exported programs."""
    for cls in classes:
        if issubclass(cls, tuple):
            export.register_namedtuple_serialization(cls, serialized_name=name_of(cls))
            continue
        register_pytree_with_keys(cls, _flatten, partial(unflatten, cls))
        with suppress(ValueError):  # in a notebook the first class of a name alone is exported
            export.register_pytree_node_serialization(
                cls,
                serialized_name=name_of(cls),
                serialize_auxdata=lambda structure: json.dumps(dump(structure)).encode(),
                deserialize_auxdata=lambda text: load(json.loads(text)),
            )


def _flatten(x: Any) -> tuple[list[tuple[Any, Any]], Structure]:
    """Flatten x; numbers are leaves, as everywhere in JAX, and a list of numbers is one array."""
    children, structure = flatten(x, numbers=True)
    arrays = [np.asarray(child) if isinstance(child, list) else child for child in children]
    return [*zip(map(GetAttrKey, structure[0]), arrays, strict=True)], structure
