"""Files of JAX and Flax hold anyscore's objects: pickles, Flax's, Orbax's, exported programs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from anyscore import (
    Additive,
    ALiBi,
    Causal,
    Edges,
    Gaussian,
    Interval,
    Keys,
    Lengths,
    Relative,
    Sequences,
    Sigmoid,
    Window,
    attention,
    make_cache,
    prepare_keys,
)
from helpers import machine
from helpers.samples import normal

serialization = pytest.importorskip("flax.serialization", reason=machine.lacks("flax"))
checkpoint = pytest.importorskip("orbax.checkpoint", reason=machine.lacks("orbax"))

X = jnp.asarray(normal(2, 5, 4))
KEEP = jnp.tril(jnp.ones((5, 5), bool))
OBJECTS: dict[str, Callable[[], Any]] = {
    "causal": Causal,
    "window": lambda: Window(2, None, "end"),
    "lengths": lambda: Lengths(jnp.array([2, 5])),
    "keys": lambda: Keys(KEEP[2]),
    "half an interval": lambda: Interval(stop=jnp.array([2, 5])),
    "all": lambda: Causal("end") & Lengths(jnp.array([2, 5])) & KEEP,
    "sequences": lambda: Sequences(jnp.array([0, 2, 5])),
    "edges": lambda: Edges(jnp.array([0, 1, 3]), jnp.array([0, 1, 1])),
    "alibi": lambda: ALiBi(),
    "relative": lambda: Relative(jnp.asarray(normal(2, 5))),
    "gaussian": lambda: Gaussian(2.0),
    "additive": lambda: Additive(None, None, X[0, 0]),
    "sigmoid": lambda: Sigmoid(0.25),
    "prepared": lambda: prepare_keys(X, Gaussian(2.0)),
    "cache": lambda: make_cache(X, X, capacity=7),
    "output": lambda: attention(X, X, X, return_weights=True),
}


def by_flax(made: Any, folder: Path) -> Any:
    written = serialization.to_bytes({"made": made})
    empty = jax.tree.map(jnp.zeros_like, made)
    return serialization.from_bytes({"made": empty}, written)["made"]


def by_orbax(made: Any, folder: Path) -> Any:
    with checkpoint.StandardCheckpointer() as files:
        files.save(folder / "made", {"made": made})
        files.wait_until_finished()
        return files.restore(folder / "made", {"made": made})["made"]


def exported(made: Any, folder: Path) -> Any:
    program = export.export(jax.jit(lambda made: made))(made)
    return export.deserialize(program.serialize()).call(made)


FILES: dict[str, Callable[[Any, Path], Any]] = {
    "pickle": lambda made, _: pickle.loads(pickle.dumps(made)),
    "deepcopy": lambda made, _: copy.deepcopy(made),
    "flax": by_flax,
    "export": exported,
}


def alike(found: Any, made: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(made)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(made), strict=True):
        assert np.asarray(x).dtype == np.asarray(y).dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("name", OBJECTS)
def test_written_and_read(name: str, form: str, tmp_path: Path) -> None:
    made = OBJECTS[name]()
    alike(FILES[form](made, tmp_path), made)


@pytest.mark.parametrize("name", ["half an interval", "additive", "all"])
def test_checkpoints_of_orbax(name: str, tmp_path: Path) -> None:
    made = OBJECTS[name]()
    alike(by_orbax(made, tmp_path), made)


@pytest.mark.parametrize("name", OBJECTS)
def test_none_may_stand_for_what_they_hold(name: str) -> None:
    """None may replace each array: Orbax does so to look for options of each array."""
    made = OBJECTS[name]()
    nothing = jax.tree.map(lambda _: None, made)
    assert jax.tree.structure(made).flatten_up_to(nothing) == [None] * len(jax.tree.leaves(made))


def test_other_fields_than_the_target_has() -> None:
    written = serialization.to_bytes(Lengths(X[0, 0]))
    with pytest.raises(ValueError, match="the file has n of a Keys, expected keep"):
        serialization.from_bytes(Keys(X[0, 0]), written)
