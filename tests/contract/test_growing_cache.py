"""Steps on a growing cache equal one call with all tokens, for every score and mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from anyscore import (
    ALiBi,
    Causal,
    Interval,
    Keys,
    Lengths,
    Relative,
    ScaledDot,
    Window,
    attention,
    make_cache,
    plan,
)
from helpers import machine, oracle
from helpers.by_pair import by_pair
from helpers.growing_caches import FRAMEWORKS, KV, WITH_A_BIAS, B, H, T, arrays, run, same, to
from helpers.samples import NAMES, make_score, normal

pytestmark = pytest.mark.sample

SCORES = by_pair("name", NAMES)
CHUNKS: dict[str, list[int]] = {"steps": [1] * T, "prompt": [4, *[1] * 7], "parts": [2, 3, 1, 5]}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@FRAMEWORKS
@SCORES
def test_every_score(name: str, framework: str, impl: str) -> None:
    score = make_score(name).map(to(framework))
    for kv in (H, KV, 1):
        q, k, v = map(to(framework), arrays(kv))
        expected = attention(q, k, v, score=score, mask=Causal(), impl=impl)
        for chunks in CHUNKS.values():
            for capacity in (T, 20):
                found = run(q, k, v, score, chunks, {"capacity": capacity}, impl=impl)
                same(found, expected)


@SCORES
def test_against_the_formula(name: str) -> None:
    score = make_score(name)
    q, k, v = arrays(H)
    s = np.where(np.tri(T, dtype=bool), oracle.scores(q, k, score), -np.inf)
    weights = np.exp(s - s.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    same(run(q, k, v, score, CHUNKS["prompt"], {"capacity": 16}), expected, rtol=1e-9)


def _lengths(limit: list[int]) -> Any:
    """Return a mask of steps: rows of the cache from the limit of their example on are padding."""
    return lambda start, n: Lengths(limit)


def _left_padding(start: int, n: int) -> Any:
    keep = np.ones((B, 13), bool)
    keep[0, :3] = False
    return Keys(keep)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # options of the steps on a cache, and of the call with all tokens
    "lengths": ({"mask": _lengths([7, 2])}, {"mask": Causal() & Lengths([7, 2])}),
    "padding": (
        {"mask": _left_padding},
        {"mask": Causal() & Keys(_left_padding(0, 0).keep[:, :T])},
    ),
    "window": (
        {"mask": lambda start, n: Window(2, 0, offset=start)},
        {"mask": Window(2, 0)},
    ),
    "array": (
        {"mask": lambda start, n: (normal(T, 13) > -0.5)[start : start + n]},
        {"mask": Causal() & (normal(T, 13) > -0.5)[:, :T]},
    ),
    "sink": ({"sink": 0.7},) * 2,  # type: ignore[dict-item]
    "sinks": ({"sink": normal(H)},) * 2,  # type: ignore[dict-item]
    "softcap": ({"softcap": 0.5},) * 2,  # type: ignore[dict-item]
    "sigmoid": ({"normalizer": "sigmoid"},) * 2,  # type: ignore[dict-item]
    "entmax": ({"normalizer": "entmax15"},) * 2,  # type: ignore[dict-item]
    "alibi": ({"bias": ALiBi()},) * 2,  # type: ignore[dict-item]
    "relative": ({"bias": Relative(normal(H, 7))},) * 2,  # type: ignore[dict-item]
    "both": (
        {"bias": Relative(normal(H, 7)), "bias_after": ALiBi(), "softcap": 2.0, "sink": 0.1},
    ) * 2,  # type: ignore[dict-item]
    "array bias": (
        {"bias": lambda start, n: np.pad(normal(T, T), (0, 2))[start : start + n]},
        {"bias": normal(T, T)},
    ),
}  # fmt: skip


def _tensors(x: Any) -> Any:
    """Return an option with its arrays as tensors of PyTorch."""
    if isinstance(x, Relative):
        return Relative(torch.tensor(x.table))
    return torch.tensor(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", ["Additive", "GATv2", "Gaussian", "ScaledDot", "Trilinear"])
@FRAMEWORKS
def test_every_option(name: str, option: str, chunks: str, framework: str) -> None:
    score = make_score(name).map(to(framework))
    q, k, v = map(to(framework), arrays())
    convert = _tensors if framework == "torch" else (lambda x: x)

    def converted(x: Any) -> Any:
        return (lambda start, n: convert(x(start, n))) if callable(x) else convert(x)

    of_steps, at_once = ({n: converted(x) for n, x in some.items()} for some in OPTIONS[option])
    expected = attention(q, k, v, score=score, **{"mask": Causal(), **at_once})
    same(run(q, k, v, score, CHUNKS[chunks], {"capacity": 13}, **of_steps), expected)


PADDING = np.array([0, 3])
OF_POSITIONS: dict[str, tuple[Any, Any]] = {
    # mask of the step that starts at a position, and mask of the call with all tokens
    "left padding": (lambda start: Interval(PADDING, None),) * 2,
    "interval": (lambda start: Interval([1, 2], 9),) * 2,
    "lengths": (lambda start: Lengths([5.0, 8]),) * 2,
    "window": (lambda start: Window(1, 0), lambda start: Window(1, 0)),
    "at the end": (lambda start: Window(1, 0, align="end"), lambda start: Window(1, 0)),
    "offset": (lambda start: Window(1, 0, offset=start), lambda start: Window(1, 0)),
    "offset from the end": (
        lambda start: Causal("end", offset=[0, -1]),
        lambda start: Causal(offset=[0, -1]),
    ),
    "both": (lambda start: Interval(PADDING, None) & Window(1, 0, "end"),
             lambda start: Interval(PADDING, None) & Window(1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("chunks", ["steps", "parts"])
@pytest.mark.parametrize("masks", OF_POSITIONS.values(), ids=OF_POSITIONS)
def test_masks_count_positions(masks: Any, chunks: str, window: int | None) -> None:
    """Masks and `valid_lens` count positions, also after new tokens have replaced old ones."""
    xs = arrays()
    of_steps, at_once = masks
    own = Causal() if window is None else Window(window - 1, 0)
    expected = attention(*xs, mask=own & at_once(0))
    cache = {"capacity": 13 if window is None else 7, "window": window}
    given = {"mask": lambda start, n: of_steps(start)}
    same(run(*xs, ScaledDot(), CHUNKS[chunks], cache, **given), expected)
    if isinstance(at_once(0), Lengths):
        lengths = {"valid_lens": at_once(0).n}
        same(run(*xs, ScaledDot(), CHUNKS[chunks], cache, **lengths), expected)


RINGS = [(1, 1, "steps"), (3, 3, "steps"), (3, 8, "parts"), (4, 8, "parts"), (9, 30, "prompt")]


@pytest.mark.parametrize("bias", [None, ALiBi(), Relative(normal(H, 7))])
@pytest.mark.parametrize(("window", "capacity", "chunks"), RINGS)
@WITH_A_BIAS
def test_rings(name: str, window: int, capacity: int, chunks: str, bias: Any) -> None:
    for framework in ("numpy", "torch"):
        score = make_score(name).map(to(framework))
        q, k, v = map(to(framework), arrays())
        of_positions = _tensors(bias) if framework == "torch" else bias
        mask = Window(window - 1, 0)
        expected = attention(q, k, v, score=score, mask=mask, bias=of_positions)
        cache = {"capacity": capacity, "window": window}
        found = run(q, k, v, score, CHUNKS[chunks], cache, bias=of_positions)
        same(found, expected)


def test_tokens_that_all_attend() -> None:
    """With causal=False every query attends all tokens of the cache."""
    q, k, v = arrays()
    cache = make_cache(k[..., :4, :], v[..., :4, :], capacity=T)
    cache = cache.append(k[..., 4:7, :], v[..., 4:7, :])
    expected = attention(q, k, v, valid_lens=7)
    same(cache.attend(q, causal=False), expected)
    same(attention(q, cache.keys, cache.values, mask=cache.mask(T, causal=False)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Additive", "GATv2", "ScaledDot"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    score = make_score(name).map(lambda x: torch.tensor(x, dtype=dtype))
    q, k, v = (torch.tensor(x, dtype=dtype) for x in arrays())
    grown = make_cache(k[..., :0, :], v[..., :0, :], score, capacity=13)
    eps = torch.finfo(dtype).eps
    for t in range(T):
        grown.append(k[..., t : t + 1, :], v[..., t : t + 1, :], score=score)
        found = grown.attend(q[..., t : t + 1, :], score=score)
        upto = (x[..., : t + 1, :] for x in (k, v))
        expected = attention(q[..., t : t + 1, :], *upto, score=score)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=4 * eps, atol=4 * eps)


@machine.needs_core
@FRAMEWORKS
def test_the_core_is_used_and_packs_what_it_wants(framework: str) -> None:
    q, k, v = map(to(framework), arrays())
    for name, packs in (("Additive", True), ("Gaussian", False)):
        score = make_score(name).map(to(framework))
        cache = make_cache(k, v, score, capacity=T)
        assert (cache.packed is not None) == packs
        chosen = plan(q, cache.keys, cache.values, score=score, mask=cache.mask(T))
        assert chosen.route == "cpu"


@pytest.mark.parametrize("impl", ["auto", "reference"])
@FRAMEWORKS
@WITH_A_BIAS
def test_what_is_not_filled_is_not_read(name: str, framework: str, impl: str) -> None:
    score = make_score(name).map(to(framework))
    q, k, v = map(to(framework), arrays())
    cache = make_cache(k[..., :6, :], v[..., :6, :], score, capacity=T)
    for x in (cache.b, cache.values):
        x[..., 6:, :] = math.nan
    if cache.packed is not None:
        cache.packed[..., 7:, :] = math.nan
    found = cache.attend(q[..., 4:6, :], score=score, impl=impl)
    upto = (x[..., :6, :] for x in (q, k, v))
    same(found, attention(*upto, score=score, mask=Causal())[..., 4:, :])
