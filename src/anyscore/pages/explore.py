"""The page of recorded attention weights: choose a layer, a head and an example, and look."""

from __future__ import annotations

import base64
import html
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyscore.messages import shown
from anyscore.pages.page import THEME, part, policy, write_whole
from anyscore.recording import Recording, to_numpy

LEVELS = 254
"""Weights w are kept as round(254 · √w), one byte each, so that |Δ√w| ≤ 1/508 and |Δw| ≤ 0.004."""
NOT_A_NUMBER = 255
MOST = 50_000_000
"""The most weights on a page."""

Weights = NDArray[np.float32]
Labels = list[list[str]] | None
"""Of each example, the labels of its queries or keys; None: their numbers."""


def write_explorer(
    recording: Recording | Mapping[str, Any], queries: Any, keys: Any, path: Path, title: str
) -> None:
    """Write the page; see `anyscore.plot.explore`."""
    found = _examples(recording)
    count = _count(found)
    layers = []
    for name, weights in found.items():
        rows = _labels("queries", queries, name, [w.shape[1] for w in weights])
        columns = _labels("keys", keys, name, [w.shape[2] for w in weights])
        if keys is None and rows and all(w.shape[1] == w.shape[2] for w in weights):
            columns = rows
        layers.append(
            {
                "name": _seen(name),
                "examples": [
                    {
                        "shape": w.shape,
                        "weights": base64.b64encode(_packed(name, w)).decode(),
                        "queries": rows and rows[i],
                        "keys": columns and (rows[i] if columns is rows and rows else columns[i]),
                    }
                    for i, w in enumerate(weights)
                ],
            }
        )
    style, script = f"{THEME}\n{part('explore.css')}", part("explore.js")
    data = {"levels": LEVELS, "examples": count, "layers": layers}
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    page = part("explore.html")
    filled = {
        "title": html.escape(_seen(title)),
        "policy": policy(style, script),
        "style": style,
        "script": script,
        "data": text,
    }
    pieces = page.split("@@")  # what is filled in is not looked into
    pieces[1::2] = [filled[name] for name in pieces[1::2]]
    write_whole(path, "".join(pieces).encode("utf-8", errors="replace"))


def _examples(recording: Recording | Mapping[str, Any]) -> dict[str, list[Weights]]:
    """Map layers to the weights (heads, T_q, T_k) of each example."""
    if isinstance(recording, Recording):
        found = recording.examples()
        if not found:
            raise ValueError(
                "the recording is empty: call the model inside `with record(model):`. Calls of "
                "compiled models are not recorded."
            )
    elif isinstance(recording, Mapping):
        found = {}
        for name, x in recording.items():
            array = to_numpy(x, np.float32)
            if not 2 <= array.ndim <= 4:
                raise ValueError(
                    f"{name} has shape {array.shape}, expected (examples, heads, T_q, T_k), "
                    "(heads, T_q, T_k) or (T_q, T_k)."
                )
            found[str(name)] = list(array.reshape((1,) * (4 - array.ndim) + array.shape))
        if not found:
            raise ValueError("there are no weights to explore: the mapping is empty.")
    else:
        raise TypeError(
            f"explore shows what `record` gave, or a mapping from names to weights, got "
            f"{shown(recording)}."
        )
    for name, weights in found.items():
        for w in weights:
            if not w.size:
                raise ValueError(f"{name} has weights of shape {w.shape}: nothing to show.")
    if (size := sum(w.size for weights in found.values() for w in weights)) > MOST:
        raise ValueError(
            f"there are {size:,} weights, expected at most {MOST:,} on a page: choose layers=, "
            "heads= or examples= of `record`."
        )
    return found


def _count(found: Mapping[str, list[Weights]]) -> int:
    """Return how many examples there are, as many in every layer."""
    counts = {name: len(weights) for name, weights in found.items()}
    (first, count), *_ = counts.items()
    for name, n in counts.items():
        if n != count:
            raise ValueError(
                f"layer {first!r} has {count} examples and {name!r} has {n}: record them apart, "
                "with layers=."
            )
    if not count:
        raise ValueError(f"layer {first!r} has no examples: nothing to show.")
    return count


def _labels(side: str, labels: Any, layer: str, sizes: list[int]) -> Labels:
    """Give the labels of a side in a layer, a list for each example.

    Raises TypeError, ValueError: they are no lists of texts, or not as many as there are tokens.
    """
    if isinstance(labels, Mapping):
        labels = labels.get(layer)
    if labels is None:
        return None
    labels = _listed(side, labels)
    nested = bool(labels) and not isinstance(labels[0], str)
    each = [_listed(side, x) for x in labels] if nested else [labels] * len(sizes)
    if len(each) != len(sizes):
        raise ValueError(
            f"{side} has labels of {len(each)} examples, but {len(sizes)} were recorded."
        )
    for i, (texts, size) in enumerate(zip(each, sizes, strict=True)):
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"{side} must be texts, got {shown(text)}.")
        if len(texts) != size:
            raise ValueError(
                f"{side} has {len(texts)} labels, but layer {layer!r} has {size} {side} in "
                f"example {i}. Layers with other tokens take labels of their own: "
                f"{side}={{layer: labels}}."
            )
    return [[_seen(text) for text in texts] for texts in each]


def _listed(side: str, labels: Any) -> list[Any]:
    if isinstance(labels, str | bytes) or not isinstance(labels, Sequence):
        raise TypeError(f"{side} must be a list of texts, or of such lists, got {shown(labels)}.")
    return list(labels)


def _packed(name: str, weights: Weights) -> bytes:
    """Return the weights as bytes, see `LEVELS`."""
    missing = np.isnan(weights)
    known = weights[~missing]
    if known.size and not (known.min() >= -1e-3 and known.max() <= 1 + 1e-3):
        raise ValueError(
            f"{name} has weights from {known.min():g} to {known.max():g}, expected from 0 to 1: "
            "explore shows attention weights."
        )
    levels = np.rint(LEVELS * np.sqrt(np.clip(np.where(missing, 0, weights), 0, 1)))
    return np.where(missing, NOT_A_NUMBER, levels).astype(np.uint8).tobytes()


def _seen(text: str) -> str:
    """Write the characters of a text that cannot be seen as their codes; spaces as ␣."""
    if not text or text.isspace():
        return {"": "∅", "\n": "⏎", "\t": "⇥"}.get(text, "␣" * len(text))
    return "".join(
        f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") else c
        for c in text
    )
