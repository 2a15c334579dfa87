"""Copies of a checkout to build or to break."""

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
"""Patterns of files and folders in a checkout that are not its sources."""


def copied(root: Path, folder: Path) -> None:
    """Copy the sources, without what lies beside them, to a folder that is not there yet."""
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns(*BESIDE))
