"""The devices of this machine, and their room for trials."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from anyscore.lab.errors import InputError
from anyscore.lab.installed import processor
from anyscore.lab.phrases import counted


def devices() -> list[tuple[str, str]]:
    """List the devices that PyTorch can train on here: name and description."""
    parallel = (
        f"{counted(os.cpu_count() or 1, 'core')}, {counted(torch.get_num_threads(), 'thread')}"
    )
    names = [("cpu", f"{processor()}, {parallel}")]
    for number in range(torch.cuda.device_count()):
        names.append((f"cuda:{number}", torch.cuda.get_device_name(number)))
    if torch.backends.mps.is_available():
        names.append(("mps", "Apple GPU"))
    return names


_CGROUPS = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Microseconds of processors that a container gives, of so many; versions 2 and 1."""


def find_device(name: str) -> str:
    """Return the device that `name` ("auto", "cpu", "cuda", "cuda:1", "mps") means here.

    Raises:
        InputError: there is no such device, or PyTorch cannot use it here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (":" in name and not number.isdecimal()):
        raise InputError(f"--device: expected auto, cpu, cuda, cuda:N or mps, got {name!r}")
    if kind == "cuda":
        count = torch.cuda.device_count()
        if not count:
            raise InputError(
                "--device: PyTorch finds no CUDA GPU here; use --device cpu, or install a PyTorch "
                "built for CUDA"
            )
        if number and int(number) >= count:
            raise InputError(f"--device: expected cuda:0 to cuda:{count - 1}, got {name!r}")
    elif number and int(number):
        raise InputError(f"--device: there is one {kind} device, got {name!r}; use {kind}")
    elif kind == "mps" and not torch.backends.mps.is_available():
        raise InputError("--device: PyTorch finds no Apple GPU here; use --device cpu")
    return name


def room_for_trials(device: str) -> int:
    """Return how many trials a device has room for side by side: a core each, or one on a GPU."""
    if device != "cpu":
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min([cores or 1, *_quotas()])


def _quotas() -> Iterator[int]:
    """Yield the cores' worth of time that a container gives its processes, at least 1."""
    for files in _CGROUPS:
        try:
            texts = " ".join(Path(file).read_text("ascii") for file in files).split()
            quota, period = map(int, texts)
        except (OSError, ValueError):  # other files, or no limit: "max"
            continue
        if quota > 0 and period > 0:
            yield max(1, math.ceil(quota / period))


def describe_machine(device: str) -> dict[str, Any]:
    """Describe the machine of a run, for its record."""
    kind = torch.device(device)
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else processor()
    return {
        "device": device,
        "processor": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
