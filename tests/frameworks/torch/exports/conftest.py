"""Setup of the tests of PyTorch's exports, which run apart; see norecursedirs."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)

# Warnings that PyTorch and onnxscript raise by themselves.
WARNINGS = (
    r"ignore:`torch\.jit\.\w+` is deprecated:DeprecationWarning",
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    r"ignore:.*should not be instantiated:DeprecationWarning",
    r"ignore::torch.jit.TracerWarning:anyscore\.",  # ops/torch.py ignores these too
    r"ignore:# The axis name:UserWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in WARNINGS:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
