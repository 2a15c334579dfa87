"""Wrong calls with TensorFlow's tensors, executed and traced, raise NumPy's messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from anyscore import Additive, Score, attention
from anyscore.functional.attention import plan
from helpers.wrong_calls import NAMING, TABLE, check_as_in_numpy, given


@pytest.mark.parametrize(("change", "error", "text"), TABLE, ids=range(len(TABLE)))
def test_table(change: dict[str, Any], error: type, text: str) -> None:
    tensors, options = given(change, tf.constant)
    functions = (attention, plan) if change.get("value", 0) is not None else (attention,)
    for function in functions:
        with pytest.raises(error) as raised:
            function(*tensors, **options)
        assert type(raised.value) is error
        assert str(raised.value) == text


@pytest.mark.parametrize(("change", "parts"), NAMING, ids=range(len(NAMING)))
def test_names_and_shapes(change: dict[str, Any], parts: list[str]) -> None:
    if "score" in change and not isinstance(change["score"], Score):
        pytest.skip("a callable of NumPy's")
    check_as_in_numpy(change, parts, tf.constant)


@pytest.mark.parametrize("index", range(0, len(TABLE), 7))
def test_traced(index: int) -> None:
    change, error, text = TABLE[index]
    tensors, options = given(change, tf.constant)

    @tf.function(autograph=False)
    def run() -> Any:
        return attention(*tensors, **options)

    with pytest.raises(error) as raised:
        run()
    assert str(raised.value) == text


def test_separable_scores_are_for_pytorch() -> None:
    x, score = tf.constant(np.ones((2, 3, 5))), Additive(None, None, tf.constant(np.ones(5)))
    with pytest.raises(NotImplementedError, match="it is for PyTorch on NVIDIA GPUs"):
        attention(x, x, x, score=score, impl="separable")
