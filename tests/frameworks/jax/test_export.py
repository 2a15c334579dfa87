"""Programs of `jax.export` run without anyscore: by the definition, derivatives included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from anyscore import Additive, Causal, Lengths, ScaledDot, Score, attention, prepare_keys
from helpers.samples import normal

QUERY, KEY, VALUE = (jnp.asarray(normal(3, *x)) for x in ((4, 5), (6, 5), (6, 7)))
LENGTHS = jnp.array([0, 2, 6])
ADDITIVE = Additive(*(jnp.asarray(normal(*x)) for x in ((8, 5), (8, 5), (8,))))


@pytest.mark.parametrize("score", [ADDITIVE, ScaledDot()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("platforms", [None, ("cpu", "cuda", "tpu")])
def test_value_and_gradients(score: Score, platforms: tuple[str, ...] | None) -> None:
    def call(*args: jax.Array) -> jax.Array:
        return attention(*args[:3], score=score, valid_lens=args[3])

    args = QUERY, KEY, VALUE, LENGTHS
    assert "custom_call @anyscore_forward" in jax.jit(call).lower(*args).as_text()
    written = export.export(jax.jit(call), platforms=platforms)(*args).serialize(vjp_order=1)
    read = export.deserialize(written)
    assert "custom_call @anyscore" not in str(read.mlir_module())
    np.testing.assert_allclose(read.call(*args), call(*args), rtol=1e-12, atol=1e-13)

    def gradients(function: object) -> object:
        return jax.grad(lambda *xs: (function(*xs, LENGTHS) ** 2).sum(), (0, 1, 2))(*args[:3])

    for x, y in zip(gradients(read.call), gradients(call), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)


def test_batches_of_any_size() -> None:
    batch = export.symbolic_shape("n")
    shapes = [(*batch, *x.shape[1:]) for x in (QUERY, KEY, VALUE)]
    given = [jax.ShapeDtypeStruct(shape, "float64") for shape in shapes]
    exported = export.export(jax.jit(lambda *xs: attention(*xs, score=ADDITIVE)))(*given)
    args = QUERY[:2], KEY[:2], VALUE[:2]
    found = export.deserialize(exported.serialize()).call(*args)
    np.testing.assert_allclose(found, attention(*args, score=ADDITIVE), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shift", [0, 1e3])
def test_keys_prepared_by_what_was_exported(shift: float) -> None:
    """An exported program packs keys in another way; the core takes these keys as well."""
    key = KEY + shift
    pack = jax.jit(lambda key: prepare_keys(key, ADDITIVE).packed)
    packed = export.deserialize(export.export(pack)(key).serialize()).call(key)
    prepared = replace(prepare_keys(key, ADDITIVE), packed=packed)
    call = {"score": ADDITIVE, "valid_lens": LENGTHS}
    found = attention(QUERY[:, :1], prepared, VALUE, impl="fused", **call)
    exact = attention(QUERY[:, :1], key, VALUE, impl="reference", **call)
    np.testing.assert_allclose(found, exact, rtol=1e-10, atol=1e-12)


def test_masks_keys_and_scores_are_arguments_of_what_was_exported() -> None:
    """An export writes and reads the structure of its arguments; another structure raises."""
    x, n = jnp.asarray(normal(2, 5, 4)), jnp.array([5, 3])
    score = Additive(*(jnp.asarray(normal(*shape)) for shape in ((3, 4), (3, 4), (3,))))
    given = x, prepare_keys(x, score), score, Causal("end") & Lengths(n)

    @jax.jit
    def call(x: Any, keys: Any, score: Any, mask: Any) -> Any:
        return attention(x, keys, x, score=score, mask=mask)

    written = jax.export.export(call)(*given).serialize()
    found = jax.export.deserialize(written).call(*given)
    np.testing.assert_allclose(found, call(*given), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="structure"):
        jax.export.deserialize(written).call(*given[:3], Causal("start") & Lengths(n))
