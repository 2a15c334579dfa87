"""Some options need packages of their own; a message says how to install a missing one."""

from __future__ import annotations

from importlib.util import find_spec

from anyscore.lab.errors import InputError, check_name

ENGINES = ("processes", "ray")
LOGS = {"tensorboard": "tensorboardX"}
"""Tools that curves can be logged for, and the packages that write the logs."""


def check_log(name: str | None) -> None:
    """Check that a log is known and its package installed; None is for no log.

    Raises:
        InputError: there is no such log, or its package is missing.
    """
    if name is None:
        return
    check_name("--log", name, LOGS)
    check_installed(LOGS[name], f"--log {name}", extra=name)


def check_engine(name: str, address: str | None) -> None:
    """Check that an engine is known and its package installed, and that the address is for it.

    Raises:
        InputError: there is no such engine, its package is missing, or it takes no address.
    """
    check_name("--engine", name, ENGINES)
    if name == "ray":
        check_installed("ray", "--engine ray", extra="ray")
    elif address is not None:
        raise InputError("--address: names a Ray cluster; give --engine ray too")


def check_installed(package: str, user: str, *, extra: str, otherwise: str = "") -> None:
    """Check that a package is installed.

    Args:
        user: the option or feature that needs the package, for the message.
        extra: the extra of anyscore that installs it.
        otherwise: another way out, behind a comma.

    Raises:
        InputError: the package is missing.
    """
    if find_spec(package) is None:
        raise InputError(
            f"{user}: needs the package {package!r}, which is not installed; "
            f"pip install 'anyscore[{extra}]'{otherwise}"
        )
