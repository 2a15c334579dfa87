"""Versions in the package's requirements and in the pins of its environments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from package.wheels import backend

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def pins(name: str) -> dict[str, str]:
    """Return the versions in a file of constraints, by package."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    of_packages = (Requirement(line) for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(x.name): str(x.specifier).removeprefix("==") for x in of_packages}


def asked(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements of the package with some extras, without the package itself."""
    for text in (x for extra in extras for x in EXTRAS[extra]):
        requirement = Requirement(text)
        if requirement.name == "anyscore":
            yield from asked(*requirement.extras)
        else:
            yield requirement


@pytest.mark.parametrize(
    ("extra", "package", "version"),
    [
        # A file runs code while it is loaded, although the loader was asked to run none.
        ("torch", "torch", "2.5.1"),
        ("keras", "keras", "3.8.0"),
        ("keras", "keras", "3.10.0"),
        ("keras", "keras", "3.12.0"),
        ("keras", "keras", "3.13.1"),
        # If a lock is a link, the target of the link is emptied.
        ("lab", "filelock", "3.20.2"),
    ],
)
def test_versions_with_known_holes_are_not_asked_for(
    extra: str, package: str, version: str
) -> None:
    (requirement,) = (x for x in asked(extra) if x.name == package)
    assert not requirement.specifier.contains(version)


@pytest.mark.parametrize(
    ("file", "extra"), [("constraints.txt", "dev"), ("constraints-mxnet.txt", "mxnet-dev")]
)
def test_pins_are_within_what_the_package_asks_for(file: str, extra: str) -> None:
    pinned = pins(file)
    for requirement in asked(extra):
        if requirement.marker is None or requirement.marker.evaluate():
            version = pinned[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{file}: {requirement}, {version}"


@pytest.mark.parametrize("extra", ["torch", "jax", "tensorflow", "keras"])
def test_the_oldest_versions_are_the_lower_bounds(extra: str) -> None:
    (requirement,) = asked(extra)
    (lowest,) = (x.version for x in requirement.specifier if x.operator == ">=")
    pinned = pins("constraints-oldest.txt")[requirement.name]
    assert requirement.specifier.contains(pinned)
    assert SpecifierSet(f"=={lowest}.*").contains(pinned)


def test_rivals_of_benchmarks_are_pinned() -> None:
    pinned, text = pins("constraints.txt"), (ROOT / "benchmarks/requirements.txt").read_text()
    for requirement in (Requirement(x) for x in text.splitlines() if not x.startswith("#")):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_what_a_build_runs_is_pinned() -> None:
    """A build's packages are pinned, but not jaxlib's requirements: only its headers are read."""
    pinned = pins("constraints-build.txt")
    for text in PROJECT["build-system"]["requires"]:
        requirement = Requirement(text)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version)
    for text in backend().REQUIRES:
        assert str(Requirement(text).specifier).startswith("==")
    assert pinned.keys() >= {"cmake", "ninja"}
    for file in ("constraints.txt", "constraints-mxnet.txt"):
        others = pins(file)
        assert all(others.get(name, x) == x for name, x in pinned.items()), file
