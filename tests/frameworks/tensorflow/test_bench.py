"""Every participant of `python -m benchmarks --framework tensorflow` is right."""

from __future__ import annotations

import pytest

from anyscore.lab.bench.work import FORWARD, TRAINING
from helpers.benchmark_command import check_right


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "passes", "projected"),
    [("eager", FORWARD, False), ("compiled", FORWARD, False), ("compiled", TRAINING, True)],
)
@pytest.mark.parametrize("name", ["anyscore", "formula", "keras"])
def test_all_variants_are_right(name: str, call: str, passes: str, projected: bool) -> None:
    check_right(name, "tensorflow", call, passes, projected)
