"""`anyscore info`: versions, devices, and how each score would be computed here."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anyscore import __version__
from anyscore.lab.cli.output import print_json
from anyscore.layers import SCORES


def info(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option(help="Do not ask the frameworks, which takes seconds.")
    ] = False,
) -> None:
    """Show versions, devices, and how each score would be computed here, and why."""
    from anyscore.lab.info import core, devices, frameworks
    from anyscore.lab.plans import plans

    known = frameworks()
    asked = [x.package for x in known if x.version and x.package != "keras"]
    computed = {} if quiet else plans(asked)
    if as_json:
        record = {
            "anyscore": __version__,
            "python": sys.version.split()[0],
            "frameworks": {x.name: x.version for x in known},
            "devices": dict(devices()),
            "core": core(),
            "scores": {name: score.formula for name, score in SCORES.items()},
            "plans": {
                place: found
                if isinstance(found, str)
                else {name: asdict(plan) for name, plan in found.items()}
                for place, found in computed.items()
            },
        }
        print_json(record)
        return
    console = Console()
    console.print(f"anyscore {__version__}, Python {sys.version.split()[0]}", highlight=False)
    table = Table("framework", "installed")
    for framework in known:
        table.add_row(framework.name, framework.version or "no")
    console.print(table)
    table = Table("device", "what it is")
    for name, description in devices():
        table.add_row(name, description)
    console.print(table)
    console.print(core(), markup=False, highlight=False)
    table = Table("score", "formula")
    for name, score in SCORES.items():
        table.add_row(name, escape(score.formula))
    console.print(table)
    if quiet:
        return
    table = Table("tensors of", "scores", "are computed by", "because", show_lines=True)
    for place, found in computed.items():
        if isinstance(found, str):
            table.add_row(place, "", "", escape(found))
            continue
        reasons: dict[Any, list[str]] = {}
        for name, plan in found.items():
            reasons.setdefault(plan, []).append(name)
        for plan, names in reasons.items():
            said = "all" if len(names) == len(SCORES) else ", ".join(names)
            table.add_row(place, said, plan.route, escape(plan.reason))
    console.print(table)
