"""`anyscore info`: versions, devices, and how each score would be computed here."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from anyscore.lab.cli.output import print_json
from anyscore.lab.console import PlainConsole


def info(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the same as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            help="Leave out the routes of scores, which take seconds.", show_default="off"
        ),
    ] = False,
) -> None:
    """Show versions and devices; for each framework and device, the route of each score and why.

    The calls have 1,024 tokens of width 64. On a device without kernels the reason states the
    memory that the reference needs.
    """
    from anyscore.lab.info import devices
    from anyscore.lab.installed import by_reason, record

    found = {**record(quiet=quiet), "devices": dict(devices())}
    if as_json:
        print_json(found)
        return
    console = PlainConsole()
    console.print(f"anyscore {found['anyscore']}, Python {found['python']}", highlight=False)
    table = Table("framework", "installed")
    for name, version in found["frameworks"].items():
        table.add_row(name, version or "no")
    console.print(table)
    table = Table("device", "what it is")
    for name, description in found["devices"].items():
        table.add_row(name, description)
    console.print(table)
    console.print(found["core"], highlight=False)
    table = Table("score", "formula")
    for name, formula in found["scores"].items():
        table.add_row(name, formula)
    console.print(table)
    if quiet:
        return
    table = Table("tensors of", "scores", "are computed by", "because", show_lines=True)
    for place, score_plans in found["plans"].items():
        if isinstance(score_plans, str):
            table.add_row(place, "", "", score_plans)
            continue
        for (route, reason), names in by_reason(score_plans).items():
            names_text = "all" if len(names) == len(score_plans) else ", ".join(names)
            table.add_row(place, names_text, route, reason)
    console.print(table)
