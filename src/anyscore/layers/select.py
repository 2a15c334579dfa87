"""Choose layers of a model by numbers, names, or parts of the model."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from anyscore.ops.checks import brief


def choose_layers(names: Iterable[str], layers: Any) -> list[str]:
    """Return the chosen names of layers, in the order of `names`.

    layers: a number, a name, or the beginning of names up to a dot; or several of these; None: all.

    Raises:
        TypeError, ValueError, IndexError: neither names nor numbers; no such layer; an empty
            choice.

    >>> choose_layers(["encoder.0", "encoder.1", "decoder.0"], ["decoder", 0])
    ['encoder.0', 'decoder.0']
    """
    names = list(names)
    if layers is None:
        return names
    wanted = [layers] if isinstance(layers, str | Integral) else layers
    if not isinstance(wanted, Iterable):
        raise TypeError(
            f"layers must be numbers or names of attention layers, got {brief(layers)}."
        )
    chosen: set[str] = set()
    for x in wanted:
        if isinstance(x, bool) or not isinstance(x, str | Integral):
            raise TypeError(f"layers must be numbers or names of attention layers, got {x!r}.")
        if isinstance(x, Integral):
            i = int(x)
            if not -len(names) <= i < len(names):
                raise IndexError(
                    f"layer {i}: the model has {len(names)} attention layers, expected an integer "
                    f"from {-len(names)} to {len(names) - 1}."
                )
            chosen.add(names[i])
            continue
        inside = [name for name in names if name == x or name.startswith(f"{x}.")]
        if not inside:
            raise ValueError(f"no attention layer {x!r}: the model has {', '.join(names)}.")
        chosen.update(inside)
    if not chosen:
        raise ValueError("layers is empty: leave it out for all layers.")
    return [name for name in names if name in chosen]
