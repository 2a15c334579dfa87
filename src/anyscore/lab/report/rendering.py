"""The templates of pages, with the one style sheet and script that a page may hold."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from anyscore.lab.phrases import visible
from anyscore.plot.page import THEME, policy


def templates(*, script: str | None = None) -> tuple[Environment, dict[str, Any]]:
    """Make the environment that renders pages, and what each page is given.

    Args:
        script: the file of the page's script; without it the policy allows none.

    Returns:
        The environment; and "style", "script" and "policy" for a page.
    """
    environment = Environment(
        loader=PackageLoader("anyscore.lab.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    loader = environment.loader
    assert loader is not None
    # They stand in the page as they are.
    style, script_text = (
        loader.get_source(environment, name)[0] if name else "" for name in ("report.css", script)
    )
    style = f"{THEME}\n{style}"
    return environment, {
        "style": Markup(style),
        "script": Markup(script_text),
        "policy": policy(style, script_text),
    }


def _seen(value: Any) -> Any:
    """Take the characters that no page may hold out of a text."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\t".join(map(visible, value.split("\t")))
