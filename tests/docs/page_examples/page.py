"""Run the examples of a page for one framework, and compare with the page's expected text.

    python page.py PAGE FRAMEWORK
    python page.py --serve FRAMEWORK    (pages come by lines: see `serve`)

An example is one block marked `python numpy`, which every framework runs, or a row of blocks, one
for each framework. Every block of an example prints the `text` block after the example; without a
`text` block, an example prints nothing.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import math
import os
import re
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FRAMEWORKS = {"pytorch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "mxnet": "MXNet"}
"""The marks of blocks in the order of a row, and the comment that begins each block."""

_FENCED = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<source>.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class Block:
    """Lines of the page; `line` is the number of the first."""

    line: int
    source: str


@dataclass
class Example:
    """Blocks by mark, and the text that each block prints."""

    blocks: dict[str, Block] = field(default_factory=dict)
    expected: Block | None = None

    def next_in(self, mark: str) -> bool:
        """Return whether a block with this mark may follow in the row."""
        own = [*FRAMEWORKS]
        same = self.expected is None and "numpy" not in self.blocks and mark in own
        return same and all(own.index(mark) > own.index(before) for before in self.blocks)


def read(text: str) -> list[Example]:
    """Return the examples of a page, in order.

    Raises ValueError: a Python block without a known mark, or expected text without an example.
    """
    examples: list[Example] = []
    for found in _FENCED.finditer(text):
        language, _, mark = found["info"].partition(" ")
        block = Block(text.count("\n", 0, found.start("source")) + 1, found["source"])
        if language == "python":
            if mark not in FRAMEWORKS and mark != "numpy":
                known = ", ".join(["numpy", *FRAMEWORKS])
                raise ValueError(f"line {block.line}: marked {mark!r}, expected one of {known}.")
            if not examples or not examples[-1].next_in(mark):
                examples.append(Example())
            examples[-1].blocks[mark] = block
        elif language == "text":
            if not examples or examples[-1].expected is not None:
                raise ValueError(f"line {block.line}: expected text without an example before it.")
            examples[-1].expected = block
    return examples


def agree(expected: str, printed: str) -> bool:
    """Return whether two texts are equal up to white space and the rounding of fractions."""
    ours, theirs = _NUMBER.split(expected), _NUMBER.split(printed)
    if _words(ours) != _words(theirs):
        return False
    return all(map(_close, ours[1::2], theirs[1::2]))


def _words(parts: list[str]) -> list[str]:
    """Return the texts between numbers, without white space."""
    return ["".join(x.split()) for x in parts[::2]]


def _close(x: str, y: str) -> bool:
    """Return whether fractions agree to four decimals, the last within one; integers exactly."""
    if x.isdigit() and y.isdigit():
        return x == y
    return math.isclose(float(x), float(y), rel_tol=1e-4, abs_tol=1.5e-4)


def run(path: Path, framework: str) -> None:
    """Run the blocks of a framework, in order and in one namespace.

    Raises AssertionError with the line of the page: a block printed other text.
    """
    namespace: dict[str, Any] = {"__name__": "page"}
    for example in read(path.read_text(encoding="utf-8")):
        block = example.blocks.get(framework) or example.blocks.get("numpy")
        if block is None:
            continue
        code = compile("\n" * (block.line - 1) + block.source, str(path), "exec", dont_inherit=True)
        with redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        expected = example.expected or Block(block.line, "")
        assert agree(expected.source, printed.getvalue()), (
            f"{path}:{expected.line}: expected of the {framework} block of line {block.line}\n"
            f"{expected.source}got\n{printed.getvalue()}"
        )


IMPORTED = {
    "pytorch": ["torch", "transformers.modeling_utils", "peft"],
    "jax": ["jax.numpy"],
    "tensorflow": ["tensorflow", "keras"],
    "mxnet": ["mxnet"],
}
"""Modules that pages import and that load slowly."""


def serve(framework: str) -> None:
    """Run each page in a fork of this process, which has imported the slow modules.

    Read lines of JSON: page, folder to run in, file for all output. Write a line with the exit code
    of each page.
    """
    for name in ("anyscore", "matplotlib.figure", *IMPORTED[framework]):
        importlib.import_module(name)
    gc.freeze()  # forks share the imports until a process writes to them
    for line in sys.stdin:
        path, folder, written = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            with open(written, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            return run(Path(path), framework)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        run(Path(sys.argv[1]), sys.argv[2])
