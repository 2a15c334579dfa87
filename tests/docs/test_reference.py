"""Docstrings of public names: arguments, errors, sources and examples; pages that they name.

Sources are read, not imported: Keras would choose a backend, and MXNet has its own environment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from anyscore.layers.texts import TEXTS, with_texts
from anyscore.score import SCORES

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(__file__).parents[2] / "src"
MODULES = (
    *("anyscore", "anyscore.torch", "anyscore.jax", "anyscore.jax.nnx"),
    *("anyscore.jax.linen", "anyscore.keras"),
    *("anyscore.mxnet", "anyscore.hf", "anyscore.plot"),
)
MODULES_OF_FLAX = "anyscore.jax.nnx.", "anyscore.jax.linen."
"""Layers as modules; the layers themselves have formulas and sources."""
OWN_SCORES = "Factors", "Outer", "Init", "Projection"
"""Names of `anyscore.score` on the page of scores."""
TYPES = {"anyscore.jax.Params"}
"""Public names that are types of arguments."""
MXNET = {
    "Attention": ["__call__", "scores", "prepare_keys"],
    "MultiHeadAttention": ["__call__", "prepare_keys"],
    "SelfAttention": ["__call__"],
}
"""Methods of the layers of MXNet, which have no page that lists them."""
CANNOT_FAIL = {
    "anyscore.hf.register",
    *(f"anyscore.{score.__name__}" for score in SCORES.values()),
    *(f"anyscore.{name}" for name in ("AttentionOutput", "Plan", "PreparedKeys", "Cache")),
    *(f"anyscore.torch.{name}" for name in ("PointerKeys", "Decoded")),
    *(f"anyscore.score.{name}" for name in ("Factors", "Init", "Projection")),
    *("anyscore.Score.parameters", "anyscore.Recording.examples"),
    *("anyscore.Cache.capacity", "anyscore.Cache.keys"),
    "anyscore.torch.Attention.attention_weights",
    "anyscore.torch.Attention.reset_parameters",
    "anyscore.jax.Attention.numpy_parameters",
    "anyscore.jax.linen.Attention.numpy_parameters",
}
"""Names without errors of their own; the call that uses a score checks it."""
MADE_BY_OTHERS = {"Init", "Factors"}
"""Names that an example gets from a method; so are results and bases, which have attributes."""
PUBLISHED = {
    *(score.__name__ for score in SCORES.values()),
    *("Relative", "ALiBi", "Sigmoid", "MultiHeadAttention"),
    *("DotProductAttention", "AdditiveAttention", "MLPAttention"),
    *("GATConv", "GATv2Conv", "TransformerConv", "Pointer", "LocationSensitive"),
    *("ForwardAttention", "MonotonicAttention", "MoChA"),
    *("forward_alignment", "monotonic_alignment", "chunkwise"),
}
"""Names whose formula is published."""

Definition = ast.ClassDef | ast.FunctionDef


class Place(NamedTuple):
    """A definition in a file of the package."""

    module: str
    node: Definition


@cache
def tree_of(module: str) -> ast.Module:
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def find(module: str, name: str) -> Place | None:
    """Return the definition that a name means in a module; None outside of the package."""
    first, _, rest = name.partition(".")
    for node in tree_of(module).body:
        if isinstance(node, Definition) and node.name == first:
            return Place(module, node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anyscore"):
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    source = str(node.module)
                    return (
                        find(f"{source}.{alias.name}", rest) if rest else find(source, alias.name)
                    )
    return None


def lineage(place: Place) -> Iterator[Place]:
    """Yield a class and its bases in the package, in the order in which Python looks names up."""
    yield place
    assert isinstance(place.node, ast.ClassDef)
    for base in place.node.bases:
        inner = base.value if isinstance(base, ast.Subscript) else base
        found = find(place.module, ast.unparse(inner))
        if found is not None:
            yield from lineage(found)


def method(place: Place, name: str) -> Place | None:
    for one in lineage(place):
        for node in one.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return Place(one.module, node)
    return None


def docstring(node: Definition) -> str:
    text = ast.get_docstring(node) or ""
    if "with_texts" in map(ast.unparse, node.decorator_list):
        return with_texts(type("X", (), {"__doc__": text})).__doc__ or ""
    return text


def of_function(node: ast.FunctionDef, bound: bool) -> list[str]:
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args)][bound:]
    names += [x.arg for x in (a.vararg, *a.kwonlyargs, a.kwarg) if x is not None]
    return names


def of_class(place: Place) -> list[str]:
    """Return the parameters of a constructor, or the fields of a dataclass or a named tuple."""
    init = method(place, "__init__")
    if init is not None:
        assert isinstance(init.node, ast.FunctionDef)
        return of_function(init.node, bound=True)
    names, derived = [], set()
    for node in place.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.target.id == "derived" and node.value is not None:
                derived = set(ast.literal_eval(node.value))
            elif "ClassVar" not in (text := ast.unparse(node)) and "init=False" not in text:
                names.append(node.target.id)
    is_record = any("dataclass" in ast.unparse(x) for x in place.node.decorator_list)
    is_tuple = isinstance(place.node, ast.ClassDef) and "NamedTuple" in map(
        ast.unparse, place.node.bases
    )
    return [name for name in names if name not in derived] if is_record or is_tuple else []


def described(text: str) -> list[str]:
    """Return the names in the Args or Attributes section of a docstring."""
    names = []
    for block in re.findall(
        r"^(?:Args|Attributes):\n((?:    .*\n|\n(?=    ))+)", text + "\n", re.M
    ):
        for line in re.findall(r"^    (\w+(?:, \w+)*): ", block, re.M):
            names += line.split(", ")
    return names


def public() -> dict[str, Place]:
    found = {}
    for module in MODULES:
        for node in tree_of(module).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                for name in ast.literal_eval(node.value):
                    if f"{module}.{name}" not in TYPES:
                        place = find(module, name)
                        assert place is not None, name
                        found[f"{module}.{name}"] = place
    for name in OWN_SCORES:
        place = find("anyscore.score", name)
        assert place is not None
        found[f"anyscore.score.{name}"] = place
    return found


def methods(names: dict[str, Place]) -> dict[str, Place]:
    """Return the methods and properties that pages of the reference list."""
    listed: dict[str, list[str]] = {f"anyscore.mxnet.{x}": y for x, y in MXNET.items()}
    for page in (DOCS / "reference").glob("*.md"):
        module = owner = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split()[-1]
            if entry := re.match(r"\.\. autoclass:: (\w+)", line):
                owner = f"{module}.{entry[1]}"
            if members := re.match(r"   :members: (.+)", line):
                listed[owner] = members[1].split(", ")
    found = {}
    for owner, members_of in listed.items():
        for name in members_of:
            place = method(names[owner], name)
            assert place is not None, f"{owner}.{name}"
            found[f"{owner}.{name}"] = place
    return found


PUBLIC = public()
METHODS = methods(PUBLIC)


def test_lists_name_what_is_there() -> None:
    assert {*PUBLIC, *METHODS} >= CANNOT_FAIL
    assert {place.node.name for place in PUBLIC.values()} >= PUBLISHED | MADE_BY_OTHERS


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_arguments_are_those_of_the_signature(name: str) -> None:
    place = PUBLIC.get(name) or METHODS[name]
    if isinstance(place.node, ast.FunctionDef):
        expected = of_function(place.node, bound=name in METHODS)
    else:
        expected = of_class(place)
    names = described(docstring(place.node))
    assert len(set(names)) == len(names)
    has_attributes = re.search("^Attributes:$", docstring(place.node), re.M)
    if has_attributes and not expected:  # of a base class
        assert name in ("anyscore.Mask", "anyscore.Score")
        return
    assert set(names) == set(expected)


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_a_summary_of_one_sentence_comes_first(name: str) -> None:
    place = PUBLIC.get(name) or METHODS[name]
    first, _, rest = docstring(place.node).strip().partition("\n")
    assert re.fullmatch(r"[A-Z`].*\.", first), first
    assert rest == "" or rest.startswith("\n")


def may_raise(node: Definition) -> bool:
    """Return whether a function, or a constructor, raises an error or calls a check."""
    bodies: list[ast.AST] = [node]
    if isinstance(node, ast.ClassDef):
        made = "__init__", "__post_init__"
        bodies = [x for x in node.body if isinstance(x, ast.FunctionDef) and x.name in made]
    for x in (x for body in bodies for x in ast.walk(body)):
        is_check = isinstance(x, ast.Call) and ast.unparse(x.func).startswith("check_")
        if isinstance(x, ast.Raise) or is_check:
            return True
    return False


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_errors_are_a_block(name: str) -> None:
    node = (PUBLIC.get(name) or METHODS[name]).node
    errors = re.search(r"^Raises:\n((?:    .*\n?)+)", docstring(node), re.M)
    if name in CANNOT_FAIL:
        assert errors is None
        assert not may_raise(node)
        return
    assert errors is not None, f"{name} has no block of errors"
    entries = re.split(r"\n    (?=\S)", errors[1].strip())
    for entry in entries:
        assert re.fullmatch(r"\w+(?:, \w+)*: [^.].*\.", entry, re.S), entry


def test_no_docstring_has_errors_in_a_line() -> None:
    """The site shows a block alone as a list of errors."""
    for path in (SOURCE / "anyscore").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Definition | ast.Module):
                text = ast.get_docstring(node) or ""
                assert not re.search(r"^Raises [A-Z]", text, re.M), f"{path}: {text}"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_has_an_example(name: str) -> None:
    node = PUBLIC[name].node
    text = docstring(node)
    lines = "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)", text, re.M))
    assert lines
    if node.name not in MADE_BY_OTHERS and not re.search(r"^Attributes:$", text, re.M):
        assert re.search(rf"\b{node.name}\b", lines), "the example shows another name"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_published_formula_has_its_source(name: str) -> None:
    node = PUBLIC[name].node
    if node.name in PUBLISHED and not name.startswith(MODULES_OF_FLAX):
        text = docstring(node)
        assert re.search(r"^Sources?: .*\b(?:19|20)\d\d\b", text, re.M), name
        assert re.search(r"\n\n    \S", text), f"{name} has no formula"


def test_every_score_is_in_the_table_of_its_page() -> None:
    page = (DOCS / "reference" / "scores.md").read_text(encoding="utf-8")
    for name, score in SCORES.items():
        assert f'| `"{name}"` | `{score.__name__}` |' in page


def test_docstrings_name_pages_of_the_site() -> None:
    """The site makes a link of "the page biases of the documentation"."""
    texts = [("texts.py", text) for text in TEXTS.values()]
    for path in (SOURCE / "anyscore").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Definition | ast.Module):
                texts.append((str(path), ast.get_docstring(node) or ""))
    named = set()
    for path, text in texts:
        pages = re.findall(r"\b[Tt]he\s+page\s+(\w+)\s+of\s+the\s+documentation", text)
        assert text.count("of the documentation") <= len(pages), path
        named |= {(path, page) for page in pages}
    assert {page for _, page in named} >= {"sinks", "normalizers"}
    for path, page in named:
        assert (DOCS / f"{page}.md").exists(), f"{path} names the page {page}"
