"""The check of prose finds the worst patterns, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

faults = runpy.run_path(str(Path(__file__).parents[1] / "prose.py"))["faults"]
LONG = "word " * 26


def found(tmp_path: Path, text: str, name: str = "page.md") -> list[str]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return [fault.split(": ", 1)[1] for fault in faults(path)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"{LONG}.", "26 words, at most 25"),
        (f"- A point.\n- {LONG}.", "26 words, at most 25"),
        ("What is cached stays.", "'What' as a noun"),
        ("Gradients have any order; those of layers do not.", "'those' as a noun"),
        ("The rest is ours.", "'ours' has a private meaning"),
        ("A kind that comes again is known.", "'comes again' has a private meaning"),
        ("Words. " * 101, "706 characters in a paragraph, at most 700"),
    ],
)
def test_a_fault(tmp_path: Path, text: str, fault: str) -> None:
    (message,) = found(tmp_path, text)
    assert message.startswith(fault)


@pytest.mark.parametrize(
    "text",
    [
        f"{'word ' * 25}.",
        f"```python\n{LONG}\n```",
        f"| a | b |\n|---|---|\n| {LONG} | 1 |",
        f"`{LONG}` is one word.",
        "What does a mask cost?",
        f"A {'word ' * 20}. A {'word ' * 20}.",
    ],
)
def test_no_fault(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_python(tmp_path: Path) -> None:
    """Docstrings and help texts are read; code and doctests are not."""
    text = f'''"""What is read."""
LINE = "{LONG}"


def call(x: int) -> None:
    """Call it.

    Args:
        x: a number of
            tokens.
        y: another number.

    >>> call(1)  # {LONG}
    """
    option(help="{LONG}")
'''
    assert [message.split(":")[0] for message in found(tmp_path, text, "module.py")] == [
        "'What' as a noun",
        "26 words, at most 25",
    ]
