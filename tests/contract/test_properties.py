"""Properties of any call: random shapes, masks, strides and values, with NaN in masked tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyscore import Causal, Interval, Keys, Lengths, Score, Window, attention
from helpers.samples import NAMES, make_score

settings.register_profile(
    "anyscore",
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("anyscore")

SIZES = st.integers(0, 7)
WIDTH = 5


@dataclass
class Case:
    """A call, and its mask as one boolean array (*lead, T_q, T_k)."""

    name: str
    score: Score
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: Any
    keep: np.ndarray

    def run(self, framework: str, **change: Any) -> Any:
        """Return the AttentionOutput as NumPy arrays."""
        call = {"query": self.query, "key": self.key, "value": self.value, "mask": self.mask}
        call |= {"score": self.score, **change}
        tensors = [call.pop(name) for name in ("query", "key", "value")]
        if framework == "torch":
            tensors = [torch.from_numpy(x.copy() if min(x.strides) < 0 else x) for x in tensors]
            call["score"] = call["score"].map(torch.tensor)
        out = attention(*tensors, **call, return_weights=True, return_lse=True)
        return type(out)(*map(np.asarray, out))


@st.composite
def masks(draw: st.DrawFn, lead: tuple[int, ...], queries: int, keys: int) -> Any:
    """Draw (mask or None, its boolean array by plain NumPy)."""
    full = (*lead, queries, keys)
    i, j = np.arange(queries)[:, None], np.arange(keys)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["none", "lengths", "interval", "window", "keys", "array", "and"]))
    if kind == "none":
        return None, np.ones(full, bool)
    if kind == "lengths":
        n = rng.integers(-1, keys + 2, (*lead, queries)).astype(float)
        n[rng.random(n.shape) < 0.1] = math.inf
        return Lengths(n), np.broadcast_to(j < n[..., None], full)
    if kind == "interval":
        start, stop = (rng.integers(-1, keys + 2, (*lead, queries)) for _ in range(2))
        return Interval(start, stop), (start[..., None] <= j) & (j < stop[..., None])
    if kind == "window":
        left, right = (draw(st.none() | st.integers(0, 8)) for _ in range(2))
        offset = draw(st.integers(-3, 9))
        mask = Window(left, right, offset=offset)
        if right == 0 and left is None:
            mask = Causal(offset=offset)
        keep = np.ones((queries, keys), bool)
        if left is not None:
            keep &= j >= i + offset - left
        if right is not None:
            keep &= j <= i + offset + right
        return mask, np.broadcast_to(keep, full)
    if kind == "keys":
        keep = rng.random((*lead, keys)) < 0.6
        return Keys(keep), np.broadcast_to(keep[..., None, :], full)
    shape = tuple(n if draw(st.booleans()) else 1 for n in full)
    array = rng.random(shape) < 0.6
    if kind == "array":
        return array, np.broadcast_to(array, full)
    mask, keep = draw(masks(lead, queries, keys))
    both = array if mask is None else array & mask if draw(st.booleans()) else mask & array
    return both, keep & array


def strided(draw: st.DrawFn, x: np.ndarray) -> np.ndarray:
    """Draw the same values in another layout."""
    how = draw(st.sampled_from(["as it is", "backwards", "column-major", "every other"]))
    if how == "backwards":
        return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]
    if how == "column-major":
        return np.asfortranarray(x)
    if how == "every other":
        return np.repeat(x, 2, axis=-1)[..., ::2]
    return x


@st.composite
def cases(draw: st.DrawFn) -> Case:
    name = draw(st.sampled_from(NAMES))
    lead = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    queries, keys, d_v = draw(SIZES), draw(SIZES), draw(SIZES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask, keep = draw(masks(lead, queries, keys))
    scale = draw(st.sampled_from([1e-2, 1.0, 30.0]))
    query = rng.standard_normal((*lead, queries, WIDTH)) * scale
    key = rng.standard_normal((*lead, keys, WIDTH)) * scale
    value = rng.standard_normal((*lead, keys, d_v))
    fill = draw(st.sampled_from([0.0, math.nan, math.inf]))
    query[~keep.any(-1)] = fill
    for x in (key, value):
        x[~keep.any(-2)] = fill
    tensors = [strided(draw, x) for x in (query, key, value)]
    return Case(name, make_score(name), *tensors, mask=mask, keep=keep)


FRAMEWORKS = st.sampled_from(["numpy", "torch"])


def close(found: Any, expected: Any) -> None:
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)


@given(case=cases(), framework=FRAMEWORKS)
def test_rows_of_weights_sum_to_one_or_nothing(case: Case, framework: str) -> None:
    out = case.run(framework)
    attends = case.keep.any(-1)
    assert out.weights.shape == case.keep.shape
    assert (out.weights >= 0).all()
    assert (out.weights[~case.keep] == 0).all()
    np.testing.assert_allclose(out.weights.sum(-1), attends, atol=1e-12)
    assert (out.lse[~attends] == -math.inf).all()
    assert np.isfinite(out.lse[attends]).all()
    assert (out.output[~attends] == 0).all()


@given(case=cases(), framework=FRAMEWORKS)
def test_output_lies_among_the_attended_values(case: Case, framework: str) -> None:
    """Each feature of the output lies between the least and the largest attended value."""
    out = case.run(framework).output
    keep, value = case.keep[..., None], case.value[..., None, :, :]
    attends = case.keep.any(-1)
    low = np.where(keep, value, math.inf).min(-2, initial=math.inf)
    high = np.where(keep, value, -math.inf).max(-2, initial=-math.inf)
    assert (out[attends] >= low[attends] - 1e-12).all()
    assert (out[attends] <= high[attends] + 1e-12).all()


@given(case=cases(), framework=FRAMEWORKS, seed=st.integers(0, 2**32))
def test_keys_have_no_order(case: Case, framework: str, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(case.key.shape[-2])
    found = case.run(
        framework,
        key=case.key[..., order, :],
        value=case.value[..., order, :],
        mask=case.keep[..., order],
    )
    expected = case.run(framework)
    close(found, expected._replace(weights=expected.weights[..., order]))


@given(case=cases(), framework=FRAMEWORKS)
def test_a_batch_is_a_loop(case: Case, framework: str) -> None:
    together = case.run(framework)
    for index in np.ndindex(case.keep.shape[:-2]):
        alone = case.run(
            framework,
            query=case.query[index],
            key=case.key[index],
            value=case.value[index],
            mask=case.keep[index],
        )
        close(alone, [x[index] for x in together])


@given(case=cases(), framework=FRAMEWORKS)
def test_a_query_at_a_time_is_a_loop(case: Case, framework: str) -> None:
    """One query at a time, as in decoding, gives the rows of the whole call."""
    together = case.run(framework)
    for i in range(case.query.shape[-2]):
        one = slice(i, i + 1)
        alone = case.run(framework, query=case.query[..., one, :], mask=case.keep[..., one, :])
        close(
            alone,
            [together.output[..., one, :], together.weights[..., one, :], together.lse[..., one]],
        )


@given(
    case=cases(),
    framework=FRAMEWORKS,
    more=st.integers(1, 3),
    fill=st.sampled_from([1e4, math.nan, math.inf]),
)
def test_masked_keys_change_nothing(case: Case, framework: str, more: int, fill: float) -> None:
    def padded(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x, np.full((*x.shape[:-2], more, x.shape[-1]), fill)], axis=-2)

    found = case.run(
        framework,
        key=padded(case.key),
        value=padded(case.value),
        mask=np.concatenate([case.keep, np.zeros((*case.keep.shape[:-1], more), bool)], axis=-1),
    )
    expected = case.run(framework)
    close(found._replace(weights=found.weights[..., : case.key.shape[-2]]), expected)


@given(case=cases())
def test_frameworks_agree(case: Case) -> None:
    close(case.run("torch"), case.run("numpy"))


@given(case=cases(), framework=FRAMEWORKS, at=st.floats(0, 1))
def test_two_halves_of_the_keys_make_the_whole(case: Case, framework: str, at: float) -> None:
    """Outputs of two halves of the keys combine by their log-sum-exps, as in parallel attention."""
    keys = case.key.shape[-2]
    whole = case.run(framework)
    middle = round(at * keys)
    parts = [
        case.run(
            framework,
            key=case.key[..., part, :],
            value=case.value[..., part, :],
            mask=case.keep[..., part],
        )
        for part in (slice(0, middle), slice(middle, keys))
    ]
    lse = np.logaddexp(parts[0].lse, parts[1].lse)
    close([lse], [whole.lse])
    top = np.where(np.isfinite(lse), lse, 0.0)
    shares = [np.exp(part.lse - top)[..., None] for part in parts]
    close(
        [sum(share * part.output for share, part in zip(shares, parts, strict=True))],
        [whole.output],
    )
