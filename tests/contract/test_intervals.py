"""A mask finds its attending queries and attended keys from its intervals alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anyscore import Causal, Interval, Keys, Lengths, Window
from anyscore.masks.context import MaskContext
from anyscore.masks.lowered import LoweredMask
from anyscore.masks.objects import as_mask
from anyscore.ops import load

pytestmark = pytest.mark.sample

FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])


def to(framework: str, x: Any) -> Any:
    return x if x is None or framework == "numpy" else torch.tensor(x)


@FRAMEWORKS
@pytest.mark.parametrize("keys", [0, 1, 7])
@pytest.mark.parametrize("seed", range(40))
def test_random_intervals(framework: str, keys: int, seed: int) -> None:
    """Attending and attended tokens are those of the boolean array, for bounds of any shapes."""
    rng, xp = np.random.default_rng(seed), load(framework)
    lead, queries = (2, 3), 5

    def draw(*own: int) -> tuple[int, ...]:
        return tuple(n if rng.random() < 0.6 else 1 for n in (*lead, *own))

    start = rng.integers(0, keys + 1, draw(queries)) if rng.random() < 0.7 else None
    stop = rng.integers(0, keys + 1, draw(queries)) if rng.random() < 0.7 else None
    keep = rng.random(draw(queries, keys)) < 0.6 if rng.random() < 0.5 else None
    if start is None and stop is None and keep is None:
        keep = rng.random((1, 1, 1, 1)) < 0.5
    mask = LoweredMask(xp, keys, *(to(framework, x) for x in (start, stop, keep)))
    whole = np.broadcast_to(np.asarray(mask.boolean), (*lead, queries, keys))
    by_queries, of_keys = (np.asarray(x) for x in mask.attending_attended)
    assert (np.broadcast_to(by_queries, (*lead, queries)) == whole.any(-1)).all()
    assert (np.broadcast_to(of_keys, (*lead, keys)) == whole.any(-2)).all()


@FRAMEWORKS
@pytest.mark.parametrize(
    "mask",
    [
        Causal() & Lengths([9_000, 12_000]),
        Window(5, 3) & Keys(np.arange(2**14)[None] % 7 > 0),
        Interval([3], None) & Causal(),
    ],
    ids=["causal", "window", "left padding"],
)
def test_nothing_of_all_pairs_is_made(mask: Any, framework: str) -> None:
    """No array of all pairs is made: 2¹⁴ × 2¹⁴ booleans would take 256 MiB."""
    xp, n, sizes = load(framework), 2**14, []
    like = to(framework, np.zeros(()))
    lowered = as_mask(mask).lower(MaskContext(xp, like, (2,), n, n))
    ops = {name: getattr(xp, name) for name in ("where", "logical_and", "count", "cumsum", "take")}

    class Spy:
        def __getattr__(self, name: str) -> Any:
            function = ops.get(name, getattr(xp, name))

            def run(*args: Any, **options: Any) -> Any:
                result = function(*args, **options)
                if hasattr(result, "shape"):
                    sizes.append(int(np.prod(result.shape)))
                return result

            return run

    assert LoweredMask(Spy(), n, lowered.start, lowered.stop, lowered.mask).attending_attended  # type: ignore[arg-type]
    assert 0 < max(sizes) <= 2 * (n + 1)
