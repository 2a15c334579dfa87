"""Links, file names in prose and maps of folders name existing files."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath

import pytest

from links import (
    Mistake,
    Repository,
    anchors,
    dead_links,
    dead_mentions,
    dead_names,
    in_git,
    missing_in_map,
)

ROOT = Path(__file__).parents[2]
if not (ROOT / ".git").exists():
    pytest.skip("not a checkout of git", allow_module_level=True)
REPOSITORY = in_git(ROOT)
PAGES = sorted(
    file
    for file in REPOSITORY.files
    if file
    in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")
    or file in ("csrc/README.md", "src/anyscore/lab/README.md")
    or file in ("CODE_OF_CONDUCT.md", "THIRD_PARTY.md")
    or (file.startswith("docs/") and file.endswith(".md"))
    or (file.startswith("tests/") and file.endswith("/README.md"))
)
SOURCES = sorted(
    file
    for file in REPOSITORY.files
    if PurePosixPath(file).suffix in (".py", ".h", ".cpp") or file in ("Makefile", "CMakeLists.txt")
)
ALLOWED = frozenset({"report.html", "bench.md"})
"""Names of files that programs write or users have."""


def told(mistakes: list[Mistake]) -> str:
    return "\n".join(f"{where}: {what}" for where, what in mistakes)


def test_links_lead_to_files_and_headings() -> None:
    mistakes = [mistake for page in PAGES for mistake in dead_links(REPOSITORY, page)]
    assert not mistakes, told(mistakes)


def test_names_in_prose_name_files() -> None:
    mistakes = [mistake for page in PAGES for mistake in dead_names(REPOSITORY, page, ALLOWED)]
    assert not mistakes, told(mistakes)


def test_docstrings_and_comments_name_files() -> None:
    mistakes = [one for path in SOURCES for one in dead_mentions(REPOSITORY, path, ALLOWED)]
    assert not mistakes, told(mistakes)


ROOMS = "runtime", "simd", "scorers", "attention", "bindings"  # of the core, the lowest first


@pytest.mark.parametrize("room", ROOMS)
def test_the_map_names_every_file_of_the_core(room: str) -> None:
    assert not missing_in_map(REPOSITORY, "csrc/README.md", room, inside="csrc")


def test_a_folder_of_the_core_includes_files_of_lower_ones_alone() -> None:
    files = [PurePosixPath(file) for file in REPOSITORY.files if file.startswith("csrc/")]
    for file in files:
        if file.name != "README.md":
            allowed = ROOMS[: ROOMS.index(file.parent.name) + 1]
            text = REPOSITORY.text(str(file))
            included = re.findall(r'#include "(.*)/.*"', text)
            assert set(included) <= set(allowed), file
            assert len(included) == text.count('#include "'), file


MAPS = (
    "backends backends/jax backends/reference backends/torch call functional functional/cache hf "
    "kernels lab/play lab/prove lab/report lab/translate lab/verdict layers masks modifiers plot "
    "score torch torch/pointers torch/speech"
)


@pytest.mark.parametrize("package", MAPS.split())
def test_the_docstring_of_a_package_names_its_files(package: str) -> None:
    folder = ROOT / "src/anyscore" / package
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    words = set(re.findall(r"\w+", said or ""))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert not (files | folders) - words


FILES = [
    "README.md",
    "docs/a_page.md",
    "src/core.py",
    "src/lab/trials.py",
    "csrc/rows.h",
    "csrc/x.cpp",
]


@pytest.fixture
def small(tmp_path: Path) -> Repository:
    """Return a repository of good files; a test spoils one of them."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# A page: `code`, _twice_ & more\n\n## Twice\n\n## Twice\n")
    return Repository(tmp_path, FILES)


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("docs/a_page.md", None),
        ("docs/a_page.md#a-page-code-twice--more", None),
        ("docs/a_page.md#twice-1", None),
        ("#twice", None),
        ("docs/", None),
        ("https://example.org/none.md#none", None),
        ("docs/no_page.md", "to no file in git"),
        ("a_page.md", "to no file in git"),
        ("docs/a_page.md#thrice", "to no heading of docs/a_page.md"),
        ("docs/a_page.md#twice-2", "to no heading of docs/a_page.md"),
        ("#thrice", "to no heading of README.md"),
    ],
)
def test_a_dead_link_is_found(small: Repository, link: str, why: str | None) -> None:
    page = small.root / "README.md"
    page.write_text(page.read_text() + f"\n| [a]({link}) |\n|---|\n")
    assert anchors(page.read_text()) >= {"twice", "twice-1"}
    found = list(dead_links(small, "README.md"))
    assert found == (
        [] if why is None else [Mistake("README.md:7", f"the link {link} leads {why}")]
    )


@pytest.mark.parametrize("picture", ["docs/a_picture.png", "a_page.md"])
def test_a_dead_picture_is_found(small: Repository, picture: str) -> None:
    (small.root / "README.md").write_text(f"![A picture]({picture})")
    assert len(list(dead_links(small, "README.md"))) == 1


NAMES = [
    ("csrc/rows.h", True),
    ("rows.h", True),
    ("lab/trials.py", True),
    ("src/*/tri*.py", True),
    ("csrc/", True),
    ("python src/core.py --all", True),
    ("src/core.py::test_it", True),
    ("users.tsv", True),
    ("a/b", True),
    ("csrc/log1p_of.h", False),
    ("log1p_of.h", False),
    ("core/trials.py", False),
    ("src/tri*.py", False),
    ("lab/places", False),
    ("python src/gone.py --all", False),
]


@pytest.mark.parametrize(("name", "good"), NAMES)
def test_a_dead_name_in_prose_is_found(small: Repository, name: str, good: bool) -> None:
    (small.root / "docs/a_page.md").write_text(f"One.\n\nTwo `{name}`.\n\n```sh\ngone.py\n```\n")
    found = list(dead_names(small, "docs/a_page.md", frozenset({"users.tsv"})))
    assert [where for where, _ in found] == ([] if good else ["docs/a_page.md:3"])
    word = next((word for word in name.split() if word.endswith(".py")), name)
    assert not list(dead_names(small, "docs/a_page.md", frozenset({word})))


def test_names_of_a_table_lie_in_its_folder(small: Repository) -> None:
    table = "| file in `lab` | idea |\n|---|---|\n| `trials.py` | good |\n| `core.py` | of src |\n"
    (small.root / "README.md").write_text(f"{table}\n`core.py` is good here.\n")
    assert list(dead_names(small, "README.md", frozenset())) == [
        Mistake("README.md:4", "core.py is no file in git")
    ]


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        ("src/core.py", '"""See docs/a_page.md, core.py."""\n', []),
        ("src/core.py", '"""See\n\ndocs/gone.md."""\n', [1]),
        ("src/core.py", "x = 1\n'Of gone.py'\n\n\ny = 'gone.py'  # rows.h; gone.h\n", [2, 5]),
        ("csrc/rows.h", '#include "gone.h"\n// lab/trials.py\n/* one\n gone.cpp */\n', [3]),
        ("Makefile", "a: gone.md  ## docs/a_page.md and docs/gone.md\n", [1]),
    ],
)
def test_a_dead_name_in_a_docstring_or_comment_is_found(
    small: Repository, path: str, text: str, lines: list[int]
) -> None:
    (small.root / path).write_text(text)
    found = list(dead_mentions(small, path, frozenset()))
    assert [where for where, _ in found] == [f"{path}:{line}" for line in lines]
    assert all("gone" in what for _, what in found)
    assert not list(
        dead_mentions(
            small, path, frozenset(f"gone.{x}" for x in ("py", "h", "cpp")) | {"docs/gone.md"}
        )
    )


def test_a_file_that_the_map_leaves_out_is_found(small: Repository) -> None:
    table = "| file in `csrc` | idea |\n|---|---|\n| `rows.h` | rows |\n"
    (small.root / "README.md").write_text(f"{table}\n`x.cpp` is named beside the table alone.\n")
    assert missing_in_map(small, "README.md", "csrc") == {"x.cpp"}
    (small.root / "README.md").write_text("no map")
    assert missing_in_map(small, "README.md", "csrc") == {"rows.h", "x.cpp"}
