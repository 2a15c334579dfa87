"""The frame of all pages: their theme, and a policy without network; files are written whole."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import posixpath
import re
import shutil
from contextlib import suppress
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

from anyscore.ops.checks import brief

_IMPORT = re.compile(r'^import (?:\{[^}]*\} from )?"(\.[^"]*)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def part(name: str) -> str:
    """Read a part of a page: a file of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def joined_modules(name: str) -> str:
    """Return a module of JavaScript and the modules that it imports, as one module.

    Each comes once, after those that it imports. `import` lines and the word `export` are left out:
    no two modules may have a name in common, and none renames an import.

    Args:
        name: path of the module below `anyscore`.
    """
    seen = set()

    def read(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = files("anyscore").joinpath(name).read_text(encoding="utf-8")
        folder = posixpath.dirname(name)
        imported = (posixpath.normpath(f"{folder}/{path}") for path in _IMPORT.findall(text))
        return "".join(map(read, imported)) + _EXPORT.sub("", _IMPORT.sub("", text))

    return read(name)


def as_data(data: Any) -> str:
    """Return plain data as JSON for an element of a page, which no text in it can end."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def document(
    title: str, body: str, *, style: str, script: str = "", generator: str = "anyscore"
) -> bytes:
    """Return a page as one file. Its content security policy forbids all network requests.

    A button with the id "theme" in the body chooses between light and dark.

    Args:
        title, body: HTML.
        style, script: CSS and JavaScript of the page, added to the theme. The script is a module.
            The policy allows no other styles or scripts.
        generator: the program that made the page.
    """
    style, script = f"{part('theme.css')}\n{style}", f"{part('theme.js')}\n{script}"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="{generator}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{body}<script type="module">
{script}</script>
</body>
</html>
"""
    return page.encode("utf-8", errors="replace")


def file_of(path: Any) -> Path:
    """Check and return the path of the file of a page.

    Raises:
        TypeError, ValueError, OSError: path is no path, is empty, is a folder, or its folder does
            not exist.
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must name a file, got {brief(path)}.")
    if not str(path):
        raise ValueError("path is empty: expected the name of a file, such as attention.html.")
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"path {str(path)!r} is a folder: add the name of a file.")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"the folder {str(file.parent)!r} does not exist: make it first.")
    return file


def write_whole(path: Path, content: bytes) -> None:
    """Write a temporary file, then rename it: no reader finds half a file.

    The new file keeps the mode of the file that it replaces.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(temporary, "xb") as stream:
            with suppress(OSError):  # no earlier file, or a file system without modes
                shutil.copymode(path, temporary)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _hash(text: str) -> str:
    """Return the hash of a script or style sheet in the form of a content security policy."""
    digest = hashlib.sha256(f"\n{text}".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
