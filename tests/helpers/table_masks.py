"""The masks of the table by shape, and the rule of each class of masks.

A new mask of the package has a row in `MASKS` and one in `RULES`. A mask that is no object is an
array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyscore import Causal, Interval, Keys, Lengths, Sequences, Window
from helpers.table_shapes import Lead, Shape

ToArray = Callable[[Any], Any]
Rule = Callable[[Any, Any], Any]
"""(mask, `oracle.Entry`) → whether the query may attend the key."""


@dataclass(frozen=True)
class MaskCase:
    """make: (shape, generator, array) → `mask=`; array makes tensors. rank: least leading rank.

    as_lengths: whether the call has the mask as `valid_lens=` instead.
    """

    make: Callable[[Shape, np.random.Generator, ToArray], Any]
    rank: int = 0
    as_lengths: bool = False


def _ints(rng: np.random.Generator, shape: Lead, keys: int) -> np.ndarray:
    """Return lengths with 0, all, too many and negative ones, if the shape has enough entries."""
    x = rng.integers(0, keys + 1, shape)
    special = np.array([0, keys + 3, -2])[: x.size // 3 + 1]
    x.reshape(-1)[: min(len(special), x.size)] = special[: x.size]
    return x


def _floats(rng: np.random.Generator, shape: Lead, keys: int) -> np.ndarray:
    x = rng.uniform(-1.0, keys + 1.0, shape).round().astype(np.float32)
    special = np.array([-np.inf, np.inf, -2.0, 1.0, keys + 3.0], dtype=np.float32)
    special = special[: (x.size + 1) // 2]
    x.reshape(-1)[: min(len(special), x.size)] = special[: x.size]
    return x


def _booleans(rng: np.random.Generator, shape: Lead) -> np.ndarray:
    return rng.random(shape) < 0.6


def _ends(shape: Shape, rng: np.random.Generator, array: ToArray) -> Interval:
    start = rng.integers(-1, shape.keys + 1, (*shape.lead, shape.queries))
    return Interval(array(start), array(start + rng.integers(0, 5, start.shape)))


def _packed(shape: Shape, rng: np.random.Generator, array: ToArray) -> Sequences:
    """Return four sequences; the second has no queries, the third no keys."""
    q, k = shape.queries, shape.keys
    queries, keys = (
        [0, 2 * q // 5, 2 * q // 5, 4 * q // 5, q],
        [0, 3 * k // 7, 5 * k // 7, 5 * k // 7, k],
    )
    return Sequences(array(np.array(queries)), array(np.array(keys)))


MASKS = {
    "none": MaskCase(lambda s, rng, array: None),
    "length": MaskCase(lambda s, rng, array: Lengths(min(3, s.keys))),
    "length_0": MaskCase(lambda s, rng, array: Lengths(0)),
    "lengths": MaskCase(lambda s, rng, array: Lengths(array(_ints(rng, s.lead[:1], s.keys))), 1),
    "lengths_list": MaskCase(
        lambda s, rng, array: _ints(rng, s.lead[:1], s.keys).tolist(), 1, True
    ),
    "lengths_floats": MaskCase(
        lambda s, rng, array: array(_floats(rng, s.lead[:1], s.keys)), 1, True
    ),
    "lengths_bytes": MaskCase(
        lambda s, rng, array: array(np.resize(np.uint8([3, 200, 0]), s.lead[:1])), 1, True
    ),
    "lengths_queries": MaskCase(
        lambda s, rng, array: Lengths(array(_ints(rng, (*s.lead[:1], s.queries), s.keys)))
    ),
    "lengths_full": MaskCase(
        lambda s, rng, array: array(_floats(rng, (*s.lead, s.queries), s.keys)), 0, True
    ),
    "lengths_heads": MaskCase(
        lambda s, rng, array: Lengths(array(_ints(rng, (1, *s.lead[1:], 1), s.keys))), 2
    ),
    "keys": MaskCase(lambda s, rng, array: Keys(array(_booleans(rng, (*s.lead[:1], s.keys))))),
    "keys_shared": MaskCase(lambda s, rng, array: Keys(array(_booleans(rng, (s.keys,))))),
    "keys_full": MaskCase(lambda s, rng, array: Keys(array(_booleans(rng, (*s.lead, s.keys))))),
    "causal_start": MaskCase(lambda s, rng, array: Causal("start")),
    "causal_end": MaskCase(lambda s, rng, array: Causal(align="end")),
    "causal_offset": MaskCase(lambda s, rng, array: Causal(offset=1)),
    "causal_offset_back": MaskCase(lambda s, rng, array: Causal("end", offset=-2)),
    "causal_offsets": MaskCase(
        lambda s, rng, array: Causal(offset=array(rng.integers(-3, s.keys + 2, s.lead[:1]))), 1
    ),
    "window": MaskCase(lambda s, rng, array: Window(1, 2, align="start")),
    "window_end": MaskCase(lambda s, rng, array: Window(2, 0, align="end")),
    "window_left": MaskCase(lambda s, rng, array: Window(1, None, align="start")),
    "window_right": MaskCase(lambda s, rng, array: Window(None, 1, offset=array(np.array(2)))),
    "interval": MaskCase(_ends),
    "interval_start": MaskCase(
        lambda s, rng, array: Interval(array(np.resize([np.inf, 2.0, -1.0], s.lead[:1])), None), 1
    ),
    "interval_stop": MaskCase(lambda s, rng, array: Interval(stop=2)),
    "sequences": MaskCase(_packed),
    "boolean": MaskCase(lambda s, rng, array: array(_booleans(rng, (s.queries, s.keys)))),
    "boolean_full": MaskCase(
        lambda s, rng, array: array(_booleans(rng, (*s.lead, s.queries, s.keys)))
    ),
    "boolean_keys": MaskCase(
        lambda s, rng, array: array(_booleans(rng, (*s.lead[:-1], 1, 1, s.keys))), 1
    ),
    "boolean_queries": MaskCase(lambda s, rng, array: array(_booleans(rng, (s.queries, 1)))),
    "boolean_heads": MaskCase(
        lambda s, rng, array: array(_booleans(rng, (*s.lead[-1:], s.queries, 1)))
    ),
    "nothing": MaskCase(lambda s, rng, array: array(np.zeros((1, 1), dtype=bool))),
    "causal_and_lengths": MaskCase(
        lambda s, rng, array: Causal("end") & Lengths(array(_ints(rng, s.lead[:1], s.keys))), 1
    ),
    "window_and_array": MaskCase(
        lambda s, rng, array: Window(3, 1, "start") & array(_booleans(rng, (s.queries, s.keys)))
    ),
    "array_and_interval": MaskCase(
        lambda s, rng, array: array(_booleans(rng, (1, s.keys))) & _ends(s, rng, array)
    ),
    "four": MaskCase(
        lambda s, rng, array: (
            Keys(array(_booleans(rng, (*s.lead[:1], s.keys))))
            & Interval(1, None)
            & Causal("end", offset=1)
            & Window(4, None, "start")
        )
    ),
}


def _in_window(mask: Any, entry: Any, left: int | None, right: int | None) -> bool:
    position = entry.i + (entry.keys - entry.queries if mask.align == "end" else 0)
    position += 0 if mask.offset is None else int(entry.number(mask.offset))
    before, after = position - entry.j, entry.j - position
    return (left is None or before <= left) and (right is None or after <= right)


def _in_interval(mask: Any, entry: Any) -> bool:
    after = mask.start is None or entry.j >= entry.number(mask.start)
    return after and (mask.stop is None or entry.j < entry.number(mask.stop))


def _in_sequence(mask: Any, entry: Any) -> bool:
    of_query, of_key = (np.asarray(x).tolist() for x in (mask.cu_seqlens_q, mask.cu_seqlens_k))
    return any(
        of_query[s] <= entry.i < of_query[s + 1] and of_key[s] <= entry.j < of_key[s + 1]
        for s in range(len(of_query) - 1)
    )


RULES: dict[str, Rule] = {
    "Lengths": lambda mask, entry: entry.j < entry.number(mask.n),
    "Interval": _in_interval,
    "Keys": lambda mask, entry: entry.flag(mask.keep),
    "Window": lambda mask, entry: _in_window(mask, entry, mask.left, mask.right),
    "Causal": lambda mask, entry: _in_window(mask, entry, None, 0),
    "Sequences": _in_sequence,
}
"""Class name → rule from the documentation: whether a query attends a key."""
