"""Mask objects: the attended keys, shapes, algebra and lowering of each."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from anyscore import Causal, Interval, Keys, Lengths, Mask, Window, attention
from anyscore.masks.context import MaskContext
from anyscore.masks.objects import as_mask
from anyscore.ops import load
from helpers.samples import allowed, normal, where

pytestmark = pytest.mark.sample

B, H, T_Q, T_K, D = 2, 3, 5, 7, 2
FRAMEWORKS = ["numpy", "torch"]


def lowered(mask: Any, framework: str = "torch", lead: tuple[int, ...] = (B,)) -> Any:
    like = torch.zeros(()) if framework == "torch" else np.zeros(())
    return as_mask(mask).lower(MaskContext(load(framework), like, lead, T_Q, T_K))


KEYS = np.array([[1, 0, 1, 1, 0, 0, 1], [0, 1, 1, 0, 1, 1, 0]], bool)
FULL = normal(B, T_Q, T_K) > 0
HEADS = normal(B, H, T_Q, T_K) > 0
PER_QUERY = np.array([[0, 1, 2, 3, 9], [7, 6, 5, -4, 3]])
DOCUMENTS = np.array([0, 0, 3, 3, 3]), np.array([3, 3, 7, 7, 7])

TABLE: dict[str, tuple[Any, Callable[[int, int, int], bool]]] = {
    "lengths ()": (Lengths(4), lambda b, i, j: j < 4),
    "lengths (B,)": (Lengths([4, 6]), lambda b, i, j: j < (4, 6)[b]),
    "lengths (1,)": (Lengths([4]), lambda b, i, j: j < 4),
    "lengths (B, T_q)": (Lengths(PER_QUERY), lambda b, i, j: j < PER_QUERY[b, i]),
    "lengths (1, T_q)": (Lengths(PER_QUERY[:1]), lambda b, i, j: j < PER_QUERY[0, i]),
    "lengths (B, 1)": (Lengths(PER_QUERY[:, 2:3]), lambda b, i, j: j < (2, 5)[b]),
    "keys (B, T_k)": (Keys(KEYS), lambda b, i, j: KEYS[b, j]),
    "keys (T_k,)": (Keys(KEYS[0]), lambda b, i, j: KEYS[0, j]),
    "keys (1, T_k)": (Keys(KEYS[1:]), lambda b, i, j: KEYS[1, j]),
    "interval": (Interval([1, 3], [4, 9]), lambda b, i, j: (1, 3)[b] <= j < (4, 9)[b]),
    "left padding": (Interval([2, 5], None), lambda b, i, j: j >= (2, 5)[b]),
    "interval stop": (Interval(None, 3), lambda b, i, j: j < 3),
    "interval of floats": (Interval(2.0, 5.0), lambda b, i, j: 2 <= j < 5),
    "interval of nothing": (Interval(5, 2), lambda b, i, j: False),
    "interval without end": (Interval(), lambda b, i, j: True),
    "interval from inf": (Interval(math.inf, None), lambda b, i, j: False),
    "interval from -inf": (Interval(-math.inf, math.inf), lambda b, i, j: True),
    "documents": (
        Interval(DOCUMENTS[0][None], DOCUMENTS[1][None]),
        lambda b, i, j: DOCUMENTS[0][i] <= j < DOCUMENTS[1][i],
    ),
    "causal start": (Causal("start"), lambda b, i, j: j <= i),
    "causal end": (Causal("end"), lambda b, i, j: j <= i + T_K - T_Q),
    "causal offset": (Causal(offset=1), lambda b, i, j: j <= i + 1),
    "causal offset < 0": (Causal(offset=-2), lambda b, i, j: j <= i - 2),
    "causal offset (B,)": (Causal(offset=[1, -1]), lambda b, i, j: j <= i + (1, -1)[b]),
    "causal both": (Causal("end", offset=-1), lambda b, i, j: j <= i + T_K - T_Q - 1),
    "window": (Window(1, 2, "start"), lambda b, i, j: i - 1 <= j <= i + 2),
    "window itself": (Window(0, 0, "end"), lambda b, i, j: j == i + T_K - T_Q),
    "window left": (Window(1, None, offset=2), lambda b, i, j: j >= i + 2 - 1),
    "window right": (Window(None, 1, offset=2), lambda b, i, j: j <= i + 2 + 1),
    "window of all": (Window(None, None, "start"), lambda b, i, j: True),
    "window (B,)": (
        Window(2, 0, offset=np.array([1, 4])),
        lambda b, i, j: i + (1, 4)[b] - 2 <= j <= i + (1, 4)[b],
    ),
    "full": (FULL, lambda b, i, j: FULL[b, i, j]),
    "(T_q, T_k)": (FULL[0], lambda b, i, j: FULL[0, i, j]),
    "(1, T_k)": (FULL[0, :1], lambda b, i, j: FULL[0, 0, j]),
    "(T_q, 1)": (FULL[0, :, :1], lambda b, i, j: FULL[0, i, 0]),
    "(B, 1, T_k)": (FULL[:, :1], lambda b, i, j: FULL[b, 0, j]),
    "(B, 1, 1)": (FULL[:, :1, :1], lambda b, i, j: FULL[b, 0, 0]),
    "causal & lengths": (
        Causal("end") & Lengths([4, 6]),
        lambda b, i, j: j <= i + T_K - T_Q and j < (4, 6)[b],
    ),
    "window & interval": (
        Window(2, 1, "start") & Interval([1, 0], [4, 5]),
        lambda b, i, j: i - 2 <= j <= i + 1 and (1, 0)[b] <= j < (4, 5)[b],
    ),
    "mask & array": (
        Window(2, 1, "start") & FULL,
        lambda b, i, j: i - 2 <= j <= i + 1 and FULL[b, i, j],
    ),
    "keys & array": (Keys(KEYS) & FULL, lambda b, i, j: KEYS[b, j] and FULL[b, i, j]),
    "three": (
        FULL & Causal("end") & Keys(KEYS),
        lambda b, i, j: FULL[b, i, j] and j <= i + T_K - T_Q and KEYS[b, j],
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", TABLE)
def test_table(name: str, framework: str) -> None:
    mask, rule = TABLE[name]
    assert (allowed(mask, framework) == where(rule)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", TABLE)
def test_lowering_is_to_intervals_unless_an_array_was_given(name: str, framework: str) -> None:
    mask, rule = TABLE[name]
    one, xp = lowered(mask, framework), load(framework)
    arrays = isinstance(mask, np.ndarray) or any(word in name for word in ("key", "arr", "thr"))
    assert (one.mask is not None) == arrays
    for bound in (one.start, one.stop):
        if bound is not None:
            assert xp.dtype(bound) == "int64"
            assert len(bound.shape) == 2
            assert (np.asarray(bound) >= 0).all()
            assert (np.asarray(bound) <= T_K).all()
    boolean = one.boolean
    if boolean is not None:
        assert len(boolean.shape) == 3
        boolean = np.asarray(boolean)
    boolean = np.broadcast_to(True if boolean is None else boolean, (B, T_Q, T_K))
    assert (boolean == where(rule)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_heads(framework: str) -> None:
    """The first leading dimension of a mask's parameters is the batch, the second the heads."""
    lead = (B, H)
    per_head = np.arange(H)[None, :, None]
    for mask, rule in [
        (Lengths([4, 6]), lambda b, h, i, j: j < (4, 6)[b]),
        (Lengths(PER_QUERY), lambda b, h, i, j: j < PER_QUERY[b, i]),
        (Lengths(per_head), lambda b, h, i, j: j < h),
        (Lengths(PER_QUERY[:, None, :]), lambda b, h, i, j: j < PER_QUERY[b, i]),
        (Keys(KEYS), lambda b, h, i, j: KEYS[b, j]),
        (Keys(HEADS[:, :, 0]), lambda b, h, i, j: HEADS[b, h, 0, j]),
        (Causal(offset=[1, -1]), lambda b, h, i, j: j <= i + (1, -1)[b]),
        (Causal(offset=per_head), lambda b, h, i, j: j <= i + h),
        (HEADS, lambda b, h, i, j: HEADS[b, h, i, j]),
        (HEADS[0], lambda b, h, i, j: HEADS[0, h, i, j]),
        (FULL[:, None], lambda b, h, i, j: FULL[b, i, j]),
        (HEADS & Lengths([4, 6]), lambda b, h, i, j: HEADS[b, h, i, j] and j < (4, 6)[b]),
    ]:
        assert (allowed(mask, framework, lead) == where(rule, lead)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_batch(framework: str) -> None:
    for mask, rule in [
        (Lengths(4), lambda i, j: j < 4),
        (Lengths(PER_QUERY[0]), lambda i, j: j < PER_QUERY[0, i]),
        (Keys(KEYS[0]), lambda i, j: KEYS[0, j]),
        (Causal("end", 1), lambda i, j: j <= i + 3),
        (FULL[0], lambda i, j: FULL[0, i, j]),
    ]:
        assert (allowed(mask, framework, ()) == where(rule, ())).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_equal_numbers_need_no_alignment(framework: str) -> None:
    for mask, rule in [
        (Causal(), lambda b, i, j: j <= i),
        (Window(1, 2), lambda b, i, j: i - 1 <= j <= i + 2),
    ]:
        assert (allowed(mask, framework, (B,), 5, 5) == where(rule, (B,), 5, 5)).all()


def test_more_queries_than_keys() -> None:
    found = allowed(Causal("end"), "torch", (B,), 7, 5)
    assert (found == where(lambda b, i, j: j <= i - 2, (B,), 7, 5)).all()
    assert not found[:, :2].any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_causal_is_a_window(framework: str) -> None:
    for options in ({"align": "start"}, {"align": "end"}, {"offset": 2}, {"offset": [3, -1]}):
        causal, window = Causal(**options), Window(None, 0, **options)
        assert (allowed(causal, framework) == allowed(window, framework)).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_true_means_may_attend(framework: str) -> None:
    keep = np.zeros((T_Q, T_K), bool)
    keep[2, 3] = True
    assert (allowed(keep, framework)[0] == keep).all()
    assert (allowed(Keys(keep[2]), framework)[0] == keep[2]).all()


# Algebra


@pytest.mark.parametrize("kind", ["numpy", "torch", "list"])
@pytest.mark.parametrize("mask", [Causal("end"), Lengths([4, 6]), Keys(KEYS)], ids=repr)
def test_and_with_arrays_in_either_order(mask: Mask, kind: str) -> None:
    array = {"numpy": FULL, "torch": torch.tensor(FULL), "list": FULL.tolist()}[kind]
    expected = allowed(mask, "torch") & FULL
    for both in (mask & array, array & mask):
        assert isinstance(both, Mask)
        assert (allowed(both, "torch") == expected).all()
        if kind != "torch":
            assert (allowed(both, "numpy") == expected).all()


def test_and_commutes_and_associates() -> None:
    a, b, c = Causal("end"), Lengths([4, 6]), FULL
    every = [a & b & c, a & (b & c), c & b & a, (b & c) & a, b & (c & a)]
    first, *others = [allowed(mask, "numpy") for mask in every]
    assert all((first == other).all() for other in others)
    assert (allowed(a & a, "numpy") == allowed(a, "numpy")).all()


@pytest.mark.parametrize(
    ("mask", "field"),
    [
        (Lengths(3), "n"), (Keys(KEYS), "keep"), (Interval(1, 2), "stop"),
        (Window(1, 2), "left"), (Causal(), "align"), (Causal() & Lengths(3), "masks"),
    ],
)  # fmt: skip
def test_masks_are_frozen(mask: Mask, field: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(mask, field, None)


@pytest.mark.parametrize("name", TABLE)
def test_masks_can_be_copied_and_pickled(name: str) -> None:
    mask, rule = TABLE[name]
    for same in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert (allowed(same, "numpy") == where(rule)).all()


# Values are never inspected on the host

HOSTLESS: dict[str, Callable[[torch.device], Any]] = {
    "lengths": lambda d: Lengths(torch.tensor([4, 6]).to(d)),
    "floats": lambda d: Lengths(torch.tensor([4.0, 6.5]).to(d)),
    "interval": lambda d: Interval(torch.tensor([1, 2]).to(d), torch.tensor(PER_QUERY).to(d)),
    "causal": lambda d: Causal(offset=torch.tensor([1, 0]).to(d)),
    "keys": lambda d: Keys(torch.tensor(KEYS).to(d)),
    "array": lambda d: torch.tensor(FULL).to(d),
    "all": lambda d: Causal("end") & Lengths(torch.tensor([4, 6]).to(d)) & torch.tensor(FULL).to(d),
}


@pytest.mark.parametrize("name", HOSTLESS)
def test_values_are_never_inspected(name: str) -> None:
    """A call reads no values of a mask: meta and fake tensors hold none."""
    meta = torch.device("meta")
    mask = HOSTLESS[name](meta)
    q, k, v = (torch.zeros(B, t, D, device=meta, requires_grad=True) for t in (T_Q, T_K, T_K))
    out = attention(q, k, v, mask=mask, return_weights=True, return_lse=True)
    assert out.weights.shape == (B, T_Q, T_K)
    torch.autograd.grad(out.output.sum(), [q, k, v])
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.zeros(B, t, D) for t in (T_Q, T_K, T_K))
        out = attention(q, k, v, mask=HOSTLESS[name](torch.device("cpu")), return_lse=True)
        assert out.lse.shape == (B, T_Q)


HUGE = [
    np.int8(127),
    np.uint8(255),
    np.int64(2**63 - 1),
    np.uint64(2**64 - 1),
    sys.maxsize,
    10**30,
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("width", HUGE, ids=lambda x: f"{type(x).__name__}-{x}")
def test_widths_of_any_integer_type_mean_what_they_say(width: Any, framework: str) -> None:
    """A width of NumPy's integer types does not wrap around, and a large width is not truncated."""
    n, right = 300, min(int(width), 300)
    sizes = {"lead": (1,), "queries": n, "keys": n}
    found = allowed(Window(None, width), framework, **sizes)
    np.testing.assert_array_equal(found, where(lambda b, i, j: j <= i + right, (1,), n, n))
    found = allowed(Window(width, 0), framework, **sizes)
    np.testing.assert_array_equal(found, where(lambda b, i, j: i - right <= j <= i, (1,), n, n))
    assert type(Window(width, None).left) is int


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("width", HUGE, ids=lambda x: f"{type(x).__name__}-{x}")
def test_offsets_of_any_integer_type(width: Any, sign: int, framework: str) -> None:
    if sign < 0 and str(getattr(width, "dtype", "")).startswith("u"):
        width = int(width)
    offset, n = sign * width, 300
    for given in (offset, [offset], [[offset]]):
        found = allowed(Causal(offset=given), framework, (1,), n, n)
        expected = where(lambda b, i, j: j <= i + int(offset), (1,), n, n)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint32", "uint64", "int64"])
def test_arrays_of_the_largest_offsets_and_lengths(dtype: str, framework: str) -> None:
    largest, n = np.array([np.iinfo(dtype).max], dtype), 300
    expected = where(lambda b, i, j: j <= i + int(largest[0]), (1,), n, n)
    given = torch.tensor(largest) if framework == "torch" else largest
    np.testing.assert_array_equal(allowed(Causal(offset=given), framework, (1,), n, n), expected)
    for mask in (Lengths(given), Interval(None, given)):
        expected = where(lambda b, i, j: j < int(largest[0]), (1,), n, n)
        np.testing.assert_array_equal(allowed(mask, framework, (1,), n, n), expected)
    assert not allowed(Interval(given, None), framework, (1,), 100, 100).any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_lists_of_integers_beyond_64_bits(framework: str) -> None:
    expected = where(lambda b, i, j: b == 0, (2,), 5, 7)
    for lengths in ([10**30, -(10**30)], [np.uint64(2**64 - 1), 0]):
        np.testing.assert_array_equal(allowed(Lengths(lengths), framework), expected)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_empty_list_is_an_empty_list_of_integers(framework: str) -> None:
    for mask in (Causal(offset=[]), Lengths([]), Interval([], [])):
        assert allowed(mask, framework, (0,), 5, 5).shape == (0, 5, 5)


def test_a_causal_mask_can_be_printed_and_made_again() -> None:
    assert repr(Causal("end")) == "Causal(align='end', offset=None)"
    assert isinstance(eval(repr(Causal("end", 3))), Causal)


def test_windows_take_numbers_of_numpy() -> None:
    x = np.random.randn(2, 4, 3)
    window = Window(np.int64(1), np.int64(0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        attention(x, x, x, mask=window), attention(x, x, x, mask=Window(1, 0))
    )
