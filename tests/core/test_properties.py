"""Properties of the C++ core: random shapes, strides and masks, and values of any size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.call import DTYPES, PAIRS, numbers, stored
from core.draw import LEADS, MASKS, draw
from core.raw import check, run, same

pytestmark = pytest.mark.sample

SMALL = st.sampled_from([0, 1, 2, 3, 8, 15, 16, 17, 33])
VALUES = st.sampled_from([0.0, -0.0, 1e-38, 1e-4, 0.3, -1.0, 3.0, 24.5, -50.0, 1e3, math.nan])
FIXED = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
@FIXED
@given(
    seed=st.integers(0, 2**32 - 1),
    pair=st.sampled_from(PAIRS),
    mask=st.sampled_from(MASKS),
    dtype=st.sampled_from(DTYPES),
    lead=st.sampled_from(LEADS),
    sizes=st.tuples(SMALL, SMALL, SMALL, SMALL),
    values=st.lists(VALUES, min_size=0, max_size=6),
    where=st.sampled_from(["a", "b", "both", "value"]),
    threads=st.integers(1, 5),
    prepared=st.booleans(),
)
def test_against_the_literal_formulas(
    seed: int,
    pair: str,
    mask: str,
    dtype: str,
    lead: tuple[tuple[int, ...], int],
    sizes: tuple[int, ...],
    values: list[float],
    where: str,
    threads: int,
    prepared: bool,
) -> None:
    rng = np.random.default_rng(seed)
    named = dict(zip(("queries", "keys", "hidden", "width"), sizes, strict=True))
    call = draw(rng, pair, mask, dtype, lead=lead[0], groups=lead[1], **named)
    for name in ("a", "b") if where == "both" else (where,):
        x = getattr(call, name)
        if values and x.size:
            x.flags.writeable = True
            for value in values:
                x[tuple(rng.integers(n) for n in x.shape)] = stored(np.array(value), dtype)
    check(call, threads=threads, prepared=prepared and pair == "tanh")


@FIXED
@given(
    seed=st.integers(0, 2**32 - 1),
    pair=st.sampled_from(PAIRS),
    mask=st.sampled_from(MASKS),
    dtype=st.sampled_from(DTYPES),
)
def test_results_do_not_depend_on_strides(seed: int, pair: str, mask: str, dtype: str) -> None:
    """Dense arrays give the same bits."""
    call = draw(np.random.default_rng(seed), pair, mask, dtype)
    arrays: dict[str, Any] = {
        name: np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x
        for name, x in vars(call).items()
    }
    assert same(run(call), run(type(call)(**arrays)))


@FIXED
@given(
    seed=st.integers(0, 2**32 - 1),
    pair=st.sampled_from(PAIRS),
    mask=st.sampled_from(MASKS),
)
def test_weights_make_the_output(seed: int, pair: str, mask: str) -> None:
    """Weights of a query sum to 1, or to 0 if its log-sum-exp is −∞; weights · values = output."""
    call = draw(np.random.default_rng(seed), pair, mask, "float32", lead=(2,), dropout=0.0)
    found = run(call)
    total = found["weights"].sum(-1, dtype=np.float64)
    empty = found["lse"] == -math.inf
    np.testing.assert_allclose(total, np.where(empty, 0, 1), atol=1e-4)
    output = found["weights"].astype(np.float64) @ numbers(call.value)
    np.testing.assert_allclose(found["output"], output, rtol=1e-4, atol=1e-4)
