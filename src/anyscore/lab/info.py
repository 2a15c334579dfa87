"""What this machine is and what can run on it."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyscore import Plan, plan
from anyscore.kernels import cpu
from anyscore.layers import SCORES

_WIDTH = 8

# What a user calls each framework: the package to import, and the one whose version counts.
_FRAMEWORKS = {
    "NumPy": ("numpy", "numpy"),
    "PyTorch": ("torch", "torch"),
    "JAX": ("jax", "jax"),
    "TensorFlow": ("tensorflow", "tensorflow"),
    "Keras": ("keras", "keras"),
    "MXNet": ("mxnet", "mxnet"),
}
# Those that `anyscore` has operations for, with the module that says so.
_OPERATIONS = {name: f"anyscore.ops.{package}" for name, (package, _) in _FRAMEWORKS.items()}


@dataclass(frozen=True)
class Framework:
    """A framework that arrays may come from.

    Attributes:
        version: None where it is not installed.
        supported: whether this release of anyscore computes with it.
    """

    name: str
    version: str | None
    supported: bool


def frameworks() -> list[Framework]:
    """Every framework anyscore knows of, installed or not. Imports none of them."""
    return [
        Framework(name, _version(package, distribution), _is_there(_OPERATIONS[name]))
        for name, (package, distribution) in _FRAMEWORKS.items()
    ]


def devices() -> list[tuple[str, str]]:
    """The devices PyTorch can train on here: name and description."""
    found = [("cpu", f"{processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads")]
    for number in range(torch.cuda.device_count()):
        found.append((f"cuda:{number}", torch.cuda.get_device_name(number)))
    if torch.backends.mps.is_available():
        found.append(("mps", "Apple GPU"))
    return found


def core() -> str:
    """The instruction set that the C++ core uses here, or why there is no core and what to do."""
    return cpu.problem() or f"the C++ core computes with the instruction set {cpu.isa()}"


def plans() -> dict[str, dict[str, Plan]]:
    """Per place ("NumPy", "PyTorch cpu", ...) and score: what would run, and why."""
    places: dict[str, Any] = {"NumPy": lambda shape: np.zeros(shape, np.float32)}
    for name in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        places[f"PyTorch {name}"] = lambda shape, name=name: torch.zeros(shape, device=name)
    return {
        place: {score: _plan(score, zeros) for score in SCORES} for place, zeros in places.items()
    }


def _plan(name: str, zeros: Any) -> Plan:
    score = SCORES[name]
    made = score.parameters(_WIDTH, _WIDTH, _WIDTH)
    fields = {
        field: init if isinstance(init, float) else zeros(init.shape)
        for field, init in made.items()
    }
    x = zeros((1, 2, _WIDTH))
    return plan(x, x, x, score=score(**fields))


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


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(package: str, distribution: str) -> str | None:
    if not _is_there(package):
        return None
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
