"""Wrong calls with TensorFlow's tensors, executed and traced, raise NumPy's messages."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from anyscore import Score, attention
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
