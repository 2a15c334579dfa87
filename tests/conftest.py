"""Fixtures of all tests, which run on one thread with the same random numbers in every run."""

from __future__ import annotations

import gc
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from anyscore.functional import attention
from anyscore.kernels import cpu
from anyscore.kernels.own_formulas import compiler
from helpers import machine
from helpers.browser import browser, open_file  # noqa: F401 (one browser for all tests)

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")


def pytest_collection_finish() -> None:
    """Exempt imports and collected tests from garbage collection: the benchmark collects often."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return machine.judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    return machine.judged((yield))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    np.random.seed(0)
    if find_spec("torch"):
        torch.manual_seed(0)


@pytest.fixture
def no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the C++ core."""
    monkeypatch.setattr(cpu, "_problem", "it is not there")


@pytest.fixture
def misses(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the calls of `attention` that are checked in full."""
    seen: list[Any] = []
    whole = attention.attend

    def attend(*args: Any) -> Any:
        seen.append(args)
        return whole(*args)

    monkeypatch.setattr(attention, "attend", attend)
    return seen


@pytest.fixture
def kept_pairs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep compiled pairs of formulas for all tests; skip the test without core or compiler.

    Pairs are compiled with -O1, in a third of the time. A test of test_own_pairs.py, the fuzz and
    examples of pages have the flags that users have.
    """
    if cpu.problem() is not None:
        pytest.skip(machine.CORE)
    machine.compiler()
    sooner = tuple("-O1" if flag == "-O3" else flag for flag in compiler.FLAGS)
    monkeypatch.setattr(compiler, "FLAGS", sooner)
    monkeypatch.setenv("XDG_CACHE_HOME", str(request.config.rootpath / "build" / "pairs"))
