"""The options of `anyscore compare` that say where trials run, and what logs them."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from anyscore.lab.errors import InputError
from anyscore.lab.extras import ENGINES, LOGS, check_engine, check_log

_PANEL = "The comparison"

EngineOption = Annotated[
    str,
    typer.Option(
        help=f"What carries the trials: {' or '.join(ENGINES)}, the machines of a Ray cluster.",
        rich_help_panel=_PANEL,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: of the cluster.",
        show_default="$RAY_ADDRESS, or this machine",
        rich_help_panel=_PANEL,
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(help=f"Curves for {' or '.join(LOGS)} too.", rich_help_panel=_PANEL),
]


def check_machines(
    engine: str, address: str | None, log: str | None, *, jobs: int, tune: int, stdin: bool
) -> None:
    """Raise InputError where these options are not known, not installed or not for each other."""
    check_log(log)
    check_engine(engine, address)
    if under_torchrun():
        if engine != "processes" or jobs > 1:
            raise InputError(
                "--engine, --jobs: under torchrun all processes train one model at a time; "
                "leave them out, or start without torchrun"
            )
        if tune:
            raise InputError(
                "--tune: under torchrun one model is trained at a time; search first without "
                "torchrun, and give the --learning-rate that it finds"
            )
        if stdin:
            raise InputError("-: under torchrun there is no standard input; give a file")


def under_torchrun() -> bool:
    """Tell whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def cores(device: str) -> int:
    """How many trials a device has room for side by side."""
    if device != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
