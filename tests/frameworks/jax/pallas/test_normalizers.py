"""The sigmoid in interpreted Pallas kernels agrees with the definition in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Additive, Causal, Dot, Gaussian, Lengths, Sigmoid, Trilinear, attention, plan
from anyscore.kernels.pallas import attention as pallas
from helpers.samples import normal

pytestmark = pytest.mark.sample

KEYS = 67
MASKS: dict[str, Any] = {
    "none": None,
    "causal": Causal("end"),
    "lengths": Lengths(np.array([[[0], [40]]])),
    "pairs": normal(1, 1, 70, KEYS) > 0.5,
}
CASES: list[tuple[str, int, str, float, Any]] = [
    ("dot", 70, "pairs", 0.3, "sigmoid"),
    ("additive", 2, "lengths", 0.0, "sigmoid"),
    ("gaussian", 70, "causal", 0.3, Sigmoid(-1.0)),
    ("trilinear", 2, "none", 0.0, "sigmoid"),
]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "INTERPRET", True)


def inputs(queries: int) -> list[Any]:
    """Return query, key and value, of two heads with one key head, and three parameter rows."""
    shapes = (1, 2, queries, 3), (1, 1, KEYS, 3), (1, 1, KEYS, 2), (3,), (3,), (3,)
    return [jnp.asarray(normal(*shape, seed=i)) for i, shape in enumerate(shapes)]


def call(function: Any, case: tuple[str, int, str, float, Any], xs: Any, **options: Any) -> Any:
    """Call `attention` or `plan` for a case."""
    name, queries, mask, dropout, normalizer = case
    made = {
        "dot": lambda: Dot(), "gaussian": lambda: Gaussian(1.5),
        "additive": lambda: Additive(None, None, xs[3]), "trilinear": lambda: Trilinear(*xs[3:]),
    }  # fmt: skip
    masking = MASKS[mask]
    masking = masking[..., :queries, :] if isinstance(masking, np.ndarray) else masking
    return function(
        *xs[:3], score=made[name](), mask=masking, normalizer=normalizer, dropout=dropout,
        dropout_seed=jax.random.key(3), **options,
    )  # fmt: skip


def results(case: Any, xs: list[Any], impl: str) -> list[Any]:
    """Return the output and the gradients of all inputs."""

    def loss(xs: list[Any]) -> Any:
        output = call(attention, case, xs, impl=impl)
        return (output * jnp.cos(jnp.arange(output.size).reshape(output.shape))).sum(), output

    slopes, output = jax.jit(jax.grad(loss, has_aux=True))(xs)
    return [output, *slopes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_the_sigmoid(case: Any) -> None:
    xs = inputs(case[1])
    assert call(plan, case, xs).route == "pallas"
    assert "pallas_call" in str(jax.make_jaxpr(lambda xs: results(case, xs, "fused"))(xs))
    found, right = (results(case, xs, impl) for impl in ("fused", "reference"))
    for x, y in zip(found, right, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
    if case[2] == "lengths":
        assert not np.asarray(found[0][:, 0]).any()


def test_nan_in_masked_keys_is_not_read() -> None:
    xs = inputs(70)
    poisoned = [x.at[..., 50, :].set(jnp.nan) if i in (1, 2) else x for i, x in enumerate(xs)]
    case = "additive", 70, "lengths", 0.0, "sigmoid"
    made = map(partial(results, case, impl="fused"), (xs, poisoned))
    for x, y in zip(*made, strict=True):
        np.testing.assert_array_equal(x, y)
