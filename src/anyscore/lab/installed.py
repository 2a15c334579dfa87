"""`anyscore info` without the packages of the laboratory: versions, the core, plans of scores."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from anyscore import Plan, __version__
from anyscore.kernels import cpu
from anyscore.lab import plans
from anyscore.score import SCORES

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


def record(*, quiet: bool = False) -> dict[str, Any]:
    """Describe what is installed, and how each score would be computed, for JSON.

    quiet: do not ask the frameworks for plans, which takes seconds.
    """
    installed = frameworks()
    asked = [x.package for x in installed if x.version and x.package != "keras"]
    return {
        "anyscore": __version__,
        "python": sys.version.split()[0],
        "frameworks": {x.name: x.version for x in installed},
        "core": core(),
        "scores": {name: score.formula for name, score in SCORES.items()},
        "plans": {
            place: found if isinstance(found, str) else {n: _choice(p) for n, p in found.items()}
            for place, found in ({} if quiet else plans.plans(asked)).items()
        },
    }


def show(arguments: list[str]) -> None:
    """Print the record as plain lines, or with --json as JSON; --quiet asks no framework."""
    found = record(quiet="--quiet" in arguments)
    if "--json" in arguments:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    print(f"anyscore {found['anyscore']}, Python {found['python']}, {processor()}")
    print(*(f"{name}: {x or 'not installed'}" for name, x in found["frameworks"].items()), sep="\n")
    print(found["core"])
    for place, by_score in found["plans"].items():
        if isinstance(by_score, str):
            print(f"{place}: {by_score}")
            continue
        for (route, reason), names in by_reason(by_score).items():
            print(f"{place}: {', '.join(names)}: {route}, {reason}")


def _choice(plan: Plan) -> dict[str, str]:
    return {"route": plan.route, "reason": plan.reason}


def by_reason(plans_by_score: dict[str, dict[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Return the names of the scores of each (route, reason) in plans of `record`."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, plan in plans_by_score.items():
        found.setdefault((plan["route"], plan["reason"]), []).append(name)
    return found


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
