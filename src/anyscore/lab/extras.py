"""Packages that only some options need."""

from __future__ import annotations

from importlib.util import find_spec

from anyscore.lab.errors import InputError


def check_installed(package: str, option: str, *, extra: str) -> None:
    """Raise InputError, in one line, if `package` is missing, which comes with `extra`."""
    if find_spec(package) is None:
        raise InputError(
            f"{option}: needs the package {package!r}, which is not installed; "
            f"pip install 'anyscore[{extra}]'"
        )
