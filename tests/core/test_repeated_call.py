"""`_core.RepeatedCall` gives the bits of `forward` and `backward`, or nothing for other arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyscore.call.operands import Operands, Results, Settings
from anyscore.kernels import cpu

pytestmark = [pytest.mark.sample, pytest.mark.sanitize]

Arrays = list[Any]


def arrays(
    lead: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    dtype: Any,
    rng: Any,
    groups: int = 1,
    has_bias: bool = False,
) -> Arrays:
    """Draw a, b, weight, key_bias and value for sizes (queries, keys, width, value width)."""
    queries, keys, width, value_width = sizes
    of_keys = (*lead[:-1], lead[-1] // groups) if lead else lead
    shapes = (
        (*lead, queries, width),
        (*of_keys, keys, width),
        (width,),
        (*of_keys, keys),
        (*of_keys, keys, value_width),
    )
    xs: Arrays = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    xs[3] = xs[3] if has_bias else None
    return xs


def repeated(xs: Arrays, bounds: Arrays, s: Settings, keeps_scores: bool = False) -> Any:
    """Return the repeated call of arrays, with bounds: start, stop and mask."""
    start, stop, mask = bounds
    x = Operands(*xs, start=start, stop=stop, mask=mask, seed=1 if s.dropout else None)
    return cpu.repeated_call(
        x, s, None, lambda like, shape: np.empty(shape, like.dtype), keeps_scores
    )


def both(
    xs: Arrays, bounds: Arrays, s: Settings, above: Any, keeps_scores: bool, seed: Any
) -> Arrays:
    """Return all results and gradients of `forward` and `backward`, which check everything."""
    start, stop, mask = bounds
    x = Operands(*xs, start=start, stop=stop, mask=mask, seed=seed)
    output, rows = np.empty_like(above), above.shape[:-1]
    stats = np.empty((*rows[:-1], 2, rows[-1]), above.dtype)
    scores = np.empty((*rows, x.b.shape[-2]), above.dtype) if keeps_scores else None
    cpu.forward(x, s, Results(output, stats, scores), 1)
    to = [None if y is None else np.empty_like(y) for y in xs]
    results = Results(None if keeps_scores else output, stats, scores)
    cpu.backward(x, s, results, Results(above, None), Operands(*to), 1)
    return [output, stats, scores, *to]


NOTHING = [None, None, None]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(1, 20)),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["product", "tanh", "leaky_relu", "absolute", "squared"]),
    st.sets(st.sampled_from(["start", "stop", "mask", "bias", "dropout"])),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
def test_the_same_bits(
    lead: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    dtype: Any,
    pair: str,
    has: set[str],
    keeps_scores: bool,
    threads: int,
    seed: int,
) -> None:
    """A later call has a seed of its own."""
    rng = np.random.default_rng(seed)
    groups = lead[-1] if lead else 1
    s = Settings(pair, 0.5, groups, 0.4 * ("dropout" in has), int(np.prod(lead)), lead)
    queries, keys, _, width = sizes

    def drawn() -> tuple[Arrays, Arrays]:
        xs = arrays(lead, sizes, dtype, rng, groups, "bias" in has)
        xs[2] = None if pair == "product" else xs[2]
        start, stop = (rng.integers(-1, keys + 2, (*lead, queries)) for _ in range(2))
        mask = rng.random((*lead, queries, keys)) > 0.3
        named = {"start": start, "stop": stop, "mask": mask}
        return xs, [x if name in has else None for name, x in named.items()]

    core = repeated(*drawn(), s, keeps_scores)
    for later in range(2):
        xs, bounds = drawn()
        above = rng.standard_normal((*lead, queries, width)).astype(dtype)
        of_dropout = [seed + later if s.dropout else None]
        exact = both(xs, bounds, s, above, keeps_scores, *of_dropout)
        output, stats, scores = core.forward((*xs, None, *bounds, *of_dropout), threads)
        results = scores if keeps_scores else output, stats, above
        found = core.backward((*xs, None, *bounds, *of_dropout), *results, threads)
        for x, y in zip([output, stats, scores, *found], exact, strict=True):
            assert (x is None) == (y is None)
            assert x is None or x.tobytes() == y.tobytes()
        alone = core.infer((*xs, None, *bounds, *of_dropout), threads)
        assert alone.tobytes() == output.tobytes()


def test_arrays_of_another_kind_give_nothing() -> None:
    rng = np.random.default_rng(0)
    xs = arrays((2,), (3, 5, 8, 4), np.float32, rng)
    s = Settings("tanh", 1.0, 1, 0.0, 2, (2,))
    a, b, weight, _, value = xs
    bounds: Arrays = [None, np.array([[5], [2]]), None]
    core = repeated(xs, bounds, s)
    output, stats, _ = core.forward((*xs, None, *bounds, None), 1)
    above = np.ones_like(output)
    others: Arrays = [
        ([a[:1], b, weight, None, value], bounds),
        ([a.astype(np.float64), b, weight, None, value], bounds),
        ([a, np.asfortranarray(b), weight, None, value], bounds),
        ([a, b, None, None, value], bounds),
        ([a, b, weight, b[..., 0], value], bounds),
        (xs, NOTHING),
        (xs, [None, bounds[1].astype(np.int32), None]),
        (xs, [bounds[1], bounds[1], None]),
        (xs, [None, bounds[1], np.ones((2, 3, 5), bool)]),
    ]
    for tensors, of_mask in others:
        assert core.infer((*tensors, None, *of_mask, None), 1) is None
        assert core.forward((*tensors, None, *of_mask, None), 1) is None
        assert core.backward((*tensors, None, *of_mask, None), output, stats, above, 1) is None
    packed = np.zeros((2, 6, 8), np.float32)
    assert core.forward((*xs, packed, *bounds, None), 1) is None
    for wrong in (
        (output[:, :2], stats, above),
        (output, stats[..., :2], above),
        (output, stats.astype(np.float64), above),
        (output, stats, above[..., :2]),
        (output, stats, [1.0]),
    ):
        with pytest.raises((ValueError, TypeError)):
            core.backward((*xs, None, *bounds, None), *wrong, 1)


def test_a_seed_is_an_integer() -> None:
    xs = arrays((2,), (3, 5, 8, 4), np.float32, np.random.default_rng(0))
    core = repeated(xs, NOTHING, Settings("tanh", 1.0, 1, 0.5, 2, (2,)))
    for wrong in (None, 1.0, np.ones(())):
        with pytest.raises(ValueError, match="seed must be an integer"):
            core.infer((*xs, None, *NOTHING, wrong), 1)
    with pytest.raises(ValueError, match="ten operands"):
        core.infer((*xs, None, *NOTHING), 1)


def test_layouts_of_the_gradient_from_above() -> None:
    rng = np.random.default_rng(0)
    xs = arrays((2,), (3, 5, 8, 4), np.float32, rng)
    core = repeated(xs, NOTHING, Settings("tanh", 1.0, 1, 0.0, 2, (2,)))
    output, stats, _ = core.forward((*xs, None, *NOTHING, None), 1)
    wide = rng.standard_normal((2, 3, 8)).astype(np.float32)
    for above in (wide[..., ::2], np.broadcast_to(wide[:1, :1, :1], (2, 3, 4))):
        dense = np.ascontiguousarray(above)
        found, exact = (
            core.backward((*xs, None, *NOTHING, None), output, stats, d, 1) for d in (above, dense)
        )
        assert [x is None or x.tobytes() for x in found] == [
            x is None or x.tobytes() for x in exact
        ]


def test_other_scores_than_those_of_the_forward() -> None:
    rng = np.random.default_rng(0)
    xs = arrays((2,), (3, 5, 8, 4), np.float32, rng)
    core = repeated(xs, NOTHING, Settings("tanh", 1.0, 1, 0.0, 2, (2,)), keeps_scores=True)
    output, stats, scores = core.forward((*xs, None, *NOTHING, None), 1)
    for wrong in (scores[..., :4], scores.astype(np.float64), np.asfortranarray(scores), output):
        with pytest.raises(ValueError, match="scores"):
            core.backward((*xs, None, *NOTHING, None), wrong, stats, output, 1)


@pytest.mark.parametrize("wrong", ["copied", "large"])
def test_calls_that_cannot_be_repeated(wrong: str) -> None:
    rng = np.random.default_rng(0)
    lead = {"large": (5000,)}.get(wrong, (2,))
    xs = arrays(lead, (3, 5, 8, 4), np.float32, rng)
    if wrong == "copied":
        xs[1] = np.asfortranarray(xs[1])
    with pytest.raises(ValueError, match=r"\."):
        repeated(xs, NOTHING, Settings("tanh", 1.0, 1, 0.0, 2, lead))


@pytest.mark.parametrize("wrong", ["half", "empty", "scores"])
def test_calls_without_a_repeated_backward(wrong: str) -> None:
    rng = np.random.default_rng(0)
    lead = {"empty": (0,)}.get(wrong, (2,))
    dtype = np.float16 if wrong == "half" else np.float32
    xs = arrays(lead, (3, 65 if wrong == "scores" else 5, 8, 4), dtype, rng)
    s = Settings("tanh", 1.0, 1, 0.0, 2, lead)
    core = repeated(xs, NOTHING, s, wrong == "scores")
    assert core.forward((*xs, None, *NOTHING, None), 1) is None
    assert core.infer((*xs, None, *NOTHING, None), 1).shape == (*lead, 3, 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_are_not_finite_are_found(dtype: Any) -> None:
    x = np.ones((3, 4, 37), dtype)
    layouts = (x, x[:, ::2], x[..., ::3], x.transpose(2, 0, 1), x[:0], np.ones((), dtype))
    for wrong in (np.nan, np.inf, -np.inf):
        for y in layouts:
            assert cpu.is_finite(y)
            if y.size:
                last = tuple(n - 1 for n in y.shape)
                y[last] = wrong
                assert not cpu.is_finite(y)
                y[last] = 1
    assert not cpu.is_finite(x.astype(np.float16))
    assert not cpu.is_finite(np.ones(3, np.int64))
