"""A report shows few test items, chosen to be as different as possible."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

from anyscore.lab.data.encoding import Item

_EASILY_SEEN = 32  # tokens of a side that a heatmap has room for


def choose_examples(items: Sequence[Item], count: int = 6) -> list[Item]:
    """Choose items from as many scripts as possible and of different lengths.

    The commonest scripts have their turn first, and again if there are fewer than `count`. A script
    gives items spread over its lengths. Items too long for a heatmap are taken only where there are
    no others. The same items give the same choice.

    Args:
        count: how many are chosen; all, if there are fewer.
    """
    short = [item for item in items if _length(item) <= _EASILY_SEEN]
    items = short if len(short) >= count else items
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(_script(item), []).append(item)
    ordered = sorted(groups.values(), key=len, reverse=True)
    quotas = [0] * len(ordered)
    missing = min(count, len(items))
    while missing:
        for place, group in enumerate(ordered):
            if missing and quotas[place] < len(group):
                quotas[place] += 1
                missing -= 1
    return [
        item for group, turn in zip(ordered, quotas, strict=True) for item in _spread(group, turn)
    ]


def _spread(group: list[Item], count: int) -> list[Item]:
    """Choose `count` of the group at equal steps through its lengths."""
    by_length = sorted(group, key=_length)
    return [by_length[(2 * i + 1) * len(group) // (2 * count)] for i in range(count)]


def _length(item: Item) -> int:
    """Return the tokens of the longest side of an item."""
    return max(len(item.source), *(len(answer) for answer in item.answers))


def _script(item: Item) -> str:
    """Return the script of most of the source's letters, by the first word of their names."""
    letters = (c for token in item.source for c in token if c.isalpha())
    names = Counter(unicodedata.name(letter, "unknown").split()[0] for letter in letters)
    return names.most_common(1)[0][0] if names else "none"
