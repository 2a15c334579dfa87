"""Chinese phrases and how they are read, a syllable for each character; of the package pypinyin.

Its dictionary says the reading of 47,111 phrases. Those that are taken consist of common characters
alone, so that a test asks how a character is read in a phrase, hardly whether it was ever met.
"""

from __future__ import annotations

import random
from collections import Counter

from anyscore.lab.data.task import Example, Task

_WATCHED = 500  # phrases of the validation set


def phrases(characters: int) -> list[Example]:
    """Every phrase made of as many characters, those that most phrases have, in a fixed order.

    Left out are the few phrases with a character that the dictionary reads in two ways.
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
    """The phrases of `characters` characters to train on, 500 to watch and `tested` to test on."""
    made = phrases(characters)
    random.Random(0).shuffle(made)
    test, valid, train = (
        made[:tested],
        made[tested : tested + _WATCHED],
        made[tested + _WATCHED :],
    )
    return Task("phrases", "phrases → pinyin", "token", train, valid, test, source_unit="character")
