"""All pages share a frame: their theme, a policy that closes the network; and are written whole."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from contextlib import suppress
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

from anyscore.ops.checks import shown


def part(name: str) -> str:
    """Read a part of a page, a file beside this one."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def document(
    title: str, body: str, *, style: str, script: str = "", generator: str = "anyscore"
) -> bytes:
    """Return a page as one file, which opens without a network: its policy forbids any request.

    A button with the id "theme" in the body chooses between light and dark.

    Args:
        title, body: HTML.
        style, script: the page's own, after those of the theme. No others are allowed to run.
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
{body}<script>
{script}</script>
</body>
</html>
"""
    return page.encode("utf-8", errors="replace")


def file_of(path: Any) -> Path:
    """Give the path of a file that a page is written to.

    Raises TypeError, ValueError, OSError: it is none, a folder, or in a folder that is not there.
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must name a file, got {shown(path)}.")
    if not str(path):
        raise ValueError("path is empty: expected the name of a file, such as attention.html.")
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"path {str(path)!r} is a folder: add the name of a file.")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"the folder {str(file.parent)!r} does not exist: make it first.")
    return file


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, then move it there: a reader never finds half of it.

    It has the mode of the file that it replaces.

    Raises OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(temporary, "xb") as stream:
            with suppress(OSError):  # there is none, or the disk knows no modes
                shutil.copymode(path, temporary)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _hash(text: str) -> str:
    """Return the hash of a script or style sheet, as a content security policy has it."""
    digest = hashlib.sha256(f"\n{text}".encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
