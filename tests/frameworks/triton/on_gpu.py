"""A pytest plugin makes tensors on the GPU, so that tests run the GPU's compiled kernels."""

from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    if not torch.cuda.is_available():
        pytest.exit("PyTorch finds no GPU here", returncode=2)
    torch.set_default_device("cuda")
