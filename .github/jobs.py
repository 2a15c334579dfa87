"""Print the jobs of continuous integration that a change concerns, as the matrix of a workflow.

python .github/jobs.py BASE     (a commit: the change is what the checkout has beyond it)
python .github/jobs.py          (all jobs)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable

JOBS = {
    "NumPy and the core": "contract isas",
    "PyTorch": "torch torch-exports",
    "JAX": "jax pallas",
    "TensorFlow and Keras": "tensorflow keras-tensorflow keras-jax keras-torch",
    "MXNet": "mxnet",
    "laboratory and pages": "lab compare ray site page-examples",
    "kernels, interpreted": "triton triton-torch triton-oldest",
}
"""Name → targets of the Makefile, which together are those of `make test-daily`."""

ALWAYS = "NumPy and the core"
"""The job whose tests read every file, for the names of files and for docstrings."""

CONCERNS = (
    (r"docs/|[^/]*\.md$|tests/(docs|lab|plot|benchmarks|package)/", "laboratory and pages"),
    (r"tests/frameworks/ray/", "laboratory and pages"),
    (r"tests/(contract/|fuzz/test_)", ALWAYS),
    (r"tests/frameworks/(torch|hf)/", "PyTorch|kernels, interpreted"),
    (r"tests/frameworks/jax/", "JAX"),
    (r"tests/frameworks/(tensorflow|keras)/", "TensorFlow and Keras"),
    (r"tests/frameworks/mxnet/", "MXNet"),
    (r"tests/frameworks/triton/", "PyTorch|kernels, interpreted"),
    (r"src/anyscore/(jax|kernels/(pallas|xla))/", "JAX|TensorFlow and Keras|laboratory and pages"),
    (r"src/anyscore/keras/", "TensorFlow and Keras|laboratory and pages"),
    (r"src/anyscore/mxnet/", "MXNet|laboratory and pages"),
    (r"src/anyscore/kernels/triton/", "PyTorch|kernels, interpreted"),
)
"""Patterns of a file's beginning, and the jobs besides `ALWAYS`. Any other file concerns all."""


def concerned(files: Iterable[str]) -> list[str]:
    """Return the names of the jobs that a change of these files concerns."""
    names = {ALWAYS}
    for file in files:
        jobs = next((jobs for pattern, jobs in CONCERNS if re.match(pattern, file)), None)
        names.update(JOBS if jobs is None else jobs.split("|"))
    return [name for name in JOBS if name in names]


def changed(base: str) -> list[str] | None:
    """Return the files changed since the checkout left `base`; None if git has no such commit."""
    done = subprocess.run(
        ["git", "diff", "--name-only", f"{base}...HEAD"], capture_output=True, text=True
    )
    return done.stdout.splitlines() if done.returncode == 0 else None


if __name__ == "__main__":
    files = changed(sys.argv[1]) if sys.argv[1:] and sys.argv[1].strip("0") else None
    names = list(JOBS) if files is None else concerned(files)
    print(json.dumps([{"name": name, "targets": JOBS[name]} for name in names]))
