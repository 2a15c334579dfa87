"""The tour of CONTRIBUTING.md passes the functions of a call, in their order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import anyscore
from anyscore.torch import Attention
from helpers import machine

ROOT = Path(anyscore.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
CELL = re.compile(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?: \(.*?\))?(?:, )?)+)")

pytestmark = [
    machine.needs_core,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="co_qualname is from Python 3.11 on"),
]


def stops(column: int) -> Iterator[str]:
    """Yield "file:function" of each stop in a column of the table, from top to bottom."""
    table = PAGE.read_text().split("## Follow a call of a layer")[1].split("\n## ")[0]
    for row in re.findall(r"^\| \w.*$", table, re.MULTILINE):
        for file, functions in CELL.findall(row.split("|")[column]):
            yield from (f"{file}:{name}" for name in re.findall(r"`([\w.]+)`", functions))


def passed(function: Callable[[], Any]) -> list[str]:
    """Return "file:function" of each call of a function of the package."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT):
            return
        found.append(f"{path.relative_to(ROOT).as_posix()}:{frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize(("column", "earlier"), [(2, 0), (2, 1), (3, 2)])
def test_functions_of_a_call_of_a_layer(column: int, earlier: int) -> None:
    layer = Attention("additive", hidden=8)
    tokens = [torch.randn(2, n, 6, requires_grad=True) for n in (3, 5, 5)]

    def call() -> None:
        layer(*tokens, torch.tensor([5, 2])).sum().backward()

    for _ in range(earlier):
        call()
    found, expected = iter(passed(call)), list(stops(column))
    assert len(expected) >= 8
    for stop in expected:
        assert stop in found, f"a call does not pass {stop} here"  # goes on after the last stop


def test_the_tour_has_few_stops() -> None:
    assert len([*stops(2), *stops(3)]) <= 25
