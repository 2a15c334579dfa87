"""The reference of the command line, as Markdown, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer

from anyscore.lab.cli import app


def page() -> str:
    """Return a section for each command: its help, its arguments and its options."""
    commands: Any = typer.main.get_command(app)
    return "\n\n".join(_section(name, command) for name, command in commands.commands.items())


def _section(name: str, command: Any) -> str:
    groups: dict[str, list[str]] = {}
    for parameter in command.params:
        if "--help" in parameter.opts:
            continue
        group = getattr(parameter, "rich_help_panel", None) or "Options"
        is_argument = parameter.param_type_name == "argument"
        groups.setdefault("Arguments" if is_argument else group, []).append(_row(parameter))
    tables = [
        "\n".join([f"**{group}**", "", "| | |", "|---|---|", *rows])
        for group, rows in groups.items()
    ]
    return "\n\n".join([f"## anyscore {name}", _markdown(command.help or ""), *tables])


def _row(parameter: Any) -> str:
    names = [parameter.name.upper()] if parameter.param_type_name == "argument" else parameter.opts
    names = [*names, *parameter.secondary_opts]
    text = " ".join(_markdown(parameter.help or "").split()).replace("|", "\\|")
    default, shown = parameter.default, getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        text = f"{text} Default: {shown}."
    elif default not in (None, False, (), []) and not callable(default):
        text = f"{text} Default: `{getattr(default, 'value', default)}`."
    return f"| {', '.join(f'`{name}`' for name in names)} | {text} |"


def _markdown(text: str) -> str:
    """Return a help text of Rich as Markdown; tags are bold or are dropped."""
    text = inspect.cleandoc(text).replace("\f", "")
    text = re.sub(r"\[bold\](.*?)\[/(?:bold)?\]", r"**\1**", text)
    return re.sub(r"(?<!\\)\[/?(?:[a-z]+)?\]", "", text).replace("\\[", "[")
