"""Chinese phrases and their reading, a syllable for each character; of the package pypinyin.

Its dictionary has the reading of 47,111 phrases. The chosen phrases consist of common characters
alone. A test then asks how a character is read in a phrase, hardly whether training had it.
"""

from __future__ import annotations

import random
from collections import Counter

from anyscore.lab.data.task import Example, Task

_WATCHED = 500  # phrases of the validation set


def phrases(characters: int) -> list[Example]:
    """Return every phrase made of the characters that most phrases have, in a fixed order.

    Left out are the few phrases with a character that the dictionary reads in two ways.

    Args:
        characters: how many characters there are.
    """
    from pypinyin.phrases_dict import phrases_dict  # needed for this proof only

    counts = Counter(character for phrase in phrases_dict for character in phrase)
    common = set(sorted(counts, key=lambda character: (-counts[character], character))[:characters])
    return [
        Example(phrase, (" ".join(syllable for (syllable,) in readings),))
        for phrase, readings in sorted(phrases_dict.items())
        if common.issuperset(phrase) and all(len(reading) == 1 for reading in readings)
    ]


def task(characters: int, tested: int) -> Task:
    """Make the task: phrases of `characters` characters, 500 to validate, `tested` to test on."""
    examples = phrases(characters)
    random.Random(0).shuffle(examples)
    test, valid, train = (
        examples[:tested],
        examples[tested : tested + _WATCHED],
        examples[tested + _WATCHED :],
    )
    return Task("phrases", "phrases → pinyin", "token", train, valid, test, source_unit="character")
