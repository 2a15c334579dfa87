"""Options of `pytest tests/fuzz`; without them it takes about a minute, the same every time."""

from __future__ import annotations

from typing import Any

import pytest
from fuzzing import Effort
from runners import RUNNERS, NumPy


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz")
    group.addoption(
        "--fuzz-minutes", type=float, help="draw other calls at each run, for that long in all"
    )
    group.addoption("--fuzz-seed", type=int, help="of the first round, as a failure printed it")
    group.addoption("--fuzz-framework", choices=RUNNERS, help="instead of NumPy and PyTorch")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runner" in metafunc.fixturenames:
        one = metafunc.config.getoption("--fuzz-framework", default=None)
        metafunc.parametrize("runner", [one] if one else ["numpy", "torch"], indirect=True)


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> NumPy:
    return RUNNERS[request.param]()


@pytest.fixture
def effort(request: pytest.FixtureRequest) -> Effort:
    """What one test may do: its share of the minutes, if there are any."""
    options: Any = request.config.getoption
    minutes = options("--fuzz-minutes", default=None)
    fuzzers = sum("effort" in getattr(item, "fixturenames", ()) for item in request.session.items)
    seconds = None if minutes is None else 60 * minutes / fuzzers
    return Effort(seconds, options("--fuzz-seed", default=None))
