"""A sink in JAX is one more logit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Gaussian, attention
from anyscore.kernels.pallas import attention as pallas

MADE = np.random.default_rng(0)
Q, K, V = (jnp.asarray(MADE.normal(size=(2, 3, *n)), jnp.float32) for n in ((4, 5), (6, 5), (6, 2)))
SINK = jnp.array([-1.0, 0.5, 2.0])


def written_out(q: Any, k: Any, v: Any, sink: Any) -> Any:
    s = -((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1) / 2
    s = jnp.where(jnp.arange(6) < jnp.array([0, 4])[:, None, None, None], s, -jnp.inf)
    logit = jnp.broadcast_to(sink[:, None, None], (2, 3, 4, 1))
    return jax.nn.softmax(jnp.concatenate([s, logit], -1), -1)[..., :-1] @ v


@pytest.mark.parametrize("by_pallas", [False, True])
def test_values_and_gradients(by_pallas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", by_pallas)

    def ours(q: Any, k: Any, v: Any, sink: Any) -> Any:
        call: dict[str, Any] = {"score": Gaussian(), "valid_lens": [0, 4], "sink": sink}
        return attention(q, k, v, impl="fused", **call)

    xs = Q, K, V, SINK
    np.testing.assert_allclose(jax.jit(ours)(*xs), written_out(*xs), rtol=1e-5, atol=1e-6)
    found, exact = (
        jax.jit(jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), (0, 1, 2, 3)))(*xs)
        for f in (ours, written_out)
    )
    for x, y in zip(found, exact, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_of_each_entry_of_a_batch() -> None:
    def ours(q: Any, sink: Any) -> Any:
        return attention(q, K, V, sink=sink)

    sinks = jnp.stack([SINK, -SINK])
    found = jax.vmap(ours, (None, 0))(Q, sinks)
    for x, sink in zip(found, sinks, strict=True):
        np.testing.assert_allclose(x, ours(Q, sink), rtol=1e-5, atol=1e-6)
