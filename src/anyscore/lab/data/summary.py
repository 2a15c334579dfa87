"""The data are summarised before training: as plain numbers, and in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Example, Reader
from anyscore.lab.data.tokenisers import LEARNT_FROM, Tokeniser
from anyscore.lab.data.tokens import token_noun
from anyscore.lab.phrases import counted
from anyscore.lab.verdict.convergence import more_reach

_MEASURED = 10_000  # examples whose lengths are taken
_PARTS = {"valid": "validation", "test": "test"}
_QUANTILES = {"median": 50, "p90": 90, "p99": 99, "longest": 100}


def summarise(
    parts: tuple[Sequence[Example], Sequence[Example], Sequence[Example]],
    tokenisers: tuple[Tokeniser, Tokeniser],
    options: DataOptions,
    readers: Mapping[str, Reader],
) -> dict[str, Any]:
    """Describe a task in plain numbers and strings, for JSON.

    - "files": name, size in bytes, SHA-256 and part of each file;
    - "rows": how many pairs were read; "pairs", "sources", "targets": the distinct kept ones;
      "parts": how many sources each part has; "cut": the parts cut from the training data;
    - "commonest_target": the share of the most frequent target among all pairs, the accuracy of a
      model that ignores the source;
    - "several_targets": how many sources have more than one;
    - "repeated", "empty", "over_limit": rows left out because they say nothing new, have an empty
      side, or are beyond `limit`; "numbers", "lists": values that were converted to texts;
    - "leaked": by part, how many of its items have a source that training has;
    - "repeats": by part, how many of its items have the source of an earlier item;
    - "lengths": by side, its unit and quantiles of the tokens (of 10,000 training examples);
    - "recurring": the share of words that recur, where it hardly decides the units of `auto`;
    - "subwords_of": how many characters of a side its subwords were made of, if not of all;
    - "max_tokens", "split_seed", "limit".

    Args:
        parts: training, validation and test examples.
        tokenisers: of sources and targets.
        readers: by part, the reader of its files.
    """
    train, valid, test = parts
    held_out = {example.source for example in (*valid, *test)}
    known = {example.source for example in train if example.source in held_out}
    examples = [example for part in parts for example in part]
    targets = Counter(reference for example in examples for reference in example.references)
    pairs = targets.total()
    counts: Counter[str] = sum((Counter(reader.counts) for reader in readers.values()), Counter())
    published = {
        part: items for part, items in (("valid", valid), ("test", test)) if part in readers
    }
    rows = counts["rows"] if readers else pairs
    return {
        "files": [
            {"part": part, **file} for part, reader in readers.items() for file in reader.files
        ],
        "rows": rows,
        "pairs": pairs,
        "sources": len(train) + len(held_out - known),
        "targets": len(targets),
        "commonest_target": max(targets.values()) / pairs,
        "several_targets": sum(len(example.references) > 1 for example in examples),
        "parts": {"train": len(train), "valid": len(valid), "test": len(test)},
        "cut": [part for part in ("valid", "test") if part not in published],
        "repeated": counts["repeated"],
        "empty": counts["empty"],
        "over_limit": rows - pairs - counts["repeated"] if options.limit is not None else 0,
        "numbers": counts["numbers"],
        "lists": counts["lists"],
        "leaked": {
            part: sum(example.source in known for example in items)
            for part, items in published.items()
        },
        "repeats": {
            part: len(items) - len({example.source for example in items})
            for part, items in published.items()
        },
        "lengths": {
            "source": _lengths((example.source for example in train[:_MEASURED]), tokenisers[0]),
            "target": _lengths(
                (reference for example in train[:_MEASURED] for reference in example.references),
                tokenisers[1],
            ),
        },
        "subwords_of": _subwords_of(train, tokenisers),
        "max_tokens": options.max_tokens,
        "split_seed": options.split_seed,
        "limit": options.limit,
    }


def _subwords_of(train: Sequence[Example], tokenisers: tuple[Tokeniser, Tokeniser]) -> int | None:
    """Return how many characters subwords were made of; None if of all."""
    sides = (e.source for e in train), (r for e in train for r in e.references)
    cut = any(
        tokeniser.unit == "bpe" and sum(map(len, texts)) > LEARNT_FROM
        for tokeniser, texts in zip(tokenisers, sides, strict=True)
    )
    return LEARNT_FROM if cut else None


def _lengths(texts: Iterable[str], tokeniser: Tokeniser) -> dict[str, Any]:
    """Return the unit of a side, and quantiles of its number of tokens."""
    lengths = [len(tokeniser.tokenise(text)) for text in texts]
    quantiles = np.percentile(lengths, list(_QUANTILES.values()), method="lower")
    return {"unit": tokeniser.unit} | dict(zip(_QUANTILES, map(int, quantiles), strict=True))


def summary_lines(
    summary: dict[str, Any], too_long: Mapping[str, int] | None = None, out_of_reach: int = 0
) -> list[str]:
    """Return the facts of `summarise` in three to seven plain lines, for a terminal.

    Args:
        too_long, out_of_reach: of the encoded task, see `Encoded`.
    """
    parts, lengths = summary["parts"], summary["lengths"]
    lines = [
        f"{counted(summary['pairs'], 'pair')} of {counted(summary['sources'], 'different source')} "
        f"and {counted(summary['targets'], 'different target')}; "
        + (
            f"{_share(summary['commonest_target'])} have the most frequent target"
            if summary["targets"] > 1
            else "every target is the same, so there is nothing to learn"
        ),
        f"{counted(parts['train'], 'source')} for training, {parts['valid']:,} for validation, "
        f"{parts['test']:,} for testing{_cut(summary)}",
        f"lengths: {'; '.join(_lengths_line(*side) for side in lengths.items())}",
    ]
    if "recurring" in summary:
        lines.append(
            f"{100 * summary['recurring']:.1f} % of words recur; from 75 % on, texts are read by "
            "words. This is close: choose with --unit word or --unit character"
        )
    dropped = {
        "repeated": "repeated",
        "empty": "with an empty side",
        "over_limit": "beyond the limit",
    }
    left_out = [f"{summary[key]:,} {why}" for key, why in dropped.items() if summary[key]]
    if too_long and any(too_long.values()):
        test = f", {too_long['test']:,} of them for testing" if too_long["test"] else ""
        left_out.append(
            f"{sum(too_long.values()):,} with a side of more than "
            f"{counted(summary['max_tokens'], 'token')}{test}"
        )
    texts = [counted(summary[key], key[:-1]) for key in ("numbers", "lists") if summary[key]]
    notes = [f"left out: {', '.join(left_out)}"] if left_out else []
    if summary.get("subwords_of"):
        notes.append(
            f"subwords are learnt from the first {summary['subwords_of']:,} characters of a side"
        )
    notes += [f"taken as text: {' and '.join(texts)}"] if texts else []
    if notes:
        lines.append("; ".join(notes))
    leaks = {part: count for part, count in summary["leaked"].items() if count}
    if leaks:
        leaked_text = " and ".join(
            f"{count:,} of {counted(parts[part], f'{_PARTS[part]} source')}"
            for part, count in leaks.items()
        )
        verb, they = ("is", "it is") if sum(leaks.values()) == 1 else ("are", "they are")
        lines.append(f"{leaked_text} {verb} in the training data too: {they} kept, as published")
    for part, count in summary["repeats"].items():
        if count:
            lines.append(
                f"{count:,} of {counted(parts[part], f'{_PARTS[part]} source')} repeat an earlier "
                "one: they are items of their own, as published, and intervals are too narrow"
            )
    if out_of_reach:
        items = parts["test"] - (too_long or {}).get("test", 0)
        lines.append(
            f"{out_of_reach:,} of {counted(items, 'test item')} cannot be answered: each answer "
            f"holds a token that training lacks{more_reach(lengths['target']['unit'], '; ')}"
        )
    if summary["files"]:
        first = summary["files"][0]
        more = len(summary["files"]) - 1
        lines.append(
            f"{first['file']}: {counted(first['bytes'], 'byte')}, SHA-256 {first['sha256'][:12]}…"
            + (f", and {counted(more, 'more file')}" if more else "")
        )
    return lines


def _lengths_line(side: str, lengths: Mapping[str, Any]) -> str:
    """Describe the lengths of a side's texts."""
    unit = lengths["unit"]
    if unit == "label":
        return f"each {side} is one label"
    return (
        f"{side}s have a median of {counted(lengths['median'], token_noun(unit))}, "
        f"99 % have at most {lengths['p99']:,}, the longest {lengths['longest']:,}"
    )


def _cut(summary: dict[str, Any]) -> str:
    """Describe where the parts come from."""
    if not summary["cut"]:
        return ", as published"
    published = [name for part, name in _PARTS.items() if part not in summary["cut"]]
    return f"; split by seed {summary['split_seed']}" + (
        f", {published[0]} as published" if published else ""
    )


def _share(share: float) -> str:
    """Return a share in percent."""
    return "under 1 %" if share < 0.01 else f"{share * 100:.0f} %"
