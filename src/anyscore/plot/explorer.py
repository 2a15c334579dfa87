"""Write a page that shows recorded attention weights of any layer, head and example."""

from __future__ import annotations

import base64
import html
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anyscore.ops.checks import brief
from anyscore.plot.page import as_data, document, joined_modules, part, write_whole
from anyscore.plot.recording import Recording, to_numpy

LEVELS = 254
"""Weights w are kept as round(254 · √w), one byte each, so that |Δ√w| ≤ 1/508 and |Δw| ≤ 0.004."""
NOT_A_NUMBER = 255
MOST = 50_000_000
"""The most weights on a page."""

UNSEEN = "Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"
"""Unicode categories of invisible characters."""
JOINERS = "\u200c\u200d"
"""Characters of these categories that change the shapes of neighbouring characters."""

Weights = NDArray[np.float32]
Labels = list[list[str]] | None
"""For each example, the labels of its queries or keys; None: tokens are numbered."""


def write_explorer(
    recording: Recording | Mapping[str, Any], queries: Any, keys: Any, path: Path, title: str
) -> None:
    """Write the page; see `anyscore.plot.explore`."""
    found = _examples(recording)
    if not isinstance(title, str):
        raise TypeError(f"title must be a text, got {brief(title)}.")
    count = _count(found)
    chosen = recording.chosen if isinstance(recording, Recording) else {}
    known = recording.layers if isinstance(recording, Recording) else list(found)
    for side, labels in (("queries", queries), ("keys", keys)):
        _check_names(side, labels, known)
    layers = []
    for name, weights in found.items():
        rows = _labels("queries", queries, name, [w.shape[1] for w in weights])
        columns = _labels("keys", keys, name, [w.shape[2] for w in weights])
        if keys is None and rows and all(w.shape[1] == w.shape[2] for w in weights):
            columns = rows
        layers.append(
            {
                "name": _seen(name),
                "heads": _numbers(chosen.get("heads"), len(weights[0])),
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
    examples = _numbers(chosen.get("examples"), _of_first_run(recording, count))
    data = {"levels": LEVELS, "examples": count, "numbers": examples, "layers": layers}
    title = html.escape(_seen(title))
    filled = {"title": title, "data": as_data(data)}
    pieces = part("explorer.html").split("@@")  # split first: inserted texts may hold @@
    pieces[1::2] = [filled[name] for name in pieces[1::2]]
    style, script = part("explorer.css"), joined_modules("plot/explorer.js")
    page = document(title, "".join(pieces), style=style, script=script)
    write_whole(path, page)


def _examples(recording: Recording | Mapping[str, Any]) -> dict[str, list[Weights]]:
    """Map layers to the weights (heads, T_q, T_k) of each example."""
    if isinstance(recording, Recording):
        found = recording.examples()
        if not found:
            raise ValueError(
                "the recording is empty: call the model inside `with record(model):`. Calls of "
                "compiled models are not recorded, nor is `cache.attend`, which is no layer's."
            )
    elif isinstance(recording, Mapping):
        found = {}
        for name, x in recording.items():
            try:
                array = to_numpy(x, np.float32)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"{name} is {brief(x)}, expected an array of weights (…, T_q, T_k): {error}."
                ) from error
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
            f"{brief(recording)}."
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
    """Return the number of examples, which must be the same in every layer."""
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


def _numbers(chosen: Any, count: int) -> list[int] | None:
    """Return the indices of `count` chosen entries, < 0 if counted from the end; None: all."""
    if not isinstance(chosen, slice):
        return chosen  # type: ignore[no-any-return]
    step = chosen.step or 1
    first = (0 if step > 0 else -1) if chosen.start is None else chosen.start
    return [first + step * i for i in range(count)]


def _of_first_run(recording: Recording | Mapping[str, Any], count: int) -> int:
    """Return the number of examples of the first call; `count` if there is no recording."""
    return recording.calls[0][1].shape[0] if isinstance(recording, Recording) else count


def _check_names(side: str, labels: Any, layers: Sequence[str]) -> None:
    """Check that a mapping of labels names recorded layers alone.

    Raises:
        ValueError: a layer of the mapping was not recorded.
    """
    for name in labels if isinstance(labels, Mapping) else ():
        if name not in layers:
            raise ValueError(
                f"{side} has labels of {brief(name)}, expected of {', '.join(map(repr, layers))}."
            )


def _labels(side: str, labels: Any, layer: str, sizes: list[int]) -> Labels:
    """Return the labels of a side in a layer, a list for each example; None without labels.

    Raises:
        TypeError, ValueError: labels are no lists of texts, or not one for each token.
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
                raise TypeError(f"{side} must be texts, got {brief(text)}.")
        if len(texts) != size:
            raise ValueError(
                f"{side} has {len(texts)} labels, but layer {layer!r} has {size} {side} in "
                f"example {i}. Layers with other tokens take labels of their own: "
                f"{side}={{layer: labels}}."
            )
    return [[_seen(text) for text in texts] for texts in each]


def _listed(side: str, labels: Any) -> list[Any]:
    if isinstance(labels, str | bytes) or not isinstance(labels, Sequence):
        raise TypeError(f"{side} must be a list of texts, or of such lists, got {brief(labels)}.")
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
    """Replace invisible characters of a text by their codes, and outer spaces by ␣."""
    if not text or text.isspace():
        return {"": "∅", "\n": "⏎", "\t": "⇥"}.get(text, "␣" * len(text))
    inner = text.strip(" ")
    before, after = (len(text) - len(x) for x in (text.lstrip(" "), text.rstrip(" ")))
    return "␣" * before + "".join(map(_code, inner)) + "␣" * after


def _code(c: str) -> str:
    seen = c in JOINERS or unicodedata.category(c) not in UNSEEN
    return c if seen else f"⟨U+{ord(c):04X}⟩"
