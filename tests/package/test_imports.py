"""Importing anyscore imports no framework; using one imports no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {"torch", "jax", "flax", "tensorflow", "keras", "mxnet"}
HEAVY = FRAMEWORKS | {"matplotlib", "rich", "typer"}

ONES = {
    "numpy": "import numpy as np; ones = lambda *shape: np.ones(shape)",
    "torch": "import torch; ones = torch.ones",
    "jax": "import jax; ones = lambda *shape: jax.numpy.ones(shape)",
    "tensorflow": "import tensorflow as tf; ones = lambda *shape: tf.ones(shape)",
}
CALL = """
import anyscore
q, k, v = ones(2, 3, 5), ones(2, 7, 5), ones(2, 7, 2)
mask = anyscore.Causal("end") & (ones(3, 7) > 0)
score = anyscore.Additive(ones(3, 5), ones(3, 5), ones(3))
for impl in ("auto", "reference"):
    options = {"dropout": 0.1, "dropout_seed": 1, "impl": impl}
    anyscore.attention(q, k, v, score=score, mask=mask, valid_lens=[3, 4], **options)
anyscore.plan(q, k, v)
"""


def heavy_modules_after(code: str) -> set[str]:
    """The modules of HEAVY that a fresh interpreter has after running `code`."""
    code += "\nimport sys\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    modules = set(done.stdout.split())
    assert "anyscore" in modules
    return modules & HEAVY


def test_importing_anyscore_imports_no_framework() -> None:
    assert heavy_modules_after("import anyscore") == set()


@pytest.mark.parametrize("name", ["matplotlib", "rich"])
def test_these_tests_can_fail(name: str) -> None:
    """An import would be seen, also one inside a package, as `import torch` in a file of ours."""
    assert name in heavy_modules_after(f"import anyscore\nimport {name}")


@pytest.mark.parametrize("name", ONES)
def test_a_tensor_s_framework_is_imported_and_no_other(name: str) -> None:
    """Neither by a fused call nor by one of the definition."""
    brought = heavy_modules_after(f"import anyscore\n{ONES[name]}\nones(2)")  # by itself
    assert heavy_modules_after(ONES[name] + CALL) == brought
    if name != "tensorflow":  # which looks for others by itself
        assert brought == {name} - {"numpy"}


@pytest.mark.parametrize(
    ("front", "allowed"),
    [
        ("anyscore.torch", {"torch"}),
        ("anyscore.jax", {"jax"}),
        ("anyscore.jax.nnx", {"jax", "flax"}),
    ],
)
def test_a_front_imports_its_framework_alone(front: str, allowed: set[str]) -> None:
    assert heavy_modules_after(f"import {front}") & FRAMEWORKS == allowed
