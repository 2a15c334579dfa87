"""Options of `pytest tests/fuzz`; without options it runs the same calls in about a minute."""

from __future__ import annotations

import pytest

from fuzz.frameworks import RUNNERS
from fuzz.fuzzing import Effort
from fuzz.runners import NumPy


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz")
    group.addoption(
        "--fuzz-minutes", type=float, help="draw other calls at each run, for that long in all"
    )
    group.addoption("--fuzz-seed", type=int, help="of the first round, as a failure printed it")
    group.addoption("--fuzz-framework", choices=RUNNERS, help="instead of NumPy and PyTorch")


def pytest_exception_interact(node: pytest.Item, report: pytest.TestReport) -> None:
    """Print a failure of a long run at once, not at its end."""
    reporter = node.config.pluginmanager.getplugin("terminalreporter")
    if reporter is not None and node.config.getoption("--fuzz-minutes", default=None):
        reporter.write_line(f"\n{node.nodeid}\n{report.longreprtext}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "runner" in metafunc.fixturenames:
        metafunc.parametrize("runner", _frameworks(metafunc.config), indirect=True)


def _frameworks(config: pytest.Config) -> list[str]:
    one = config.getoption("--fuzz-framework", default=None)
    return [one] if one else ["numpy", "torch"]


@pytest.fixture
def runner(request: pytest.FixtureRequest) -> NumPy:
    return RUNNERS[request.param]()


@pytest.fixture
def effort(pytestconfig: pytest.Config) -> Effort:
    """Return the effort for the tests of one framework."""
    minutes = pytestconfig.getoption("--fuzz-minutes", default=None)
    seconds = None if minutes is None else 60 * minutes / len(_frameworks(pytestconfig))
    return Effort(seconds, pytestconfig.getoption("--fuzz-seed", default=None))
