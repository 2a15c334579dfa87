"""`_core.TrainAgain` gives the bits of `forward` and `backward`, or nothing for other arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu

pytestmark = pytest.mark.sanitize

Arrays = list[Any]


def arrays(
    lead: tuple[int, ...], sizes: tuple[int, int, int, int], dtype: Any, rng: Any, groups: int = 1
) -> Arrays:
    """Draw a, b, weight and value for sizes (queries, keys, width, value width)."""
    queries, keys, width, value_width = sizes
    of_keys = (*lead[:-1], lead[-1] // groups) if lead else lead
    shapes = (
        (*lead, queries, width),
        (*of_keys, keys, width),
        (width,),
        (*of_keys, keys, value_width),
    )
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def train_again(xs: Arrays, stop: Any, s: Settings, keeps_scores: bool = False) -> Any:
    a, b, weight, value = xs
    x = Operands(a, b, weight, value=value, stop=stop)
    return cpu.train_again(x, s, lambda like, shape: np.empty(shape, like.dtype), keeps_scores)


def both(xs: Arrays, stop: Any, s: Settings, above: Any, keeps_scores: bool) -> Arrays:
    """Return all results and gradients of `forward` and `backward`, which check everything."""
    a, b, weight, value = xs
    x = Operands(a, b, weight, value=value, stop=stop)
    output, rows = np.empty_like(above), above.shape[:-1]
    stats = np.empty((*rows[:-1], 2, rows[-1]), a.dtype)
    scores = np.empty((*rows, b.shape[-2]), a.dtype) if keeps_scores else None
    cpu.forward(x, s, Results(output, stats, scores), 1)
    to = [None if y is None else np.empty_like(y) for y in xs]
    gradients = Operands(to[0], to[1], to[2], value=to[3])
    results = Results(None if keeps_scores else output, stats, scores)
    cpu.backward(x, s, results, Results(above, None), gradients, 1)
    return [output, stats, scores, *to]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(1, 20)),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["product", "tanh", "leaky_relu", "absolute", "squared"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_the_same_bits(
    lead: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    dtype: Any,
    pair: str,
    limits: bool,
    keeps_scores: bool,
    threads: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    groups = lead[-1] if lead else 1
    s = Settings(pair, 0.5, groups, 0.0, int(np.prod(lead)), lead)
    xs = arrays(lead, sizes, dtype, rng, groups)
    xs[2] = None if pair == "product" else xs[2]

    def stop_of(most: int) -> Any:
        return rng.integers(-1, most, (*lead, 1)) if limits else None

    core = train_again(xs, stop_of(sizes[1] + 2), s, keeps_scores)
    for _ in range(2):
        xs = [x if x is None else rng.standard_normal(x.shape).astype(dtype) for x in xs]
        above = rng.standard_normal((*lead, sizes[0], sizes[3])).astype(dtype)
        stop = stop_of(sizes[1] + 2)
        a, b, weight, value = xs
        output, stats, scores = core.forward(a, b, weight, value, None, stop, threads)
        results = stop, scores if keeps_scores else output, stats, above, threads
        found = [output, stats, scores, *core.backward(a, b, weight, value, *results)]
        for x, y in zip(found, both(xs, stop, s, above, keeps_scores), strict=True):
            assert (x is None) == (y is None)
            assert x is None or x.tobytes() == y.tobytes()


def test_arrays_of_another_kind_give_nothing() -> None:
    rng = np.random.default_rng(0)
    xs = arrays((2,), (3, 5, 8, 4), np.float32, rng)
    s = Settings("tanh", 1.0, 1, 0.0, 2, (2,))
    a, b, weight, value = xs
    stop = np.array([[5], [2]])
    core = train_again(xs, stop, s)
    output, stats, _ = core.forward(a, b, weight, value, None, stop, 1)
    above = np.ones_like(output)
    others: Arrays = [
        [a[:1], b, weight, value, stop],
        [a.astype(np.float64), b, weight, value, stop],
        [a, np.asfortranarray(b), weight, value, stop],
        [a, b, None, value, stop],
        [a, b, weight, value, None],
        [a, b, weight, value, stop.astype(np.int32)],
    ]
    for other in others:
        assert core.forward(*other[:4], None, other[4], 1) is None
        assert core.backward(*other, output, stats, above, 1) is None
    assert core.forward(a, b, weight, value, np.zeros((2, 6, 8), np.float32), stop, 1) is None
    for wrong in (
        (output[:, :2], stats, above),
        (output, stats[..., :2], above),
        (output, stats.astype(np.float64), above),
        (output, stats, above[..., :2]),
        (output, stats, [1.0]),
    ):
        with pytest.raises((ValueError, TypeError)):
            core.backward(*xs, stop, *wrong, 1)


def test_layouts_of_the_gradient_from_above() -> None:
    rng = np.random.default_rng(0)
    xs = arrays((2,), (3, 5, 8, 4), np.float32, rng)
    s = Settings("tanh", 1.0, 1, 0.0, 2, (2,))
    core = train_again(xs, None, s)
    output, stats, _ = core.forward(*xs, None, None, 1)
    wide = rng.standard_normal((2, 3, 8)).astype(np.float32)
    for above in (wide[..., ::2], np.broadcast_to(wide[:1, :1, :1], (2, 3, 4))):
        found = core.backward(*xs, None, output, stats, above, 1)
        exact = core.backward(*xs, None, output, stats, np.ascontiguousarray(above), 1)
        assert [x.tobytes() for x in found] == [x.tobytes() for x in exact]


def test_other_scores_than_those_of_the_forward() -> None:
    rng = np.random.default_rng(0)
    xs = arrays((2,), (3, 5, 8, 4), np.float32, rng)
    core = train_again(xs, None, Settings("tanh", 1.0, 1, 0.0, 2, (2,)), keeps_scores=True)
    output, stats, scores = core.forward(*xs, None, None, 1)
    for wrong in (scores[..., :4], scores.astype(np.float64), np.asfortranarray(scores), output):
        with pytest.raises(ValueError, match="scores"):
            core.backward(*xs, None, wrong, stats, output, 1)


@pytest.mark.parametrize("wrong", ["half", "empty", "copied", "large", "scores"])
def test_calls_whose_place_no_other_can_take(wrong: str) -> None:
    rng = np.random.default_rng(0)
    lead = {"empty": (0,), "large": (5000,)}.get(wrong, (2,))
    dtype = np.float16 if wrong == "half" else np.float32
    xs = arrays(lead, (3, 65 if wrong == "scores" else 5, 8, 4), dtype, rng)
    if wrong == "copied":
        xs[1] = np.asfortranarray(xs[1])
    with pytest.raises(ValueError, match=r"\."):
        train_again(xs, None, Settings("tanh", 1.0, 1, 0.0, 2, lead), wrong == "scores")
