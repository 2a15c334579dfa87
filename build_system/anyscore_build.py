"""The build backend: scikit-build-core, and the three headers of XLA's foreign function interface.

The core's calls for JAX are compiled against these headers, which are code of others: git does not
contain them. `jaxlib` does. A source archive has a copy, with the licence, so that a build from it
needs neither jaxlib nor a network. A build from a checkout asks for jaxlib.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from pathlib import Path

from scikit_build_core import build as _base

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

Settings = dict[str, "list[str] | str"] | None

JAXLIB = "0.6.0"
"""Its handlers run with every later version; headers of a later version may ask for a later JAX."""
SHA256 = {
    "api.h": "c9be91a38683ce990c22f541bf839b7ee08576a7ed4459c32605f2bdbbe20ba5",
    "c_api.h": "15c29436e1544f8f9711e4b0f37f2c0b51623d47b56d50d2cc4399eedd8be9a7",
    "ffi.h": "9378ed21949554dea69d4cd379f91dab8aa38e9496ca348537860d7c0cd857b4",
}
"""Digests of the headers of jaxlib 0.6.0."""
FROM_JAXLIB = (
    "platform_machine in 'x86_64 aarch64 arm64'"
    " and (platform_system == 'Linux' or platform_machine == 'arm64')"
)
REQUIRES = [
    f"jaxlib=={JAXLIB}; python_version < '3.14' and {FROM_JAXLIB}",
    # The first for Python 3.14, with the same version of the interface.
    f"jaxlib==0.7.1; python_version >= '3.14' and {FROM_JAXLIB}",
]
KEPT = Path("third_party/xla")
"""The folder of the headers in a source archive; CMakeLists.txt names it too."""

build_wheel = _base.build_wheel
build_editable = _base.build_editable


def get_requires_for_build_wheel(settings: Settings = None) -> list[str]:
    """Return the requirements: jaxlib only where the headers are missing."""
    return [*_base.get_requires_for_build_wheel(settings), *_jaxlib()]


def get_requires_for_build_editable(settings: Settings = None) -> list[str]:
    """Return the requirements: jaxlib only where the headers are missing."""
    return [*_base.get_requires_for_build_editable(settings), *_jaxlib()]


def get_requires_for_build_sdist(settings: Settings = None) -> list[str]:
    """Return the requirements: jaxlib only where the headers are missing."""
    return [*_base.get_requires_for_build_sdist(settings), *_jaxlib()]


def build_sdist(folder: str, settings: Settings = None) -> str:
    """Build a source archive with the headers.

    Raises RuntimeError: neither the checkout nor jaxlib has the headers with these digests.
    """
    if not _are_those(KEPT):
        _copy()
    return _base.build_sdist(folder, settings)


def _jaxlib() -> list[str]:
    return [] if _are_those(KEPT) else REQUIRES


def _are_those(folder: Path) -> bool:
    """Return whether a folder has the three headers, by their digests."""
    try:
        return all(
            hashlib.sha256((folder / "ffi" / "api" / name).read_bytes()).hexdigest() == digest
            for name, digest in SHA256.items()
        )
    except OSError:
        return False


def _copy() -> None:
    """Copy the headers from jaxlib, and the Apache licence that they name."""
    found = importlib.util.find_spec("jaxlib")
    headers = Path(found.origin).parent / "include" / "xla" if found and found.origin else None
    if headers is None or not _are_those(headers):
        raise RuntimeError(
            f"A source archive contains headers of jaxlib {JAXLIB}, which is not installed. Build "
            "it in an isolated environment with Python 3.10 to 3.13 on Linux or macOS: make sdist."
        )
    shutil.rmtree(KEPT, ignore_errors=True)
    (KEPT / "ffi" / "api").mkdir(parents=True)
    for name in SHA256:
        shutil.copyfile(headers / "ffi" / "api" / name, KEPT / "ffi" / "api" / name)
    shutil.copyfile("LICENSE", KEPT / "LICENSE")
