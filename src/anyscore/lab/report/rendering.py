"""Templates become pages; their filters format words and numbers, and escape names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from anyscore import __version__
from anyscore.lab.forms import numbers
from anyscore.lab.phrases import counted, listed, minus, number, percent, visible
from anyscore.plot.page import as_data, document, joined_modules

_TEMPLATES = "lab/report/templates"


def render_page(
    template: str,
    title: str,
    *,
    folder: str = _TEMPLATES,
    styles: Sequence[str] = ("report.css",),
    script: str = "",
    **content: Any,
) -> bytes:
    """Return a page as one HTML file, by default in the look of a report.

    Args:
        template: the name of the template of its body.
        folder: of the template and of its style and script, below `anyscore`.
        styles, script: files of the page's CSS, and the one of its JavaScript.
        content: variables of the template.
    """
    environment = _environment(folder, autoescape=True)
    loader = environment.loader
    assert loader is not None
    css = "\n".join(loader.get_source(environment, name)[0] for name in styles)
    body = environment.get_template(template).render(**content)
    return document(
        escape(visible(title)),
        body,
        style=css,
        script=joined_modules(f"{folder}/{script}") if script else "",
        generator=f"anyscore {__version__}",
    )


def render_text(template: str, **content: Any) -> bytes:
    """Return a text, such as a page in Markdown, from its template."""
    environment = _environment(_TEMPLATES, autoescape=False)
    return environment.get_template(template).render(**content).encode()


def _environment(folder: str, *, autoescape: bool) -> Environment:
    environment = Environment(
        loader=PackageLoader("anyscore", folder),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_seen,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "p": _p,
        "formula": _formula,
        "counted": counted,
        "listed": listed,
        "plain": _plain,
        "named": _named,
        "data": lambda value: Markup(as_data(value)),
    }
    return environment


def _seen(value: Any) -> Any:
    """Remove the characters that no page may hold."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\t".join(map(visible, value.split("\t")))


def _p(value: object) -> str:
    """Return a probability, never rounded to nothing."""
    finite = numbers([value])
    if not finite:
        return "—"
    return "< 0.001" if finite[0] < 0.001 else f"{finite[0]:.3f}"


def _plain(value: object) -> str:
    """Return a setting or fact of any kind in words."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return minus(f"{value:,}")
    if isinstance(value, float):
        return minus(f"{value:g}")
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)


def _named(sentence: str, names: list[str]) -> Markup:
    """Set off the names of scores and options in a sentence, and keep numbers with their units."""
    sentence = visible(sentence)
    sentence = re.sub(r"(?<=\d) (?=%|ms|points|epoch|times|seeds?|s\b)", "\u00a0", sentence)
    longest_first = sorted(filter(None, map(visible, names)), key=len, reverse=True)
    pattern = "|".join([r"--\w[\w-]*", *map(re.escape, longest_first)])
    parts = re.split(rf"(?<![\w-])({pattern})(?![\w-])", sentence)
    option, name = '<span class="option">{}</span>', "<b><bdi>{}</bdi></b>"
    for i, part in enumerate(parts):
        kind = (option if part.startswith("--") else name) if i % 2 else "{}"
        parts[i] = Markup(kind).format(part)  # after splitting, matches have odd indices
    return Markup("").join(parts)


def _formula(text: str) -> Markup:
    """Set the subscripts of a formula's letters low, as in W_q."""
    parts = re.split(r"(?<=\b[^\W\d_])_(\w)\b", visible(text))
    return Markup("").join(
        Markup("<sub>{}</sub>" if i % 2 else "{}").format(part) for i, part in enumerate(parts)
    )
