"""Everybody who takes part in `python -m benchmarks --framework jax` is right."""

from __future__ import annotations

import pytest

from anyscore.lab.bench.runner import Runner
from anyscore.lab.bench.work import FORWARD, TRAINING, Shape
from benchmarks.rivals import find
from benchmarks.work import Work


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "passes", "projected"), [("eager", FORWARD, False), ("compiled", TRAINING, False)]
)
@pytest.mark.parametrize("name", ["anyscore", "formula"])
def test_all_variants_are_right(name: str, call: str, passes: str, projected: bool) -> None:
    work = Work(Shape(2, 5, 7, 11, 3), passes=passes, framework="jax", call=call, lengths=True)
    work = work.to(projected=projected)
    answer = Runner("cpu").prepare(find(name, work), work)
    if name == "keras" and not projected:
        assert answer["problem"] == "its layer projects nothing"
        return
    assert answer["problem"] is None
    assert None not in answer["ways"].values()
    assert answer["error"] < 1e-5
