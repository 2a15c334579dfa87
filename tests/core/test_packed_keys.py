"""Keys packed step by step are within the budget at every magnitude, after any earlier keys."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from core import raw
from core.call import Call, stored
from core.draw import draw
from core.raw import check, core, nan, prepare
from core.test_magnitudes import CHANGES, HIDDEN, KEYS, made

pytestmark = pytest.mark.sample

STEPS = {
    "one by one": list(range(KEYS + 1)),
    "a prompt": [0, 50, *range(51, KEYS + 1)],
    "parts": [0, 1, 4, 68, KEYS],
}


def appended(call: Call, ends: list[int], threads: int = 1) -> np.ndarray:
    """Return keys packed in steps; rows without a key are NaN, and no step reads them."""
    packed = nan((*call.b.shape[:-2], call.keys + 1, call.b.shape[-1]), call.compute)
    b = np.full_like(call.b, 0x7FC0 if call.b.dtype == np.int16 else np.nan)
    for start, end in pairwise(ends):
        b[..., start:end, :] = call.b[..., start:end, :]
        core.append_keys(call.pair, b, packed, start, end - start, threads)
    return packed


def step_of(change: str, queries: int, **given: Any) -> Call:
    rng = np.random.default_rng(len(change))
    call = made("tanh", CHANGES[change], rng)
    step = {"queries": queries, "a": call.a[:, 3 : 3 + queries], "d_lse": None}
    fields = {"b": call.b, "lead": call.lead, "keys": KEYS, "hidden": HIDDEN}
    return draw(rng, "tanh", "lengths", "float32", **(fields | step | given))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("change", CHANGES)
def test_every_magnitude(change: str, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "prepare", lambda call, threads=1: appended(call, STEPS[steps]))
    for queries in (1, 2):
        check(step_of(change, queries), prepared=True)


def _grown(b: np.ndarray) -> np.ndarray:
    """Return keys that grow from 1e-3 to 1e4: small, then ordinary, then wide."""
    return b * np.logspace(-3, 4, KEYS)[:, None]


def _drifting(b: np.ndarray) -> np.ndarray:
    """Return keys that drift away from 0 and back beyond it."""
    return b + 90 * np.sin(np.linspace(0, 5, KEYS))[:, None]


def _far_at_once(b: np.ndarray) -> np.ndarray:
    """Return small keys with the first one far away."""
    b = b * 1e-2
    b[:, 0] += 1e3
    return b


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("change", [_grown, _drifting, _far_at_once])
def test_ranges_that_change(change: Any, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    b = change(rng.standard_normal((2, KEYS, HIDDEN)))[:, ::order].astype(np.float32)
    monkeypatch.setattr(raw, "prepare", lambda call, threads=1: appended(call, list(range(71))))
    for compute in ("float32", "float64"):
        sizes = {"lead": (2,), "queries": 1, "keys": KEYS, "hidden": HIDDEN}
        call = draw(rng, "tanh", "none", "float32", b=b, **sizes)
        call = raw.with_compute(call, compute) if compute == "float64" else call
        check(call, prepared=True, gradients=False)


def test_as_prepared_at_once() -> None:
    """Steps give the bits of one `prepare` if the first step has the range of all keys."""
    call = step_of("1", 1)
    call.b.flags.writeable = True
    call.b[:, 0] = 3  # so no feature is small
    whole = prepare(call)
    for ends in STEPS.values():
        for threads in (1, 3):
            assert appended(call, ends, threads).tobytes() == whole.tobytes()


def test_only_new_rows_are_written() -> None:
    call = step_of("1", 1)
    call.b.flags.writeable = True
    call.b[:, 0] = 3
    packed = prepare(call)
    known = packed.copy()
    packed[:, 1 + 5 : 1 + 9] = np.nan
    core.append_keys("tanh", call.b, packed, 5, 2, 1)
    assert packed[:, 6:8].tobytes() == known[:, 6:8].tobytes()
    assert np.isnan(packed[:, 8:10]).all()
    assert packed[:, 10:].tobytes() == known[:, 10:].tobytes()


@pytest.mark.parametrize("change", ["1", "0.01", "few wide features", "shifted"])
def test_a_ring(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """New rows replace old ones in a ring, also in a step that wraps around."""
    whole = step_of(change, 1)
    for room in (7, 66):
        b = np.full((2, room, HIDDEN), np.nan, np.float32)
        packed, start = nan((2, room + 1, HIDDEN), "float32"), 0
        for count in (3, 3, 5, 1, 7, 6):
            places = (start + np.arange(count)) % room
            b[:, places] = whole.b[:, start : start + count]
            core.append_keys("tanh", b, packed, start, count, 1)
            start += count
        some = min(start, room)
        rng = np.random.default_rng(0)
        given = {"lead": (2,), "keys": some, "hidden": HIDDEN, "a": whole.a}
        call = draw(rng, "tanh", "none", "float32", queries=1, b=b[:, :some], **given)
        monkeypatch.setattr(raw, "prepare", lambda *_, p=packed, n=some: p[:, : n + 1].copy())
        check(call, prepared=True, gradients=False)


def test_a_ring_of_any_age() -> None:
    """A ring may have had 2⁶³ tokens; a row out of the range packs all rows anew."""
    b = np.ones((2, 4, HIDDEN), np.float32)
    results = []
    for start in (4, 2**63 - 4):
        packed = nan((2, 5, HIDDEN), "float32")
        core.append_keys("tanh", b, packed, 0, 4, 1)
        changed = b.copy()
        changed[:, 0] = 40.0
        core.append_keys("tanh", changed, packed, start, 4, 1)
        results.append(packed.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("fill", [np.nan, np.inf, 1e30])
def test_irregular_keys(fill: float, monkeypatch: pytest.MonkeyPatch) -> None:
    call = step_of("1", 1)
    call.b.flags.writeable = True
    call.b[0, 9, 5] = call.b[1, 0, 0] = fill
    call = replace(call, scale=1e-3)
    monkeypatch.setattr(raw, "prepare", lambda call, threads=1: appended(call, STEPS["parts"]))
    check(call, alike=True, prepared=True, gradients=False)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    call = draw(rng, "tanh", "lengths", dtype, queries=1, keys=KEYS, hidden=HIDDEN)
    monkeypatch.setattr(raw, "prepare", lambda call, threads=1: appended(call, STEPS["a prompt"]))
    check(call, prepared=True, gradients=False)


def test_errors() -> None:
    b, packed = np.ones((2, 5, 3), np.float32), np.zeros((2, 6, 3), np.float32)
    for start, count in ((-1, 1), (0, -1), (0, 6)):
        with pytest.raises(ValueError, match="b has no room for so many keys"):
            core.append_keys("tanh", b, packed, start, count, 1)
    with pytest.raises(ValueError, match="packed has shape"):
        core.append_keys("tanh", b, stored(packed[:, :5], "float32"), 0, 1, 1)
    core.append_keys("tanh", b[:, :0], packed[:, :1].copy(), 0, 0, 1)
