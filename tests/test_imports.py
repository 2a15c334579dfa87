"""Importing anyscore imports no framework; using one imports no other."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "jax", "tensorflow", "keras", "mxnet", "matplotlib", "plotly", "rich", "typer"}

CALL = """
import numpy as np
import anyscore
q, k, v = np.ones((2, 3, 5)), np.ones((2, 7, 5)), np.ones((2, 7, 2))
mask = anyscore.Causal("end") & np.ones((3, 7), bool)
score = anyscore.Additive(np.ones((3, 5)), np.ones((3, 5)), np.ones(3))
anyscore.attention(q, k, v, score=score, mask=mask, valid_lens=[3, 4], dropout=0.1)
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


def test_numpy_arrays_import_no_framework() -> None:
    assert heavy_modules_after(CALL) == set()


@pytest.mark.parametrize("name", ["matplotlib", "rich"])
def test_these_tests_can_fail(name: str) -> None:
    """An import would be seen, also one inside a package, as `import torch` in a file of ours."""
    assert name in heavy_modules_after(f"import anyscore\nimport {name}")


def test_a_tensor_s_framework_is_imported_and_no_other() -> None:
    code = "import torch\n" + CALL.replace("import numpy as np", "import numpy as np, torch")
    code += "\nx = torch.ones(2, 3)\nassert anyscore.attention(x, x, x).shape == (2, 3)"
    assert heavy_modules_after(code) == {"torch"}
