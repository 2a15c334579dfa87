"""A later call does what a first call does, in NumPy and PyTorch; calls of known kinds repeat."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import anyscore
from anyscore import attention, make_cache, scores
from anyscore.backends.repeated import MAX_CALLS, MAX_KINDS, REPEATED
from anyscore.kernels import cpu
from anyscore.masks.objects import Causal, Interval, Lengths, Window
from helpers import machine
from helpers.repeated_calls import SEEN, Arguments, Draw, call_of, check, forget, outcome, watched
from helpers.repeated_kinds import (
    KINDS,
    NEVER,
    PARTS,
    Capped,
    additive,
    first_keys,
    merged,
    padded,
    prepared,
    projected,
    tokens,
    trilinear,
    turned,
)

pytestmark = [pytest.mark.sample, machine.needs_core]

FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])
WAYS = {"numpy": ("numpy", 0), "torch": ("torch", 0), "gradients": ("torch", 1)}
"""A framework, and the order of derivatives."""


TOGETHER = {
    ("prepared dot", "lengths"): "at once",
    ("prepared additive", "lengths"): "at once",
    ("bilinear", "lengths"): "at once",
    ("bilinear", "rows of heads"): "at once",
    ("bilinear", "rows of heads", "booleans"): "at once",
    ("trilinear", "softcap"): "never",
    ("trilinear", "scores"): "never",
    ("float16", "scores"): "never",
    ("200 × 300", "scores"): "at once",
    ("300 × 300", "scores"): "never",
    **{(name, "scores"): "at once" for name in ("additive", "lengths", "booleans", "softcap")},
    **{(name, "scores"): "never" for name in ("bias", "reference")},
}
NOT_TRAINED = ("float16",), ("bilinear", "rows of heads", "booleans")
"""Kinds whose calls are not repeated with gradients: the core has none, or sums would differ."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("names", [*((name,) for name in KINDS), *TOGETHER], ids=", ".join)
def test_other_arrays_of_a_kind(names: tuple[str, ...], way: str) -> None:
    repeats = TOGETHER.get(names, "never" if names[0] in NEVER else "at once")
    if way == "gradients" and names in NOT_TRAINED:
        repeats = "never"
    framework, order = WAYS[way]
    check(*(call_of(merged(*names), framework, seed, order) for seed in (0, 1)), repeats)


ALIKE = {
    ("scaled dot", "later"): (
        *("float64", "lengths", "causal", "booleans", "softcap", "sigmoid", "dropout"),
        *("scores", "gaussian"),
    ),
    ("scaled dot", "never"): (
        *("bias", "bias after", "sink", "weights", "log-sum-exp", "reference", "callable"),
    ),
    ("dot", "at once"): ("prepared dot",),
    ("gaussian", "never"): ("gaussian, tensor", "gaussian, fraction"),
    ("additive", "later"): ("gatv2",),
    ("additive", "soon"): ("prepared additive",),
    ("prepared additive", "soon"): ("additive",),
    ("lengths", "soon"): ("int32",),
    ("lengths", "later"): (
        *("scaled dot", "length", "lengths of queries", "list", "booleans, lengths"),
        "causal, lengths",
    ),
    ("causal", "later"): ("scaled dot", "causal, lengths", "window"),
    ("causal, lengths", "later"): ("causal",),
    ("booleans", "later"): ("scaled dot", "booleans, lengths"),
    ("booleans", "soon"): ("booleans of all",),
    ("dropout", "at once"): ("seed",),
}
"""Kinds of calls that look like those of a known kind; and when these are repeated."""
OTHERS: dict[str, dict[str, tuple[Arguments, str]]] = {
    "scaled dot": {
        "width": (lambda d: tokens(d, 2, width=16), "later"),
        "strides": (lambda d: {"query": d(2, 6, 4)[:, ::2]}, "soon"),
        "NaN": (lambda d: {"key": d(2, 5, 4) * np.nan}, "at once"),
        "another score": (lambda d: prepared(d, anyscore.Dot(), anyscore.ScaledDot()), "never"),
        "wrong width": (lambda d: {"query": d(2, 3, 3)}, "never"),
        "wrong keys": (lambda d: {"value": d(2, 4, 6)}, "never"),
        "wrong batch": (lambda d: {"query": d(3, 3, 4)}, "never"),
        "wrong dtype": (lambda d: {"value": d(2, 5, 6, dtype="float64")}, "never"),
        "nested lists": ({"query": [[1.0] * 4]}, "never"),
        "boolean rate": ({"dropout": False}, "never"),
        "seed without dropout": ({"dropout_seed": "7"}, "never"),
        "wrong normalizer": ({"normalizer": 1}, "never"),
        "wrong implementation": ({"impl": "fast"}, "never"),
        "no values": ({"function": lambda *x, **_: attention(*x, None), "value": None}, "never"),
        "scores of values": ({"function": scores, "value": 1}, "never"),
    },
    "dot": {"with a bias": (lambda d: prepared(d, trilinear(d), anyscore.Dot()), "never")},
    "gaussian": {
        "float": ({"score": anyscore.Gaussian(3.0)}, "later"),
        "wrong": ({"score": anyscore.Gaussian(-1.0)}, "never"),
    },
    "gaussian, integer": {
        "integer": ({"score": anyscore.Gaussian(3)}, "later"),
        "boolean": ({"score": anyscore.Gaussian(True)}, "never"),
    },
    "gaussian, tensor": {
        "boolean": (lambda d: {"score": anyscore.Gaussian(d.array(True))}, "never"),
    },
    "gaussian, fraction": {"fraction": ({"score": anyscore.Gaussian(Fraction(3))}, "never")},
    "gaussian, NumPy": {"float": ({"score": anyscore.Gaussian(np.float64(3))}, "never")},
    "cosine": {
        "infinite": (
            lambda d: {"key": np.inf * d(2, 5, 4), "score": anyscore.Cosine()}, "at once"),
    },
    "bilinear": {
        "wrong query": (
            lambda d: {"query": d(2, 3, 4, dtype="float64"), "score": anyscore.Bilinear(d(4, 4))},
            "never"),
        "wrong dtype": (lambda d: {"score": anyscore.Bilinear(d(4, 4, dtype="float64"))}, "never"),
    },
    "additive": {
        "with a bias": (lambda d: {"score": anyscore.Additive(None, None, d(4), d(4))}, "later"),
        "of one matrix": (lambda d: {"score": anyscore.Additive(d(4, 4), None, d(4))}, "later"),
        "of a list": ({"score": anyscore.Additive(None, None, [1.0] * 4)}, "never"),
        "of a word": ({"score": anyscore.Additive(None, None, "w")}, "never"),
    },
    "projected": {
        "hidden": (lambda d: {"score": projected(d, 7)}, "later"),
        "wrong dtype": (lambda d: {"score": projected(d, dtype="float64")}, "never"),
    },
    "user": {"another cap": ({"score": Capped([3.0])}, "never")},
    "lengths": {
        "real": (lambda d: {"valid_lens": [3.0, 2.0]}, "later"),
        "wrong shape": (lambda d: {"valid_lens": d.lengths(3)}, "never"),
        "wrong dtype": (lambda d: {"valid_lens": d.booleans(2)}, "never"),
    },
    "padding": {
        "infinite": (lambda d: padded(d, np.inf), "at once"),
        "large": (lambda d: padded(d, -1e30), "at once"),
    },
    "causal": {"place": ({"mask": Causal("start")}, "later")},
    "window": {"fewer": ({"mask": Window(1, 0, "end") & Lengths(3)}, "later")},
    "first keys": {"more": (lambda d: first_keys(3), "at once")},
    "first of all": {"more": (lambda d: first_keys(3, Causal("end")), "at once")},
    "booleans": {
        "of a sequence": (lambda d: {"mask": d.booleans(1, 3, 5)}, "soon"),
        "of a query": (lambda d: {"mask": d.booleans(2, 1, 5)}, "soon"),
        "strides": (lambda d: {"mask": turned(d.booleans(2, 3, 5))}, "soon"),
        "integers": (lambda d: {"mask": d.lengths(2, 3, 5)}, "never"),
        "wrong shape": (lambda d: {"mask": d.booleans(2, 3, 4)}, "never"),
        "wrong type": ({"mask": [True]}, "never"),
    },
    "softcap": {"another": ({"softcap": 3.0}, "later")},
    "sigmoid": {"with a bias": ({"normalizer": anyscore.Sigmoid(0.5)}, "later")},
    "dropout": {"rate": ({"dropout": 0.3}, "later")},
    "seed": {
        "another": ({"dropout": 0.5, "dropout_seed": 8}, "at once"),
        "wrong": ({"dropout": 0.5, "dropout_seed": 1.0}, "never"),
    },
}  # fmt: skip
"""Known kinds; and of each, other arguments, and when calls with these are repeated."""
PAIRS = [
    *((known, y, KINDS[y], repeats) for (known, repeats), names in ALIKE.items() for y in names),
    *((known, y, *row) for known, rows in OTHERS.items() for y, row in rows.items()),
]


OF_WAYS = [
    pytest.param(pair, way, id=f"{pair[0]}, then {pair[1]}-{way}")
    for pair in PAIRS
    for way in ("numpy", "gradients" if pair[3] != "never" else "torch")
]


@pytest.mark.parametrize(("pair", "way"), OF_WAYS)
def test_other_kinds(pair: tuple[str, str, Arguments, str], way: str) -> None:
    known, _, other, repeats = pair
    framework, order = WAYS[way]
    first = call_of(KINDS[known], framework, 0, order)
    check(first, call_of(other, framework, 1, order), repeats)


OF_NUMBERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "offset": ({"mask": Causal(offset=1)}, {"mask": Causal(offset=2)}, "later"),
    "real offset": ({"mask": Causal(offset=1)}, {"mask": Causal(offset=1.0)}, "never"),
    "boolean offset": ({"mask": Causal(offset=1)}, {"mask": Causal(offset=True)}, "never"),
    "boolean length": ({"mask": Lengths(1)}, {"mask": Lengths(True)}, "never"),
    "class": ({"mask": Lengths(2)}, {"mask": Interval(2)}, "later"),
    "softcap": ({"softcap": 2.0}, {"softcap": 3.0}, "later"),
    "boolean softcap": ({"softcap": 1.0}, {"softcap": True}, "never"),
}
"""Known arguments of `attention` and of `scores`, others, and when these are repeated."""


@FRAMEWORKS
@pytest.mark.parametrize("option", ["no option", "scores"])
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_other_numbers(name: str, option: str, framework: str) -> None:
    *arguments, repeats = OF_NUMBERS[name]
    of: Any = KINDS[option]
    check(*(call_of(of | x, framework, seed) for seed, x in enumerate(arguments)), repeats)


@settings(max_examples=30)
@given(st.data())
def test_drawn_calls(data: st.DataObject) -> None:
    """A call of parts drawn at random follows one that differs in two parts at most."""
    known, changed = ([data.draw(st.sampled_from(list(x))) for x in PARTS] for _ in range(2))
    changes = data.draw(st.sets(st.integers(0, 3), max_size=2))
    other = [changed[i] if i in changes else x for i, x in enumerate(known)]
    framework, order = data.draw(st.sampled_from([("numpy", 0), ("torch", 0), ("torch", 2)]))
    first = call_of(merged(*known), framework, 0, order)
    assume(not isinstance(outcome(first)[0], str))
    check(first, call_of(merged(*other), framework, 1, order))


def frozen(x: np.ndarray) -> np.ndarray:
    x.setflags(write=False)
    return x


OF_NUMPY: dict[str, tuple[Arguments, str]] = {
    "frozen": (lambda d: {"key": frozen(d(2, 5, 4)), "value": frozen(d(2, 5, 6))}, "at once"),
    "reversed": (lambda d: {"value": d(2, 5, 6)[::-1]}, "soon"),
    "records": (lambda d: {"query": d(2, 3, 4).view(np.recarray)}, "never"),
    "masked query": (lambda d: {"query": np.ma.array(d(2, 3, 4))}, "never"),
    "masked keys": (lambda d: {"key": np.ma.array(d(2, 5, 4))}, "never"),
    "masked values": (lambda d: {"value": np.ma.array(d(2, 5, 6))}, "never"),
    "PyTorch": (lambda d: {"key": torch.from_numpy(d(2, 5, 4))}, "never"),
}


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("name", OF_NUMPY)
def test_other_arrays_of_numpy(name: str, score: str) -> None:
    arguments, repeats = OF_NUMPY[name]
    of, known = KINDS[score], call_of(KINDS[score], "numpy", 0)
    assert isinstance(of, dict)
    assert callable(arguments)
    check(known, call_of(lambda d: of | arguments(d), "numpy", 1), repeats)


@FRAMEWORKS
def test_another_instruction_set(framework: str) -> None:
    core = cpu._core
    before = core.isa()

    def call(isa: str) -> Any:
        core.use(isa)
        try:
            return call_of(KINDS["additive"], framework, 1)()
        finally:
            core.use(before)

    for isa in core.isas():
        known = call_of(KINDS["additive"], framework, 0)
        check(known, partial(call, isa), "at once")


@FRAMEWORKS
def test_few_calls_are_kept_of_few_kinds(framework: str) -> None:
    owner = REPEATED[torch.Tensor if framework == "torch" else np.ndarray]
    forget()

    def repeats(arguments: Arguments, calls: int = 3) -> bool:
        """Return whether the last of some calls is repeated."""
        for _ in range(calls):
            with watched():
                outcome(call_of(arguments, framework, 0))
        return SEEN == [True]

    for n in range(1, MAX_CALLS + 2):
        assert repeats(lambda d, n=n: tokens(d, n))
    assert [len(calls) for calls in owner.known.values()] == [MAX_CALLS]
    assert repeats(lambda d: tokens(d, 2), calls=1)
    assert not repeats(lambda d: tokens(d, 1), calls=1)
    for n in range(1, MAX_KINDS):
        assert repeats({"softcap": float(n)})
    assert repeats(lambda d: tokens(d, 1))  # of a known kind
    assert len(owner.known) == MAX_KINDS
    assert repeats({"softcap": 0.5})
    assert len(owner.known) == 1
    assert len(owner.seen) <= MAX_KINDS
    for n in range(1, MAX_KINDS + 2):
        append_of(lambda d, n=n: cached(d, n), framework, 0)()
        assert 0 < len(owner.appends) <= MAX_KINDS
    forget()
    assert not any((owner.known, owner.seen, owner.appends))


@FRAMEWORKS
def test_plan_and_log_name_repeated_calls(framework: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "anyscore.repeated")
    forget()
    draw = Draw(framework, 0)
    of, others = list(tokens(draw, 2).values()), (draw(2, 4, 4), draw(1, 5, 4), draw(2, 5, 7))
    for function, x in ((attention, of), (scores, of[:2])):
        arguments: dict[str, Any] = {"score": anyscore.Cosine(), "softcap": 2.0}
        for later in (False, False, True):
            assert anyscore.plan(*x, **arguments).repeated is later
            function(*x, **arguments)
        for n, y in enumerate(others[: len(x)]):
            plan = anyscore.plan(*x[:n], y, *x[n + 1 :], **arguments)
            assert plan == anyscore.plan(*x, **arguments)  # beside `repeated`
            assert not plan.repeated
        for change in ({"impl": "reference"}, {"bias": draw(5)}, {"softcap": 3.0}):
            assert not anyscore.plan(*x, **{**arguments, **change}).repeated
    assert [line.split(":")[0] for line in caplog.messages] == ["repeated from now on"] * 2
    caplog.clear()
    for _ in range(3):
        attention(*of, score=trilinear(draw), softcap=2.0)
    assert [line.split(";")[0] for line in caplog.messages] == [
        "not repeated: the score is a callable or has a query bias"
    ]
    caplog.clear()
    for n in range(2 * MAX_CALLS):  # ever other strides
        outcome(call_of(lambda d, n=n: {"key": d(2, 5, 4 + n)[..., :4]}, framework, 0))
    assert len(caplog.messages) == MAX_CALLS


def attended(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Attend with one query to a cache of a row more than the keys."""
    cache = make_cache(key, value, anyscore.ScaledDot(), capacity=6)
    SEEN.clear()
    return cache.attend(query if isinstance(query, str) else query[..., :1, :], **options)


ATTENDED: dict[str, tuple[Arguments, str]] = {
    "another query": ({}, "at once"),
    "another width": (lambda d: tokens(d, 2, width=16), "later"),
    "no tokens": (lambda d: {"key": d(2, 0, 4), "value": d(2, 0, 6)}, "at once"),  # then refused
    "a word": ({"query": "query"}, "never"),
    "a wrong width": (lambda d: {"query": d(2, 3, 3)}, "never"),
    "a wrong score": ({"score": anyscore.Dot()}, "never"),
    "weights": ({"return_weights": True}, "never"),
    "booleans": (lambda d: {"mask": d.booleans(1, 6)}, "later"),
}


@FRAMEWORKS
@pytest.mark.parametrize("name", ATTENDED)
def test_queries_of_a_cache(name: str, framework: str) -> None:
    arguments, repeats = ATTENDED[name]
    of = {"function": attended}

    def drawn(d: Draw) -> dict[str, Any]:
        return of | (arguments(d) if callable(arguments) else arguments)

    check(call_of(of, framework, 0), call_of(drawn, framework, 1), repeats)


def cached(
    d: Draw, *lead: int, score: Any = None, dtype: str = "float32", capacity: int = 6, **x: Any
) -> dict[str, Any]:
    """Return a cache of two rows, a row, and their score; or the arguments given instead."""
    score = score or anyscore.ScaledDot()
    sizes = (2, 4), (2, 3), (1, 4), (1, 3)
    old, values, key, value = (d(*lead, *size, dtype=dtype) for size in sizes)
    cache = make_cache(old, values, score, capacity=capacity, window=x.pop("window", None))
    SEEN.clear()
    return {"cache": cache, "key": key, "value": value, "score": score} | x


def frozen_cache(d: Draw) -> dict[str, Any]:
    found = cached(d, 2)
    if d.framework == "numpy":
        frozen(found["cache"].values)
    return found


APPENDED: dict[str, dict[str, tuple[Callable[[Draw], dict[str, Any]], str]]] = {
    "scaled dot": {
        "another": (lambda d: cached(d, 2), "at once"),
        "capacity": (lambda d: cached(d, 2, capacity=9), "soon"),
        "no room": (lambda d: cached(d, 2, capacity=2), "never"),
        "no lead": (cached, "soon"),
        "heads": (lambda d: cached(d, 2, 3), "soon"),
        "rows": (lambda d: cached(d, 2, key=d(2, 3, 4), value=d(2, 3, 3)), "soon"),
        "strides": (lambda d: cached(d, 2, key=d(2, 6, 4)[:, ::6]), "soon"),
        "turned": (lambda d: cached(d, 2, key=d(2, 1, 8)[..., ::2]), "never"),
        "float64": (lambda d: cached(d, 2, dtype="float64"), "soon"),
        "wrong values": (lambda d: cached(d, 2, value=d(1, 1, 3)), "never"),
        "wrong lead": (lambda d: cached(d, 2, key=d(1, 1, 4), value=d(1, 1, 3)), "never"),
        "wrong width": (lambda d: cached(d, 2, key=d(2, 1, 3)), "never"),
        "wrong dtype": (lambda d: cached(d, 2, value=d(2, 1, 3, dtype="float64")), "never"),
        "a list": (lambda d: cached(d, 2, value=d(2, 1, 3).tolist()), "never"),
        "wrong score": (lambda d: cached(d, 2) | {"score": anyscore.Dot()}, "never"),
        "frozen": (frozen_cache, "at once"),  # in PyTorch, which has no such tensors
        "a window": (lambda d: cached(d, 2, window=3), "never"),
        "lorentz": (lambda d: cached(d, 2, score=anyscore.Lorentz()), "never"),
        "trilinear": (lambda d: cached(d, 2, score=trilinear(d)), "never"),
        "projected": (lambda d: cached(d, 2, score=projected(d)), "never"),
        "a user's": (lambda d: cached(d, 2, score=Capped([1.0])), "never"),
    },
    "additive": {
        "another": (lambda d: cached(d, 2, score=additive(d)), "at once"),
        "wrong weight": (
            lambda d: (
                cached(d, 2, score=additive(d)) | {"score": anyscore.Additive(None, None, d(3))}
            ),
            "never",
        ),
        "wrong dtype": (
            lambda d: (
                cached(d, 2, score=additive(d))
                | {"score": anyscore.Additive(None, None, d(4, dtype="float64"))}
            ),
            "never",
        ),
        "gatv2": (lambda d: cached(d, 2, score=anyscore.GATv2(None, None, d(4))), "soon"),
    },
    "laplace": {
        "another": (lambda d: cached(d, 2, score=anyscore.Laplace(2.0)), "at once"),
        "number": (
            lambda d: cached(d, 2, score=anyscore.Laplace(3.0)) | {"score": anyscore.Laplace(2.0)},
            "never",
        ),
    },
}
"""Known appends; and of each, others, and when these are repeated."""


def append_of(arguments: Callable[[Draw], dict[str, Any]], framework: str, seed: int) -> Any:
    """Return a call: () → an append's error if there is one, and the arrays of the cache."""

    def call() -> list[Any]:
        x = arguments(Draw(framework, seed))
        cache = x.pop("cache")
        try:
            cache, error = cache.append(x["key"], x["value"], score=x["score"]), []
        except (TypeError, ValueError) as wrong:
            error = [f"{type(wrong).__name__}: {wrong}"]
        return [cache.b, cache.values, cache.packed, cache.length, *error]

    return call


@FRAMEWORKS
@pytest.mark.parametrize(("known", "other"), [(x, y) for x in APPENDED for y in APPENDED[x]])
def test_appends(known: str, other: str, framework: str) -> None:
    first = (lambda d: cached(d, 2)) if known == "scaled dot" else APPENDED[known]["another"][0]
    arguments, repeats = APPENDED[known][other]
    repeats = "never" if (other, framework) == ("frozen", "numpy") else repeats
    check(append_of(first, framework, 0), append_of(arguments, framework, 1), repeats)


@FRAMEWORKS
@pytest.mark.parametrize("name", ["Gaussian", "Cosine", "Laplace", "Euclidean"])
def test_numbers_in_arrays_and_lengths_in_turns(name: str, framework: str) -> None:
    """Calls with and without lengths are of one kind, and the core holds the number of each."""
    draw, make = Draw(framework, 0), {"numpy": np.asarray, "torch": torch.tensor}[framework]
    query, key, value = draw(2, 3, 4), draw(2, 7, 4), draw(2, 7, 4)

    def call(number: float, lengths: list[int] | None, impl: str = "auto") -> np.ndarray:
        score = getattr(anyscore, name)(make(np.float32(number)))
        found = attention(query, key, value, score=score, valid_lens=lengths, impl=impl)
        return np.asarray(found)

    cases = [(number, lengths) for number in (1.0, 2.0) for lengths in (None, [7, 2])]
    for number, lengths in cases:
        for _ in range(3):
            call(number, lengths)
    for number, lengths in cases[::-1]:
        expected = call(number, lengths, impl="reference")
        np.testing.assert_allclose(call(number, lengths), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masks", ["lengths", "booleans"])
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("name", ["Euclidean", "Gaussian", "Laplace", "StudentT", "Additive"])
def test_queries_without_keys_repeat_to_the_bit(name: str, prepared: bool, masks: str) -> None:
    """What stands in queries without keys decides nothing of other queries' roundings."""
    forget()
    draw = Draw("torch", 0)
    base, key, value = draw(1, 4, 17, 64), draw(1, 2, 15, 64), draw(1, 2, 15, 13)
    base[:, :, [1, 3]] *= 8
    lengths = torch.tensor([[3, 0, 15, 0, 7, 15, 15, 1, 2, 0, 0, 4, 5, 6, 7, 8, 15]])
    keep = torch.arange(15) < lengths[..., None]
    mask = {"valid_lens": lengths} if masks == "lengths" else {"mask": keep}
    arguments = (None, None, draw(64)) if name == "Additive" else ()
    score = getattr(anyscore, name)(*arguments)
    found = []
    for _ in range(5):
        query, keys = base.clone().requires_grad_(), key.clone().requires_grad_()
        used = anyscore.prepare_keys(keys, score) if prepared else keys
        output = attention(query, used, value, score=score, **mask)
        found.append([output, *torch.autograd.grad(output.sum(), (query, keys))])
    for later in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(later, found[0], strict=True))
