"""This machine is described: processor, devices, frameworks, and room for trials."""

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
from anyscore.lab.errors import InputError
from anyscore.lab.phrases import counted

# By each framework's usual name: the package to import, and its distributions.
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
    """A framework that arrays may come from. version: None if it is not installed."""

    name: str
    package: str
    version: str | None


def frameworks() -> list[Framework]:
    """List every framework that anyscore computes with, installed or not; import none of them."""
    return [
        Framework(name, package, _version(package, distributions))
        for name, (package, *distributions) in _FRAMEWORKS.items()
    ]


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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core() -> str:
    """Return the instruction set of the C++ core here; without a core, the reason and a way out."""
    if problem := cpu.problem():
        return problem
    text = f"the C++ core computes with the instruction set {cpu.isa()}"
    if missing := cpu.missing_isa():
        text += (
            f"; it was built on another machine, without {missing}, which this processor has: "
            "install anyscore from its source again, here"
        )
    return text


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


def processor() -> str:
    """Return the processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or platform.machine()


def _version(package: str, distributions: list[str]) -> str | None:
    """Return the version of a package by the distributions it comes in; None if not installed."""
    if importlib.util.find_spec(package) is None:
        return None
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"
