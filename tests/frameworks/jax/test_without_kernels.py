"""Devices without kernels: a large call warns. Arrays on the CPU stand for arrays on a TPU."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from anyscore import Gaussian, attention, plan

PLACES = "cpu: it runs on the CPU, and the arrays are on {0}; pallas: it runs on NVIDIA GPUs, "
SAID = PLACES + "Ampere or later, and the arrays are on {1}; the reference needs 288 bytes or more"


@pytest.mark.parametrize(("platform", "place"), [("tpu", "tpu"), ("gpu", "another GPU")])
def test_a_large_call_warns(platform: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on = SimpleNamespace(platform=platform)
    monkeypatch.setattr("anyscore.backends.jax.backend.device", lambda x: on)
    x = jnp.ones((1, 3, 4), "float32")
    found = plan(x, x, x, score=Gaussian(1.0))
    assert found.reason == SAID.format(platform, place)
    assert found.reference_bytes == 2 * 3 * 3 * 4 * 4
    attention(x, x, x, score=Gaussian(1.0))  # few bytes
    monkeypatch.setattr("anyscore.functional.attention.MUCH", 288)
    with pytest.warns(UserWarning, match=f"are on {place}; the reference needs 288 "):
        attention(x, x, x, score=Gaussian(1.0))
    attention(x, x, x, score=Gaussian(1.0), impl="reference")
    with pytest.warns(UserWarning, match="the reference needs 432 "):  # gradients may follow
        jax.jit(lambda x: attention(x, x, x, score=Gaussian(1.0)))(x)


def test_the_cpu_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callable takes the reference there too, and does not warn."""
    monkeypatch.setattr("anyscore.functional.attention.MUCH", 1)
    x = jnp.ones((1, 3, 4), "float32")
    assert plan(x, x, x, score=lambda q, k: q @ k.mT).reference_bytes == 3 * 3 * 3 * 4
    attention(x, x, x, score=lambda q, k: q @ k.mT)
