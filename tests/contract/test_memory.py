"""Calls leave nothing behind: caches are bounded, and hold no tensor or function of the caller."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Edges, attention
from helpers.leaks import ENTRIES, LEAK, Drawn, resident_growth, run, traced_growth

MAKES: dict[str, Any] = {"numpy": np.array, "torch": torch.tensor}
frameworks = pytest.mark.parametrize("framework", MAKES)


def calls(framework: str, count: int, first: int = 0) -> list[Drawn]:
    return [Drawn(first + i, MAKES[framework]) for i in range(count)]


@frameworks
@pytest.mark.parametrize("entry", ENTRIES)
def test_objects_of_the_caller_die(framework: str, entry: str) -> None:
    run({entry: ENTRIES[entry]}, calls(framework, 20), watch=True)


@pytest.mark.weekly
@frameworks
def test_python_keeps_nothing(framework: str) -> None:
    assert traced_growth(ENTRIES, calls(framework, 300)) < LEAK


def test_leaks_are_seen() -> None:
    kept: list[Any] = []

    def leak(of: Drawn) -> list[Any]:
        kept.append(bytes(1024))
        return []

    assert traced_growth({"leak": leak}, calls("numpy", 100)) > LEAK

    def hold(of: Drawn) -> list[Any]:
        kept.append(of.array(2))
        return kept[-1:]

    with pytest.raises(AssertionError, match="hold: ndarray live on"):
        run({"hold": hold}, calls("numpy", 2), watch=True)


def test_edges_keep_a_few_forms_of_themselves() -> None:
    edges, query = Edges([0, 1, 2], [1, 0]), np.ones((2, 3))
    for keys in range(2, 99):
        key = np.ones((keys, 3))
        attention(query, key, key, mask=edges)
    assert len(edges.known) < 12


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
@frameworks
def test_a_hundred_thousand_calls(framework: str) -> None:
    """Other sizes, masks, numbers and functions in each call: a leak of 1 KiB a call would show."""
    count = 2 * 100_000 // len(ENTRIES)
    assert resident_growth(ENTRIES, calls(framework, count)) < LEAK
