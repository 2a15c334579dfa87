"""A pytest plugin: tensors are made on the GPU, so that its kernels are tested, compiled."""

from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    if not torch.cuda.is_available():
        pytest.exit("PyTorch finds no GPU here", returncode=2)
    torch.set_default_device("cuda")
