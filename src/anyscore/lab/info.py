"""What this machine is and what can run on it."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from anyscore.kernels import cpu
from anyscore.lab.wording import counted

# What a user calls each framework, the package to import, and the distributions it comes in.
_FRAMEWORKS = {
    "NumPy": ("numpy", "numpy"),
    "PyTorch": ("torch", "torch"),
    "JAX": ("jax", "jax"),
    "TensorFlow": ("tensorflow", "tensorflow", "tensorflow-cpu", "tf-nightly"),
    "Keras": ("keras", "keras"),
    "MXNet": ("mxnet", "mxnet"),
}


@dataclass(frozen=True)
class Framework:
    """A framework that arrays may come from. version: None where it is not installed."""

    name: str
    package: str
    version: str | None


def frameworks() -> list[Framework]:
    """Every framework anyscore computes with, installed or not. Imports none of them."""
    return [
        Framework(name, package, _version(package, distributions))
        for name, (package, *distributions) in _FRAMEWORKS.items()
    ]


def devices() -> list[tuple[str, str]]:
    """The devices PyTorch can train on here: name and description."""
    found = [("cpu", _processors())]
    for number in range(torch.cuda.device_count()):
        found.append((f"cuda:{number}", torch.cuda.get_device_name(number)))
    if torch.backends.mps.is_available():
        found.append(("mps", "Apple GPU"))
    return found


def _processors() -> str:
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    return f"{processor()}, {counted(cores, 'core')}, {counted(threads, 'thread')}"


def core() -> str:
    """The instruction set that the C++ core uses here, or why there is no core and what to do."""
    return cpu.problem() or f"the C++ core computes with the instruction set {cpu.isa()}"


def describe_machine(device: str) -> dict[str, Any]:
    """The machine of a run, for `metrics.json`."""
    kind = torch.device(device)
    name = torch.cuda.get_device_name(kind) if kind.type == "cuda" else processor()
    return {
        "device": device,
        "processor": name,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or platform.machine()


def _version(package: str, distributions: list[str]) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"
