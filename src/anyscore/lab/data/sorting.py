"""The task of a pointer network that needs no file: numbers, to the same numbers in order.

A source is 3 to 5 numbers from 0 to 99, such as "62 7 41", and its target "7 41 62". Sorting is a
task of Vinyals et al. 2015, "Pointer networks", and "Order matters", 2016.
"""

from __future__ import annotations

import random
from itertools import islice

from anyscore.lab.data.pairs import Example
from anyscore.lab.data.task import Split, held_out_size
from anyscore.lab.errors import InputError

PAIRS = 6000
LENGTHS = (3, 5)  # shortest and longest
NUMBERS = 100
_MOST = 100_000


def make_sorting(seed: int = 0, *, pairs: int = PAIRS) -> Split:
    """Return training, validation and test examples with different sources.

    Args:
        seed: seed of the draws.
        pairs: examples in all three sets together.

    Raises:
        InputError: fewer than 10 or more than 100,000 pairs.
    """
    if not 10 <= pairs <= _MOST:
        raise InputError(f"expected 10 to {_MOST:,} pairs of numbers to sort, got {pairs:,}")
    rng = random.Random(seed)
    sources: dict[tuple[int, ...], None] = {}
    while len(sources) < pairs:
        count = rng.randint(*LENGTHS)
        sources[tuple(rng.randrange(NUMBERS) for _ in range(count))] = None
    examples = (Example(_text(x), (_text(sorted(x)),)) for x in sources)
    size = held_out_size(pairs)
    sizes = pairs - 2 * size, size, size
    train, valid, test = (list(islice(examples, n)) for n in sizes)
    return train, valid, test


def _text(numbers: list[int] | tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))
