"""Setup of the tests of Ray, which run in processes of their own; see norecursedirs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TESTS = str(Path(__file__).parents[2])  # processes of the cluster import `lab` from here
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), TESTS)))


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    words = [f"{a}{b}{c}" for a in "abc" for b in "xyz" for c in "klmn"]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return path
