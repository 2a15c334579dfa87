"""Objects with wrong fields raise errors that name a field, and no call keeps an object."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from fuzz.fields import sweep
from fuzz.frameworks import Jax
from fuzz.refused import check, layer_of, tensor_of
from helpers.leaks import ENTRIES, Drawn, run

SHARE = 12


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.weekly) for n in range(1, SHARE))]
)
def test_wrong_fields(first: int) -> None:
    runner = Jax()
    for wrong in sweep(SHARE, first):
        check(wrong, tensor_of(runner), layer_of(runner))


@pytest.mark.parametrize("entry", ENTRIES)
def test_objects_of_the_caller_die(entry: str) -> None:
    run({entry: ENTRIES[entry]}, [Drawn(i, jnp.asarray, many=False) for i in range(4)], watch=True)
