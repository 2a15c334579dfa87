"""Scores × masks in JAX agree with the oracle: values, and gradients of compiled calls.

The rows are a part of the tables, since JAX compiles every operation anew for every shape. A row
takes a second or two. `make parity` measures all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyscore import Additive, Score, attention, log_weights, scores
from helpers import far_rows, plain
from helpers.budget import assert_gradients_within_budget, assert_within_budget
from helpers.by_pair import by_pair
from helpers.cases import MASKS, SCORES, case
from helpers.gradient_rows import exact_gradients, projections, terms
from helpers.table_rows import exact, keep

pytestmark = pytest.mark.sample

FEW = ("none", "lengths", "boolean_full", "four")
MASKS_OF = {score: [FEW[n % len(FEW)]] for n, score in enumerate(SCORES)}
MASKS_OF["scaled_dot"] = [mask for n, mask in enumerate(MASKS) if n % 2 or mask in FEW]
MASKS_OF["additive_each"] = [mask for n, mask in enumerate(MASKS) if not n % 2 or mask in FEW]
EMITTERS = {"xla_cpu_use_fusion_emitters": True}
"""Compiler options that undo the flags of conftest.py."""


@pytest.fixture(autouse=True)
def _as_users_compile() -> Iterator[None]:
    """Compile with all optimizations, which conftest.py leaves out elsewhere."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@by_pair("score", SCORES)
def test_values(score: str) -> None:
    for mask in MASKS_OF[score]:
        row = (score, "heads", mask)
        c = case(*row)
        tensors = [jnp.asarray(x) for x in (c.query, c.key, c.value)]
        options = {"score": c.score.build(c.parameters, jnp.asarray), **c.masking(jnp.asarray)}
        found = attention(*tensors, **options, return_weights=True, return_lse=True)
        found += (attention(*tensors, **options),)
        with np.errstate(all="ignore"):  # NumPy compiles nothing
            built = c.score.build(c.parameters, np.asarray)
            same = plain.attend(np, c.query, c.key, c.value, built, keep(*row[1:]))
        for x, want, simple in zip(
            found, (*exact(*row), exact(*row).output), (*same, same[0]), strict=True
        ):
            assert_within_budget(x, want, simple, str(row), "float32")


@by_pair(
    ("score", "dtype"),
    [
        *((score, np.float64) for score in SCORES),
        *(
            (score, np.float32)
            for score in ("bilinear", "trilinear", "gaussian_each", "additive_bias")
        ),
    ],
)
def test_gradients(score: str, dtype: Any) -> None:
    """Compiled gradients of all inputs keep the budget."""
    row = (score, "heads", "four")
    c = case(*row)
    array = partial(jnp.asarray, dtype=dtype)
    inputs = {"query": array(c.query), "key": array(c.key), "value": array(c.value)}
    built = c.score.build(c.parameters, array)
    inputs |= built.tensors() if isinstance(built, Score) else {}
    masking = c.masking(np.asarray)
    upstream = [jnp.asarray(x, dtype) for x in projections(row)]

    def through(call: Any) -> Any:
        def total(given: dict[str, Any]) -> Any:
            fields = {**c.parameters, **{x: given[x] for x in given if x in c.parameters}}
            built = c.score.build(fields, array)
            results = call(given["query"], given["key"], given["value"], built)
            return sum((x * g).sum() for x, g in zip(results, upstream, strict=True))

        compiled = jax.jit(jax.grad(total), compiler_options=EMITTERS)
        return {name: np.asarray(x) for name, x in compiled(inputs).items()}

    def ours(*tensors: Any) -> Any:
        found = attention(*tensors[:3], score=tensors[3], **masking, return_lse=True)
        return found.output, jnp.where(jnp.isfinite(found.lse), found.lse, 0.0)

    def plainly(*tensors: Any) -> Any:
        output, _, lse = plain.attend(jnp, *tensors, jnp.asarray(keep(*row[1:])))
        return output, jnp.where(jnp.isfinite(lse), lse, 0.0)

    actual, want = through(ours), exact_gradients(row)
    assert actual.keys() == want.keys()
    try:  # first without plain operations, which seldom decide but compile as long
        assert_gradients_within_budget(actual, want, want, partial(terms, row))
    except AssertionError:
        assert_gradients_within_budget(actual, want, through(plainly), partial(terms, row))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_rows_far_from_0(impl: str) -> None:
    """Rows of −1e9 and of finite minima are as exact as others."""
    q, k, value, bias, upstream = map(jnp.asarray, far_rows.example().values())
    options = {"score": Additive(None, None, jnp.ones(4, jnp.float32)), "impl": impl}

    @jax.jit
    def run(value: Any, bias: Any) -> dict[str, Any]:
        output, back = jax.vjp(lambda v, b: attention(q, k, v, bias=b, **options), value, bias)
        found = dict(zip(("output", "d_value", "d_bias"), (output, *back(upstream)), strict=True))
        return found | {"log_weights": log_weights(q, k, bias=bias, **options)}

    found = {name: np.asarray(x) for name, x in run(value, bias).items()}
    s = np.asarray(scores(q, k, bias=bias, **options))
    far_rows.check(s, np.asarray(value), np.asarray(upstream), **found)
