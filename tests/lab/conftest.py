"""The pairs that several tests of the laboratory read."""

from __future__ import annotations

from pathlib import Path

import pytest

ROWS = [f"{who} {does} {what}" for who in ("she", "he", "it") for does in ("sees", "has")
        for what in ("it", "one", "two", "a dog", "a cat")]  # fmt: skip


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{row}\t{row.upper()}\tnote\n" for row in ROWS), encoding="utf-8")
    return path
