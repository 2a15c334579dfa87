"""The documentation site: `make docs` builds it into build/site, with warnings as errors.

Pages are CommonMark, which code hosts render too. Five changes are made on the way:

- Blocks of one example in several frameworks become tabs, which switch together.
- Formulas become MathML, which browsers show without a script and without a network.
- The front page gets a page to play with, whose models `make docs` trains.
- A link to a file outside of docs/ becomes its name: the site holds no source files.
- Docstrings get the blocks that Napoleon reads, see `as_blocks`. Names in backticks become links.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "docs"))

import command_line
import support

from page_examples.page import FRAMEWORKS  # blocks of NumPy are for all of them

project = "anyscore"
author = copyright = "The anyscore developers"
release = version = version_of("anyscore")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]
smartquotes = False  # options begin with two hyphens

html_theme = "furo"
html_title = "anyscore"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["../build/play/page"]
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_domain_indices = False
html_show_search_summary = False  # files of a folder cannot be fetched

autodoc_typehints = "none"
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_param = False  # names with one text stay one entry
napoleon_use_rtype = False  # "A `Step`: text" stays one entry
napoleon_custom_sections = [("Attributes", "params_style")]
default_role = "py:obj"  # a link where the name is on a page, else code

GENERATED = {"reference/command_line": command_line.page, "install": support.page}
"""Pages → functions whose text ends the page."""
INCLUDED = {"changelog": "CHANGELOG.md", "security": "SECURITY.md"}
"""Pages of the site → the files of the checkout whose text these are."""

PLAY = """
<iframe class="play" src="play.html" title="Five models to play with" loading="lazy"></iframe>

<a href="play.html">The page to play with, by itself</a>
"""
"""The part of the front page that runs models; `make` writes play.html."""

_NAMES = "|".join(FRAMEWORKS)
_ONE = re.compile(rf"```python (?P<name>{_NAMES})\b[^\n]*\n(?P<source>.*?)\n```\n", re.DOTALL)
_PLAIN = re.sub(r"[?]P<[a-z]+>", "?:", _ONE.pattern)
_ROW = re.compile(
    rf"(?P<blocks>{_PLAIN}(?:\n{_PLAIN})*)(?P<printed>\n```text\n.*?\n```\n)?", re.DOTALL
)
_LINK_UP = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)[^)]*\)")
_FIELD = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): ")
_IN_BLOCK = re.compile(r" +[a-z_]\w*(?: \(.*\))?: ")
_PAGE = re.compile(r"\b([Tt]he)\s+page\s+(\w+)\s+of\s+the\s+documentation")
_FILE = re.compile(r"\bdocs/(\w+)\.md\b")
_NUMBER = re.compile(r"[−-]?[\d.]+e-?\d+")
_CODE_OR_EMPHASIS = re.compile(r"(`+[^`]*`+|\*[A-Za-z][A-Za-z \n]*[A-Za-z]\*)")


def in_tabs(text: str) -> str:
    """Return a page with each row of framework blocks, and the text they print, as tabs."""

    def tabs(row: re.Match[str]) -> str:
        lines = ["`````{tab-set}", ":sync-group: framework", ""]
        for block in _ONE.finditer(row["blocks"]):
            name = block["name"]
            lines += [f"````{{tab-item}} {FRAMEWORKS[name]}", f":sync: {name}", ""]
            lines += ["```python", block["source"], "```", row["printed"] or "", "````", ""]
        return "\n".join([*lines, "`````", ""])

    return _ROW.sub(tabs, text)


def without_links_outside(text: str, depth: int = 0) -> str:
    """Return a page, `depth` folders below docs/, with links to files outside of docs/ as names."""

    def link(found: re.Match[str]) -> str:
        return found[1] if found[2].count("../") > depth else found[0]

    return _LINK_UP.sub(link, text)


def as_blocks(lines: list[str]) -> list[str]:
    """Return a docstring in the form that Napoleon and docutils read.

    "name: text" at the margin becomes a list; an indented formula a literal block. "The page X of
    the documentation" and the names of files in docs/ become links. Stars and bars of a text are
    escaped.
    """
    paragraphs = "\n".join(lines).split("\n\n")
    found, before = [], "."
    for paragraph in paragraphs:
        is_literal = bool(paragraph) and all(
            line.startswith("    ") for line in paragraph.splitlines()
        )
        if is_literal and not before.rstrip().endswith(":") and not _IN_BLOCK.match(paragraph):
            found.append(".. code-block:: none\n\n" + paragraph)
        elif paragraph.lstrip().startswith(">>>"):
            found.append(paragraph)
        else:
            found.append(_escaped(_as_list(paragraph)))
        before = paragraph
    return "\n\n".join(found).split("\n")


def _as_list(paragraph: str) -> str:
    """Return a paragraph that begins with "name: text" as a list of names and texts."""
    if not _FIELD.match(paragraph):
        return paragraph
    lines = []
    for line in paragraph.splitlines():
        field = _FIELD.match(line)
        if field:
            lines += [f"``{field[1]}``", "    " + line[field.end() :]]
        else:
            lines.append("    " + line.strip())
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Return a text with links to pages, and with stars and bars escaped but for emphasis."""
    text = _FILE.sub(r":doc:`/\1`", _PAGE.sub(r"\1 page :doc:`/\2`", text))
    parts = _CODE_OR_EMPHASIS.split(text)
    return "".join(x if i % 2 else re.sub(r"[*|]", r"\\\g<0>", x) for i, x in enumerate(parts))


def _as_mathml(translator: Any, node: Any) -> None:
    """Write a formula of LaTeX as MathML."""
    display = "block" if isinstance(node, nodes.math_block) else "inline"
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def _read(app: Any, name: str, source: list[str]) -> None:
    if name in GENERATED:
        source[0] = source[0].replace("The site shows a table here, made", "This table is made")
        source[0] += "\n" + GENERATED[name]()
    if name in INCLUDED:
        text = (Path(__file__).parents[1] / INCLUDED[name]).read_text()
        text = re.sub(r"\]\((?!https?:|#)", "](../", text)  # as from within docs/
        text = re.sub(r"\[docs/\w+\.md\]\(", "[](", text)  # the title of the page
        source[0] = text.replace("](../docs/", "](")
    for page, file in INCLUDED.items():
        source[0] = source[0].replace(f"[{file}](../{file}", f"[{page.title()}]({page}.md")
    source[0] = source[0].replace("<!-- play -->", PLAY)
    source[0] = in_tabs(without_links_outside(source[0], name.count("/")))


def _percent(app: Any, tree: Any) -> None:
    """Keep each percent sign of the prose on the line of its number."""
    for text in [*tree.findall(nodes.Text)]:
        if not isinstance(text.parent, (nodes.literal, nodes.literal_block)):
            text.parent.replace(text, nodes.Text(re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)))


def _cells(app: Any, tree: Any) -> None:
    """Mark the cells of tables for the style sheet, which says where their lines may break."""
    cells = [cell for body in tree.findall(nodes.tbody) for cell in body.findall(nodes.entry)]
    for cell in cells:
        text = cell.astext()
        if _NUMBER.fullmatch(text):
            cell["classes"].append("number")
        elif len(text) <= 12:
            cell["classes"].append("short")
        elif len(text) > 24 and text.count(" ") > 2:
            cell["classes"].append("sentence")


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_blocks(lines)


def _signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Return the signature that users need, or None for autodoc's.

    Users do not make objects of a class with attributes. A class of Keras hides its constructor.
    """
    if what == "class" and "\nAttributes:" in (inspect.getdoc(obj) or ""):
        return "", ""
    if what == "class" and signature == "(*args, **kwargs)":
        whole = inspect.signature(obj.__init__)
        own = [x.replace(annotation=x.empty) for x in [*whole.parameters.values()][1:]]
        return str(whole.replace(parameters=own, return_annotation=whole.empty)), ""
    return None


def _in_anyscore(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Return a link for a name of `anyscore` in the docstrings of its modules."""
    if node.get("refdomain") != "py" or node["reftarget"].startswith("anyscore."):
        return None
    target, py = f"anyscore.{node['reftarget']}", env.get_domain("py")
    return py.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content)


REPLACED = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="This page" class="toc-drawer',
    '<th class="head"><p></p></th>': '<td class="head"></td>',
    "<pre>": '<pre tabindex="0">',
    '<span class="pre">--': '<span class="pre option">--',
    "</strong> -- ": "</strong> – ",
    "</code> -- ": "</code> – ",
    "</em> -- ": "</em> – ",
    '<div class="math-wrapper': '<div tabindex="0" class="math-wrapper',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}
"""What the theme writes → the same for readers without a mouse or eyes, or with a phone."""


def _accessible(app: Any, exception: Exception | None) -> None:
    for file in Path(app.outdir).rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        for old, new in REPLACED.items():
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Connect the changes; that of docstrings comes before Napoleon's."""
    app.connect("build-finished", _accessible)
    app.connect("source-read", _read)
    app.connect("doctree-read", _percent)
    app.connect("doctree-read", _cells)
    app.connect("autodoc-process-docstring", _docstring, priority=100)
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _in_anyscore)
    for kind in (nodes.math, nodes.math_block):
        app.add_node(kind, override=True, html=(_as_mathml, None))
