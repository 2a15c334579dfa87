"""The layers of a model that a user chooses: by numbers, names, or parts of the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def choose_layers(names: Iterable[str], layers: Any) -> list[str]:
    """Choose among the names of layers.

    layers: numbers, names, or the beginning of names up to a dot, one or several; None = all.

    Raises TypeError, ValueError, IndexError: what names no layer.

    >>> choose_layers(["encoder.0", "encoder.1", "decoder.0"], ["decoder", 0])
    ['encoder.0', 'decoder.0']
    """
    names = list(names)
    if layers is None:
        return names
    if isinstance(layers, str | int):
        layers = [layers]
    chosen: set[str] = set()
    for x in layers:
        if isinstance(x, bool) or not isinstance(x, str | int):
            raise TypeError(f"layers must be numbers or names of attention layers, got {x!r}.")
        if isinstance(x, int):
            if not -len(names) <= x < len(names):
                raise IndexError(f"layer {x}: the model has {len(names)} attention layers.")
            chosen.add(names[x])
            continue
        inside = [name for name in names if name == x or name.startswith(f"{x}.")]
        if not inside:
            raise ValueError(f"no attention layer {x!r}: the model has {', '.join(names)}.")
        chosen.update(inside)
    return [name for name in names if name in chosen]
