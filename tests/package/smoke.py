"""A check of an installed wheel, with nothing but NumPy: `python smoke.py core` or `… reference`.

Continuous integration runs it on every supported Python, for each wheel of a release. It imports
nothing of the checkout, and JAX only if that is installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib import metadata

import numpy as np

import anyscore


def additive(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, w: np.ndarray, length: int
) -> np.ndarray:
    """Return additive attention to the first keys, by the formula."""
    scores = np.tanh(query[:, None] + key[None, :length]) @ w
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    result: np.ndarray = weights @ value[:length]
    return result


def info() -> dict[str, object]:
    """Return what the command `anyscore info` prints, and check that it needs no compiler."""
    command = [sys.executable, "-m", "anyscore", "info", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": ""})
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main(expected: str) -> None:
    """Compare calls with the formula; expected: "core" or "reference"."""
    draw = np.random.default_rng(0)
    query, key, value = (draw.normal(size=shape) for shape in ((5, 8), (7, 8), (7, 3)))
    w, unit = draw.normal(size=8), np.eye(8)
    score = anyscore.Additive(unit, unit, w)
    plan = anyscore.plan(query, key, value, score=score)
    assert plan.route == {"core": "cpu", "reference": "reference"}[expected], plan
    for length in (7, 4):
        exact = additive(query, key, value, w, length)
        mask = anyscore.Lengths(length)
        for dtype, error in ((np.float64, 1e-12), (np.float32, 1e-5)):
            x = [array.astype(dtype) for array in (query, key, value)]
            score = anyscore.Additive(unit.astype(dtype), unit.astype(dtype), w.astype(dtype))
            out = anyscore.attention(*x, score=score, mask=mask)
            assert out.dtype == dtype, out.dtype
            np.testing.assert_allclose(out, exact, atol=error)
    core = str(info()["core"])
    assert ("instruction set" in core) == (expected == "core"), core
    files = [str(file) for file in metadata.files("anyscore") or ()]
    for name in ("LICENSE", "THIRD_PARTY.md"):
        assert any(file.endswith(f".dist-info/licenses/{name}") for file in files), name
    if expected == "core" and importlib.util.find_spec("jax"):
        import jax.numpy as jnp

        x = [jnp.asarray(array, jnp.float32) for array in (query, key, value)]
        score = anyscore.Additive(*(jnp.asarray(array, jnp.float32) for array in (unit, unit, w)))
        assert anyscore.plan(*x, score=score).route == "cpu", anyscore.plan(*x, score=score)
        np.testing.assert_allclose(
            anyscore.attention(*x, score=score, mask=anyscore.Lengths(4)), exact, atol=1e-5
        )
        print("JAX:", anyscore.plan(*x, score=score).reason)
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}: {core}")


if __name__ == "__main__":
    main(*sys.argv[1:])
