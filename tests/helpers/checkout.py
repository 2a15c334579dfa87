"""Copies of a checkout, for builds and for changes."""

import shutil
from pathlib import Path

BESIDE = (
    ".git",
    ".venv",
    "build",
    "dist",
    "runs",
    "__pycache__",
    ".hypothesis",
    ".*_cache",
    "*.so",
)
"""Patterns of files and folders in a checkout that are no sources."""


def copied(root: Path, folder: Path) -> None:
    """Copy the sources of a checkout to a new folder, without the files of `BESIDE`."""
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*BESIDE))
