"""Find links and file names that lead nowhere: in pages, in docstrings and in comments.

A page is Markdown. A link of a page must lead to a file in git, and to a heading if the link names
one. A file name between backticks must name a file or a folder in git.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ENDINGS = "py|h|cpp|md|toml|txt|yaml|png|js|html|css"
# Backticked words of these letters are paths if they have a slash or a file ending.
_PATH = re.compile(r"(?:\.{0,2}/)?[\w.*+-]+(?:/[\w.*+-]+)*/?")
_ENDS = re.compile(rf".+\.(?:{ENDINGS})")
# Docstrings and comments name pages, settings, and files of Python or C++.
_MENTIONED = re.compile(r"(?<![\w./*{}<-])[\w*-][\w./*-]*\.(?:md|toml|py|h|cpp)(?!\w|\.\w)")
_ROOM = re.compile(r"file in `([\w/.]+)`")  # the head of a table whose names are relative
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class Mistake(NamedTuple):
    """A link or a name that leads nowhere, and its place."""

    where: str
    what: str


class Repository:
    """The files in git by path from the root; `text` reads from disk."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self.root, self.files = root, frozenset(files)
        folders = {str(up) for file in files for up in PurePosixPath(file).parents}
        self.folders = frozenset(folders - {"."})
        self._by_end: dict[str, list[tuple[str, ...]]] = {}
        for path in (*self.files, *self.folders):
            parts = PurePosixPath(path).parts
            self._by_end.setdefault(parts[-1], []).append(parts)
        self._words = {part for path in self.folders for part in path.split("/")}

    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def names_folder(self, word: str) -> bool:
        """Return whether a folder anywhere has this name."""
        return word in self._words

    def has(self, name: str, room: str = "") -> bool:
        """Return whether a path in git ends with `name`; * matches any letters.

        room: the folder that must hold a name without a slash.
        """
        wanted = PurePosixPath(name).parts
        if wanted and wanted[0] == ".":
            wanted = wanted[1:]
        ends = [wanted[-1]] if "*" not in wanted[-1] else list(self._by_end)
        inside = PurePosixPath(room).parts if room and len(wanted) == 1 else ()
        for end in ends:
            for parts in self._by_end.get(end, ()):
                tail = parts[-len(wanted) :]
                same = len(tail) == len(wanted) and all(map(fnmatchcase, tail, wanted))
                if same and _lies_in(parts[: -len(wanted)], inside):
                    return True
        return False


def _lies_in(folder: tuple[str, ...], room: tuple[str, ...]) -> bool:
    starts = range(len(folder) - len(room) + 1)
    return any(folder[i : i + len(room)] == room for i in starts)


def in_git(root: Path) -> Repository:
    command = ["git", "-C", str(root), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Repository(root, [name for name in listed.split("\0") if name])


@cache
def tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    every = tokens(text)
    for opening, inline in pairwise(every):
        if opening.type == "heading_open":
            said = (x.content for x in inline.children or () if x.type in ("text", "code_inline"))
            words = "".join(said)
            kept = re.sub(r"[^\w\- ]", "", words.strip().lower())
            slug = kept.replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
            if found[slug]:
                found[f"{slug}-{found[slug]}"] = 0
    return set(found)


def dead_links(repository: Repository, page: str) -> Iterator[Mistake]:
    """Yield the relative links of a page that lead to no file in git, or to no heading."""
    for line, link in _links(tokens(repository.text(page))):
        if re.match(r"[a-z][a-z+.-]*:|//", link):  # a link to the network
            continue
        path, _, anchor = unquote(link).partition("#")
        target = _joined(page, path) if path else page
        if target not in repository.files | repository.folders:
            yield Mistake(f"{page}:{line}", f"the link {link} leads to no file in git")
        elif anchor and target.endswith(".md") and anchor not in anchors(repository.text(target)):
            yield Mistake(f"{page}:{line}", f"the link {link} leads to no heading of {target}")


def _links(every: list[Token]) -> Iterator[tuple[int, str]]:
    for token in every:
        for child in token.children or ():
            link = child.attrGet("href") or child.attrGet("src")
            if link:
                yield (token.map or [0])[0] + 1, str(link)


def _joined(page: str, path: str) -> str:
    parts: list[str] = []
    for part in (*PurePosixPath(page).parent.parts, *PurePosixPath(path).parts):
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def dead_names(repository: Repository, page: str, allowed: frozenset[str]) -> Iterator[Mistake]:
    """Yield the names between backticks in the prose of a page that name no file in git."""
    room, line = "", 0
    for token in tokens(repository.text(page)):
        line = token.map[0] + 1 if token.map else line
        if token.type == "table_close":
            room = ""
        if token.type == "inline" and (head := _ROOM.fullmatch(token.content)):
            room = head[1]
        for child in token.children or ():
            for name in _paths(repository, child.content) if child.type == "code_inline" else ():
                if name not in allowed and not repository.has(name, room):
                    yield Mistake(f"{page}:{line}", f"{name} is no file in git")


def _paths(repository: Repository, code: str) -> Iterator[str]:
    """Yield the words of code that look like paths: `python benchmarks/builds.py` has one."""
    for word in code.split():
        named = word.partition("::")[0]
        if not _PATH.fullmatch(named) or not any(map(str.isalpha, named)):
            continue
        first, slash, _ = named.removeprefix("./").partition("/")
        if _ENDS.fullmatch(named) or (slash and repository.names_folder(first)):
            yield named


def dead_mentions(repository: Repository, path: str, allowed: frozenset[str]) -> Iterator[Mistake]:
    """Yield the files that a source file's docstrings and comments name and git lacks."""
    for line, words in remarks(repository.text(path), path):
        for name in _MENTIONED.findall(words):
            if name not in allowed and not repository.has(name):
                yield Mistake(f"{path}:{line}", f"{name} is no file in git")


def remarks(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a file, each with its line."""
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                for one in body:  # a string after a constant is a docstring
                    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                        yield one.lineno, str(one.value.value)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    elif path.endswith((".h", ".cpp")):
        for found in _COMMENT.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, found[0]
    else:  # a Makefile, or settings
        for number, line in enumerate(text.splitlines(), 1):
            _, hash_, comment = line.partition("#")
            if hash_:
                yield number, comment


def missing_in_map(repository: Repository, page: str, folder: str, inside: str = "") -> set[str]:
    """Return the files of a folder that the page's table of the folder leaves out.

    inside: the root of the folder names on the page.
    """
    within, named = False, set()
    for token in tokens(repository.text(page)):
        if token.type == "table_close":
            within = False
        if token.type == "inline":
            within = within or token.content == f"file in `{folder}`"
            children = token.children if within else None
            named |= {child.content for child in children or () if child.type == "code_inline"}
    files = {PurePosixPath(file) for file in repository.files}
    whole = PurePosixPath(inside) / folder
    return {file.name for file in files if file.parent == whole} - named
