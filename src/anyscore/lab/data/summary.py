"""What the data are, before anything is trained: as plain numbers and in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from anyscore.lab.data.counts import Counts
from anyscore.lab.data.disk import folder
from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.pairs import Example
from anyscore.lab.data.tokenisers import LEARNT_FROM, Tokeniser

_MEASURED = 10_000  # examples whose lengths are taken
_QUANTILES = {"median": 50, "p90": 90, "p99": 99, "longest": 100}


class _Read(Protocol):
    files: list[dict[str, Any]]
    met: Counter[str]


def summarise(
    parts: tuple[Sequence[Example], Sequence[Example], Sequence[Example]],
    tokenisers: tuple[Tokeniser, Tokeniser],
    options: DataOptions,
    readers: Mapping[str, _Read],
) -> dict[str, Any]:
    """Plain numbers and strings of a task, for JSON.

    - "files": of each file its name, size in bytes and SHA-256, with its part;
    - "rows": how many pairs were read; "pairs", "sources", "targets": the distinct ones that were
      kept; "parts": how many sources each part has; "cut": the parts cut from the training data;
    - "commonest_target": the largest share of pairs that have one and the same target, which a
      model reaches that looks at nothing;
    - "several_targets": how many sources have more than one;
    - "repeated", "empty", "over_limit": rows left out, since they say nothing new, have an empty
      side, or are beyond `limit`; "numbers", "lists": values that were made texts;
    - "leaked": by part, how many of its items have a source that training has;
    - "lengths": by side, its unit and quantiles of the tokens (of 10,000 training examples);
    - "subwords_of": how many characters of a side its subwords were made of, if not of all;
    - "max_tokens", "split_seed", "limit".
    """
    train, valid, test = parts
    pairs, targets, commonest = Counts(r for e in chain(*parts) for r in e.references).facts()
    held_out = {e.source for e in (*valid, *test)}
    known = {e.source for e in train if e.source in held_out}
    met: Counter[str] = sum((Counter(r.met) for r in readers.values()), Counter())
    own = {part: items for part, items in (("valid", valid), ("test", test)) if part in readers}
    rows = met["rows"] if readers else pairs
    return {
        "files": [{"part": part, **file} for part, r in readers.items() for file in r.files],
        "rows": rows,
        "pairs": pairs,
        "sources": len(train) + len(held_out - known),
        "targets": targets,
        "commonest_target": commonest / pairs,
        "several_targets": sum(len(e.references) > 1 for e in chain(*parts)),
        "parts": {"train": len(train), "valid": len(valid), "test": len(test)},
        "cut": [part for part in ("valid", "test") if part not in own],
        "repeated": met["repeated"],
        "empty": met["empty"],
        "over_limit": rows - pairs - met["repeated"] if options.limit is not None else 0,
        "numbers": met["numbers"],
        "lists": met["lists"],
        "leaked": {part: sum(e.source in known for e in items) for part, items in own.items()},
        "lengths": {
            "source": _lengths((e.source for e in train[:_MEASURED]), tokenisers[0]),
            "target": _lengths((r for e in train[:_MEASURED] for r in e.references), tokenisers[1]),
        },
        "subwords_of": _subwords_of(train, tokenisers),
        "max_tokens": options.max_tokens,
        "split_seed": options.split_seed,
        "limit": options.limit,
    }


def _subwords_of(train: Sequence[Example], tokenisers: tuple[Tokeniser, Tokeniser]) -> int | None:
    sides = (e.source for e in train), (r for e in train for r in e.references)
    cut = any(
        tokeniser.unit == "bpe" and sum(map(len, texts)) > LEARNT_FROM
        for tokeniser, texts in zip(tokenisers, sides, strict=True)
    )
    return LEARNT_FROM if cut else None


def _lengths(texts: Iterable[str], tokeniser: Tokeniser) -> dict[str, Any]:
    lengths = [len(tokeniser.tokenise(text)) for text in texts]
    found = np.percentile(lengths, list(_QUANTILES.values()), method="lower")
    return {"unit": tokeniser.unit} | dict(zip(_QUANTILES, map(int, found), strict=True))


def summary_lines(
    summary: dict[str, Any], too_long: Mapping[str, int] | None = None, on_disk: bool = False
) -> list[str]:
    """Three to seven plain lines of what `summarise` found, for a terminal.

    `too_long` and `on_disk` are those of the encoded task: by part, what was left out for its
    length; whether what is trained on lies on disk.
    """
    parts, lengths = summary["parts"], summary["lengths"]
    lines = [
        f"{_count(summary['pairs'], 'pair')} of {_count(summary['sources'], 'different source')} "
        f"and {_count(summary['targets'], 'different target')}; "
        + (
            f"{_share(summary['commonest_target'])} have the commonest target"
            if summary["targets"] > 1
            else "every target is the same, so there is nothing to learn"
        ),
        f"{parts['train']:,} sources to train on, {parts['valid']:,} to watch, {parts['test']:,} "
        f"to test on{_cut(summary)}",
        "lengths: "
        + "; ".join(
            f"{side}s are one label each"
            if found["unit"] == "label"
            else f"{side}s {_count(found['median'], found['unit'])} in the median, "
            f"{found['p99']:,} or fewer for 99 %, at most {found['longest']:,}"
            for side, found in lengths.items()
        ),
    ]
    dropped = {
        "repeated": "that stood there before",
        "empty": "with an empty side",
        "over_limit": "beyond the limit",
    }
    left_out = [f"{summary[key]:,} {why}" for key, why in dropped.items() if summary[key]]
    if too_long and any(too_long.values()):
        test = f", {too_long['test']:,} of them to test on" if too_long["test"] else ""
        left_out.append(
            f"{sum(too_long.values()):,} with a side of more than {summary['max_tokens']:,} "
            f"tokens{test}"
        )
    texts = [f"{summary[key]:,} {key}" for key in ("numbers", "lists") if summary[key]]
    notes = [f"left out: {', '.join(left_out)}"] if left_out else []
    if summary.get("subwords_of"):
        notes.append(
            f"subwords are made of the first {summary['subwords_of']:,} characters of a side"
        )
    notes += [f"taken as text: {' and '.join(texts)}"] if texts else []
    if notes:
        lines.append("; ".join(notes))
    if on_disk:
        lines.append(f"kept on disk: what is trained on, in {folder()}; memory does not hold it")
    leaks = {part: count for part, count in summary["leaked"].items() if count}
    if leaks:
        said = " and ".join(
            f"{count:,} of {parts[part]:,} {'validation' if part == 'valid' else 'test'} sources"
            for part, count in leaks.items()
        )
        lines.append(f"{said} are in the training data too: they are kept, as published")
    if summary["files"]:
        first = summary["files"][0]
        more = len(summary["files"]) - 1
        lines.append(
            f"{first['file']}: {first['bytes']:,} bytes, SHA-256 {first['sha256'][:12]}…"
            + (f", and {_count(more, 'more file')}" if more else "")
        )
    return lines


def _cut(summary: dict[str, Any]) -> str:
    if not summary["cut"]:
        return ", as published"
    names = {"valid": "validation", "test": "test"}
    own = [name for part, name in names.items() if part not in summary["cut"]]
    return f"; split by seed {summary['split_seed']}" + (f", {own[0]} as published" if own else "")


def _count(number: int, noun: str) -> str:
    noun = "piece" if noun == "bpe" else noun
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _share(share: float) -> str:
    return "under 1 %" if share < 0.01 else f"{share * 100:.0f} %"
