"""The documentation site: its changes of pages and docstrings, and the names in its reference."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from helpers import machine

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(__file__).parents[2] / "src"
MODULES = {
    "anyscore": "anyscore/__init__.py",
    "anyscore.torch": "anyscore/torch/__init__.py",
    "anyscore.jax": "anyscore/jax/__init__.py",
    "anyscore.jax.nnx": "anyscore/jax/nnx.py",
    "anyscore.jax.linen": "anyscore/jax/linen.py",
    "anyscore.keras": "anyscore/keras/__init__.py",
    "anyscore.hf": "anyscore/hf/__init__.py",
    "anyscore.plot": "anyscore/plot/__init__.py",
}
"""Public modules → their files, which are read and not imported: Keras would choose a backend."""
NO_PAGE = {"anyscore.jax.Params"}
"""Public names that the reference leaves out: types of arguments."""


@pytest.fixture(scope="module")
def conf() -> Iterator[ModuleType]:
    machine.package("sphinx")
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("conf")
    sys.path.remove(str(DOCS))


def named() -> list[str]:
    """Return the full names that the reference documents."""
    found = []
    for page in (DOCS / "reference").glob("*.md"):
        module = ""
        for line in page.read_text().splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split()[-1]
            if entry := re.match(r"\.\. auto(?:class|function|data):: (\w+)", line):
                found.append(f"{module}.{entry[1]}")
    return found


def test_every_public_name_has_one_entry() -> None:
    names = named()
    assert len(set(names)) == len(names)
    for module, file in MODULES.items():
        for node in ast.parse((SOURCE / file).read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                public = {f"{module}.{name}" for name in ast.literal_eval(node.value)}
                assert public - set(names) <= NO_PAGE
                break
        else:
            raise AssertionError(f"{file} names nothing public")


def test_every_page_is_in_the_navigation() -> None:
    index = (DOCS / "index.md").read_text()
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    for page in pages - {"index"}:
        assert re.search(rf"^{page}$", index, re.MULTILINE), page


def test_rows_of_frameworks_become_tabs(conf: ModuleType) -> None:
    def block(name: str) -> str:
        return f"```python {name}\nx = '{name}'\n```\n"

    blocks = "\n".join(map(block, ("numpy", "pytorch", "jax")))
    found = conf.in_tabs(f"Before.\n\n{blocks}\n```text\n1\n```\n\nAfter.")
    assert re.findall(r"\{tab-item\} (\w+)", found) == ["PyTorch", "JAX"]
    assert found.startswith("Before.\n\n```python numpy")
    tabs = found.split("{tab-item}")[1:]
    assert all(re.search(r"x = .*\n```text\n1\n```\n", tab, re.DOTALL) for tab in tabs)
    assert found.endswith("After.")
    again = conf.in_tabs(f"{blocks}\n```text\n1\n```\n\n{blocks}\n```text\n2\n```\n")
    assert again.count("{tab-set}") == 2
    assert conf.in_tabs("```python\nx = 1\n```\n") == "```python\nx = 1\n```\n"


def test_a_link_outside_becomes_its_name(conf: ModuleType) -> None:
    text = "[a](x.md) [b](../CITATION.cff) [c](../../src/)"
    assert conf.without_links_outside(text) == "[a](x.md) b c"
    assert conf.without_links_outside(text, depth=1) == "[a](x.md) [b](../CITATION.cff) c"


def test_docstrings_become_blocks(conf: ModuleType) -> None:
    text = """Attend |a| * b, as in *Dive into Deep
Learning*, (*lead, T).

    s = a * b

mask: booleans,
and more of them.
width: the |width|; see the page
biases of the documentation.

Raises:
    ValueError: Wrong |input|, as `a * b`.

>>> 2 * 3
6
"""
    assert conf.as_blocks(text.split("\n")) == [
        r"Attend \|a\| \* b, as in *Dive into Deep", r"Learning*, (\*lead, T).", "",
        ".. code-block:: none", "", "    s = a * b", "",
        "``mask``", "    booleans,", "    and more of them.",
        "``width``", r"    the \|width\|; see the page :doc:`/biases`.", "",
        "Raises:", r"    ValueError: Wrong \|input\|, as `a * b`.", "", ">>> 2 * 3", "6", "",
    ]  # fmt: skip


def test_the_command_line_has_every_option() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        page = importlib.import_module("command_line").page()
    finally:
        sys.path.remove(str(DOCS))
    for part in ("## anyscore compare", "## anyscore info", "`--minutes`", "`PAIRS`", "**Try it**"):
        assert part in page
    assert "[bold]" not in page
    assert "[/]" not in page
