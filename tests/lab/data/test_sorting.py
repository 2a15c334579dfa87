"""The task of sorting numbers, which needs no file."""

from __future__ import annotations

import pytest

from anyscore.lab.data.options import DataOptions
from anyscore.lab.data.sorting import LENGTHS, NUMBERS, PAIRS, make_sorting
from anyscore.lab.data.task import load_task
from anyscore.lab.errors import InputError

pytestmark = pytest.mark.sample


def test_examples() -> None:
    """Targets are their sources in order; no source occurs twice; the seed draws them."""
    parts = make_sorting()
    examples = [example for part in parts for example in part]
    assert len({x.source for x in examples}) == len(examples) == PAIRS
    assert [len(part) for part in parts] == [4800, 600, 600]
    for example in examples:
        source, (target,) = example.source.split(), (x.split() for x in example.references)
        assert LENGTHS[0] <= len(source) <= LENGTHS[1]
        assert target == sorted(source, key=int)
        assert all(0 <= int(x) < NUMBERS for x in source)
    assert make_sorting() == parts != make_sorting(1)


def test_the_task_of_a_pointer_network_without_a_file() -> None:
    task = load_task(DataOptions(limit=100), "pointer")
    assert (task.name, task.unit, task.source_unit) == ("sorting", "token", None)
    assert [len(task.train), len(task.valid), len(task.test)] == [80, 10, 10]


@pytest.mark.parametrize("pairs", [9, 100_001])
def test_numbers_of_pairs(pairs: int) -> None:
    with pytest.raises(InputError, match=f"expected 10 to 100,000 pairs .* got {pairs:,}"):
        make_sorting(pairs=pairs)
