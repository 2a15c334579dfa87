"""`Attention.scores` of Keras is right on each backend."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from anyscore import Causal
from anyscore.keras import Attention


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_scores(dtype: str) -> None:
    """Scores build the layer, and weights are the softmax of scores."""
    made = np.random.default_rng(0)
    x, y = (made.normal(size=(2, n, 4)).astype(np.float32) for n in (3, 5))
    layer = Attention("additive", hidden=8, dtype=dtype)
    found = layer.scores(x, y, [2, 5])
    assert len(layer.trainable_variables) == 3
    layer(x, y, valid_lens=[2, 5])
    weights, expected = (
        keras.ops.convert_to_numpy(keras.ops.cast(z, "float32"))
        for z in (keras.ops.softmax(found), layer.attention_weights)
    )
    np.testing.assert_allclose(weights, expected, rtol=1e-5 if dtype == "float32" else 2e-2)
    causal = keras.ops.convert_to_numpy(layer.scores(x, y, mask=Causal("start")))
    assert np.array_equal(causal[0] == -np.inf, ~np.tri(3, 5, dtype=bool))
    with pytest.raises(ValueError, match="4"):
        layer.scores(x[..., :3], y)
