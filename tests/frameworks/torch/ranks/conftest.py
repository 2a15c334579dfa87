"""Groups of processes for the tests of attention across ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from helpers.ranks import Ranks


@pytest.fixture(scope="session")
def group() -> Iterator[Callable[[int], Ranks]]:
    """Return a function of a number of ranks that gives the group; a later test shares it."""
    groups: dict[int, Ranks] = {}

    def of(count: int) -> Ranks:
        if count not in groups:
            groups[count] = Ranks(count)
        return groups[count]

    yield of
    for ranks in groups.values():
        ranks.close()
