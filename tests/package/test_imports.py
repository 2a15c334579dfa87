"""`import anyscore` imports no framework, and the use of one framework imports no other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anyscore
from helpers.hang import HANG

pytestmark = pytest.mark.sample

FRAMEWORKS = {"torch", "torch._dynamo", "jax", "flax", "tensorflow", "keras", "mxnet"}
"""Frameworks, and PyTorch's compiler: its import takes as long as PyTorch's."""
HEAVY = FRAMEWORKS | {"matplotlib", "rich", "sympy", "typer"}

ONES = {
    "numpy": "import numpy as np; ones = lambda *shape: np.ones(shape)",
    "torch": "import torch; ones = torch.ones",
    "jax": "import jax; ones = lambda *shape: jax.numpy.ones(shape)",
    "tensorflow": "import tensorflow as tf; ones = lambda *shape: tf.ones(shape)",
}
CALL = """
q, k, v = ones(2, 3, 5), ones(2, 7, 5), ones(2, 7, 2)
mask = anyscore.Causal("end") & (ones(3, 7) > 0)
score = anyscore.Additive(ones(3, 5), ones(3, 5), ones(3))
for impl in ("auto", "reference"):
    options = {"dropout": 0.1, "dropout_seed": 1, "impl": impl}
    anyscore.attention(q, k, v, score=score, mask=mask, valid_lens=[3, 4], **options)
anyscore.plan(q, k, v)
edges = anyscore.Edges.from_index([[6, 0, 1], [0, 2, 0]], 3)
for mask in (edges, anyscore.Sequences([0, 3], [0, 7])):
    anyscore.attention(q, k, v, score=score, mask=mask)
"""
FRONTS = {
    "torch": {"anyscore.torch": {"torch"}},
    "jax": {
        "anyscore.jax": {"jax"},
        "anyscore.jax.nnx": {"jax", "flax"},
        "anyscore.jax.linen": {"jax", "flax"},
    },
}
SAY = """
import sys
print(*{name.partition(".")[0] for name in sys.modules}, *{"torch._dynamo"} & {*sys.modules})
"""


def heavy_modules_after(*steps: str) -> list[set[str]]:
    """Return the modules of HEAVY in a fresh interpreter after each of these steps."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(step + SAY for step in steps)],
        capture_output=True, text=True, check=True, timeout=HANG,
    )  # fmt: skip
    said = [set(line.split()) for line in done.stdout.splitlines()]
    assert len(said) == len(steps)
    assert all("anyscore" in modules for modules in said)
    return [modules & HEAVY for modules in said]


@pytest.mark.slow
def test_these_tests_can_fail() -> None:
    """These tests see imports, also inside a package, such as `import torch` in anyscore."""
    found = heavy_modules_after("import anyscore", "import rich", "import matplotlib")
    assert found == [set(), {"rich"}, {"rich", "matplotlib"}]


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x in ("jax", "tensorflow") else x for x in ONES],
)
def test_a_tensor_s_framework_is_imported_and_no_other(name: str) -> None:
    """No other framework is imported by anyscore, a fused call, the definition or the layers."""
    fronts = FRONTS.get(name, {})
    own = f"{ONES[name]}\nones(2)"
    imports = [f"import {front}" for front in fronts]
    nothing, brought, called, *layers = heavy_modules_after("import anyscore", own, CALL, *imports)
    assert nothing == set()
    assert called == brought
    if name != "tensorflow":  # TensorFlow looks for others
        assert brought == {name} - {"numpy"}
    assert [modules & FRAMEWORKS for modules in layers] == list(fronts.values())


BY_NAME = {
    "kernels/cpu.py": "the core, which may not be built",
    "ops/pytrees.py": "beside it, what registers classes with a framework that was imported",
    "lab/prove/names.py": "the findings, of which one is loaded",
    "lab/data/parquet.py": "pyarrow, an extra",
}
"""Files with imports by name, which no linter sees, and the imported modules."""


def test_imports_that_no_linter_sees() -> None:
    root = Path(anyscore.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = getattr(node, "func", None)
            name = getattr(called, "id", getattr(called, "attr", None))
            if isinstance(node, ast.Call) and name in ("import_module", "__import__"):
                found.add(path.relative_to(root).as_posix())
    assert found == set(BY_NAME)
