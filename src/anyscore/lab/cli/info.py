"""`anyscore info`: versions, devices, and how each score would be computed here."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from anyscore import __version__
from anyscore.lab.cli.output import print_json
from anyscore.lab.console import PlainConsole
from anyscore.score import SCORES


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

    installed = frameworks()
    packages = [
        framework.package
        for framework in installed
        if framework.version and framework.package != "keras"
    ]
    plans_by_place = {} if quiet else plans(packages)
    if as_json:
        record = {
            "anyscore": __version__,
            "python": sys.version.split()[0],
            "frameworks": {framework.name: framework.version for framework in installed},
            "devices": dict(devices()),
            "core": core(),
            "scores": {name: score.formula for name, score in SCORES.items()},
            "plans": {
                place: score_plans
                if isinstance(score_plans, str)
                else {name: asdict(plan) for name, plan in score_plans.items()}
                for place, score_plans in plans_by_place.items()
            },
        }
        print_json(record)
        return
    console = PlainConsole()
    console.print(f"anyscore {__version__}, Python {sys.version.split()[0]}", highlight=False)
    table = Table("framework", "installed")
    for framework in installed:
        table.add_row(framework.name, framework.version or "no")
    console.print(table)
    table = Table("device", "what it is")
    for name, description in devices():
        table.add_row(name, description)
    console.print(table)
    console.print(core(), highlight=False)
    table = Table("score", "formula")
    for name, score in SCORES.items():
        table.add_row(name, score.formula)
    console.print(table)
    if quiet:
        return
    table = Table("tensors of", "scores", "are computed by", "because", show_lines=True)
    for place, score_plans in plans_by_place.items():
        if isinstance(score_plans, str):
            table.add_row(place, "", "", score_plans)
            continue
        reasons: dict[Any, list[str]] = {}
        for name, plan in score_plans.items():
            reasons.setdefault(plan, []).append(name)
        for plan, names in reasons.items():
            names_text = "all" if len(names) == len(SCORES) else ", ".join(names)
            table.add_row(place, names_text, plan.route, plan.reason)
    console.print(table)
