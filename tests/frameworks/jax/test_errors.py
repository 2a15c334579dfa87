"""Wrong calls with JAX's arrays, executed and traced, raise NumPy's messages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Additive, attention, plan
from helpers.wrong_calls import NAMING, TABLE, check_as_in_numpy, given


@pytest.mark.parametrize(("change", "error", "text"), TABLE, ids=range(len(TABLE)))
def test_table(change: dict[str, Any], error: type, text: str) -> None:
    tensors, options = given(change, jnp.asarray)
    calls = [attention, lambda *xs, **more: jax.jit(lambda *ys: attention(*ys, **more))(*xs)]
    calls += [plan] * (change.get("value", 0) is not None)  # plan needs no value
    for function in calls:
        with pytest.raises(error) as raised:
            function(*tensors, **options)
        assert type(raised.value) is error
        assert str(raised.value) == text


@pytest.mark.parametrize(("change", "parts"), NAMING, ids=range(len(NAMING)))
def test_names_and_shapes(change: dict[str, Any], parts: list[str]) -> None:
    check_as_in_numpy(change, parts, jnp.asarray)


def test_separable_scores_are_for_pytorch() -> None:
    x, score = jnp.asarray(np.ones((2, 3, 5))), Additive(None, None, jnp.asarray(np.ones(5)))
    with pytest.raises(NotImplementedError, match="it is for PyTorch on NVIDIA GPUs"):
        attention(x, x, x, score=score, impl="separable")
