"""Packed sequences as a mask give each sequence the results of a call by itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyscore import (
    ALiBi,
    Causal,
    Interval,
    Keys,
    Lengths,
    Mask,
    Relative,
    Sequences,
    Window,
    attention,
    log_sum_exp,
    plan,
    prepare_keys,
)
from helpers import machine
from helpers.by_pair import by_pair
from helpers.samples import NAMES, WIDTH, gradients, leaves, make_score, normal

pytestmark = pytest.mark.sample

QUERIES, KEYS, HEADS, WIDTH_VALUE = [3, 0, 70, 1, 130, 2], [5, 2, 64, 0, 99, 4], 2, 6
IMPLS = pytest.mark.parametrize("impl", ["auto", "reference"])


def offsets(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths])


def inputs(own: bool, heads: int = HEADS) -> list[np.ndarray]:
    keys = sum(KEYS if own else QUERIES)
    return [
        normal(1, HEADS, sum(QUERIES), WIDTH),
        normal(1, heads, keys, WIDTH, seed=1),
        normal(1, heads, keys, WIDTH_VALUE, seed=2),
    ]


def within(own: bool) -> Sequences:
    return Sequences(offsets(QUERIES), offsets(KEYS) if own else None)


def alone(xs: list[Any], own: bool, masks: list[Mask | None], **options: Any) -> Any:
    """Return the outputs (1, heads, T_q, d_v) of all sequences, each from its own call."""
    rows, columns = offsets(QUERIES), offsets(KEYS if own else QUERIES)
    found = []
    for s, mask in enumerate(masks):
        a, b, c, d = rows[s], rows[s + 1], columns[s], columns[s + 1]
        query, key, value = xs[0][..., a:b, :], xs[1][..., c:d, :], xs[2][..., c:d, :]
        found.append(attention(query, key, value, mask=mask, **options))
    return found


@IMPLS
@by_pair("name", NAMES)
@pytest.mark.parametrize(("own", "kv_heads"), [(False, HEADS), (True, HEADS), (True, 1)])
def test_every_score(name: str, own: bool, kv_heads: int, impl: str) -> None:
    score, xs = leaves(make_score(name), *inputs(own, kv_heads))
    options: Any = {"score": score, "return_lse": True}
    found = attention(*xs[:3], mask=within(own), impl=impl, **options)
    each = alone(xs, own, [None] * len(QUERIES), **options)
    output = torch.cat([x.output for x in each], -2)
    lse = torch.cat([x.lse for x in each], -1)
    torch.testing.assert_close(found.output, output, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.lse, lse, rtol=1e-9, atol=1e-9)
    wanted = gradients((output, torch.where(lse == -torch.inf, 0.0, lse)), xs)
    finite = torch.where(found.lse == -torch.inf, 0.0, found.lse)
    for x, y in zip(gradients((found.output, finite), xs), wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)


PER_SEQUENCE = [2, 1, 30, 4, 80, 1]
MASKS: dict[str, Any] = {
    "causal at the start": (Causal("start"), lambda s: Causal("start")),
    "causal at the end": (Causal("end"), lambda s: Causal("end")),
    "window": (Window(3, 2, "end"), lambda s: Window(3, 2, "end")),
    "offset": (Causal(offset=2), lambda s: Causal(offset=2)),
    "offsets": (Causal(offset=PER_SEQUENCE), lambda s: Causal(offset=PER_SEQUENCE[s])),
    "length": (Lengths(3), lambda s: Lengths(3)),
    "lengths": (Lengths(PER_SEQUENCE), lambda s: Lengths(PER_SEQUENCE[s])),
    "floats": (
        Lengths([3.0, -np.inf, 9, 1, -3, 5e9]),
        lambda s: Lengths([3, 0, 9, 1, 0, 99][s]),
    ),
    "interval": (Interval([1, 0, 3, 0, 9, 8], 40), lambda s: Interval([1, 0, 3, 0, 9, 8][s], 40)),
    "both": (
        Causal("end") & Lengths(PER_SEQUENCE),
        lambda s: Causal("end") & Lengths(PER_SEQUENCE[s]),
    ),
}  # fmt: skip


@IMPLS
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_other_masks_count_within_sequences(masks: Any, own: bool, impl: str) -> None:
    xs, (whole, of) = inputs(own), masks
    each = alone(xs, own, [of(s) for s in range(len(QUERIES))])
    for mask in (within(own) & whole, whole & within(own)):
        found = attention(*xs, mask=mask, impl=impl)
        np.testing.assert_allclose(found, np.concatenate(each, -2), rtol=1e-10, atol=1e-10)


def test_boolean_masks_are_of_packed_tokens() -> None:
    xs = inputs(True)
    keep, of_keys = normal(sum(QUERIES), sum(KEYS)) > 0, normal(sum(KEYS), seed=5) > -1
    rows, columns = (np.repeat(np.arange(len(n)), n) for n in (QUERIES, KEYS))
    same = rows[:, None] == columns
    for mask, what in ((keep, keep), (Keys(of_keys), of_keys)):
        found = attention(*xs, mask=within(True) & mask)
        np.testing.assert_allclose(found, attention(*xs, mask=same & what), atol=1e-12)


def test_biases_of_positions() -> None:
    xs, table = inputs(False), normal(HEADS, 9)
    for bias in (ALiBi(), Relative(table), Relative(table[:, :8], "t5", max_distance=20)):
        found = attention(*xs, mask=within(False), bias=bias)
        each = alone(xs, False, [None] * len(QUERIES), bias=bias)
        np.testing.assert_allclose(found, np.concatenate(each, -2), atol=1e-12)
    message = r"bias_after is ALiBi\(...\), one number for each distance j − i of packed tokens"
    with pytest.raises(ValueError, match=message):
        attention(*inputs(True), mask=within(True) & Causal("end"), bias_after=ALiBi(align="end"))


@pytest.mark.parametrize("normalizer", ["softmax", "sigmoid", "sparsemax", "entmax15"])
def test_what_surrounds_the_scores(normalizer: Any) -> None:
    xs = inputs(True)
    options: Any = {"normalizer": normalizer, "softcap": 1.5}
    if normalizer == "softmax":
        options["sink"] = np.array([0.5, -1.0])
    found = attention(*xs, mask=within(True), return_weights=True, **options)
    each = alone(xs, True, [None] * len(QUERIES), return_weights=True, **options)
    np.testing.assert_allclose(
        found.output, np.concatenate([x.output for x in each], -2), atol=1e-9
    )
    rows, columns, total = offsets(QUERIES), offsets(KEYS), 0.0
    for s, one in enumerate(each):
        part = found.weights[..., rows[s] : rows[s + 1], columns[s] : columns[s + 1]]
        np.testing.assert_allclose(part, one.weights, atol=1e-9)
        total += np.abs(part).sum()
    np.testing.assert_allclose(np.abs(found.weights).sum(), total)  # other weights are 0


def test_dropout_is_that_of_the_definition() -> None:
    xs, options = inputs(True), {"dropout": 0.4, "dropout_seed": 3}
    both = [
        attention(*xs, mask=within(True), impl=impl, **options) for impl in ("auto", "reference")
    ]
    np.testing.assert_allclose(*both, atol=1e-12)
    assert np.abs(both[0] - attention(*xs, mask=within(True))).max() > 0.01


@IMPLS
def test_nothing_is_read_of_other_sequences(impl: str) -> None:
    score, xs = leaves(make_score("Additive"), *inputs(True))
    with torch.no_grad():
        for x, n in zip(xs[:3], (QUERIES, KEYS, KEYS), strict=True):
            x[..., -n[-1] :, :] = torch.nan
    output = attention(*xs[:3], score=score, mask=within(True), impl=impl)[..., :-2, :]
    assert output.isfinite().all()
    for x in gradients((output,), xs[:3]):
        assert x[..., : -QUERIES[-1] - 2, :].isfinite().all()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=8), st.data())
def test_any_lengths(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    """Sequences of any lengths are right, forward and backward, at the ends of blocks too."""
    rows, columns = [a for a, _ in lengths], [b for _, b in lengths]
    name = data.draw(st.sampled_from(["Dot", "Additive", "Laplace"]))
    arrays = normal(sum(rows), 4), normal(sum(columns), 4, seed=1), normal(sum(columns), 3, seed=2)
    score, xs = leaves(make_score(name, d=4), *(x.astype(np.float32) for x in arrays))
    score = score.map(lambda x: x.float())
    found = []
    for impl in ("auto", "reference"):
        mask = Sequences(offsets(rows), offsets(columns)) & Causal("end")
        output = attention(*xs[:3], score=score, mask=mask, impl=impl)
        found.append([output, *torch.autograd.grad(output.sin().sum(), xs[:3])])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_it_is_fused_and_prepared() -> None:
    xs, score = inputs(True), make_score("Additive")
    assert plan(*xs, score=score, mask=within(True)).route == "cpu"
    prepared = prepare_keys(xs[1], score)
    found = attention(xs[0], prepared, xs[2], score=score, mask=within(True))
    np.testing.assert_allclose(found, attention(*xs, score=score, mask=within(True)), atol=1e-12)
    lse = log_sum_exp(xs[0], xs[1], mask=within(True))
    np.testing.assert_array_equal(lse[..., offsets(QUERIES)[3]], -np.inf)  # without keys


@pytest.mark.slow
def test_jax_and_tensorflow_agree() -> None:
    jax, tf = machine.package("jax"), machine.package("tensorflow")
    xs = [x.astype(np.float32) for x in inputs(True)]
    mask = within(True) & Causal("end")
    expected = attention(*xs, mask=mask)
    in_jax = [jax.numpy.asarray(x) for x in xs]
    traced = jax.jit(lambda a, b, *xs: attention(*xs, mask=Sequences(a, b) & Causal("end")))
    found = [
        attention(*in_jax, mask=mask),
        traced(offsets(QUERIES), offsets(KEYS), *in_jax),
        attention(*map(tf.constant, xs), mask=mask),
        tf.function(lambda *xs: attention(*xs, mask=mask))(*map(tf.constant, xs)),
    ]
    for x in found:
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)


def test_traced_offsets_may_leave_tokens_out() -> None:
    """Tokens after the last traced offset have an output of 0; no check can read traced offsets."""
    x = torch.randn(6, 3)
    batch = torch.tensor([[0, 2, 6], [0, 3, 4]])
    found = torch.func.vmap(lambda cu: attention(x, x, x, mask=Sequences(cu)))(batch)
    for output, cu in zip(found, ([0, 2, 6], [0, 3, 4]), strict=True):
        for a, b in pairwise(cu):
            part = x[a:b]
            torch.testing.assert_close(output[a:b], attention(part, part, part))
        assert (output[cu[-1] :] == 0).all()


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (([0, 3, 2, 6],), ValueError, "cu_seqlens_q must never fall, but entry 2 is 2 after 3"),
        (([1, 6],), ValueError, r"cu_seqlens_q must begin with 0, got \[1\]"),
        (([],), ValueError, "cu_seqlens_q must begin with 0, got no entry"),
        (([0, 6], [0, 2, 6]), ValueError, "cu_seqlens_q has 2 entries and cu_seqlens_k 3"),
        (([0.0, 6.0],), TypeError, r"cu_seqlens_q is float64 of shape \(2,\), expected integers"),
        (([[0, 6]],), TypeError, r"cu_seqlens_q is int64 of shape \(1, 2\)"),
        (("06",), TypeError, "cu_seqlens_q is '06'"),
        ((3,), TypeError, r"cu_seqlens_q is 3 \(int\), expected integers \(n,\)"),
        (([0, 2, 6], [0, 7, 6]), ValueError, "cu_seqlens_k must never fall"),
        (([0, 5],), ValueError, "cu_seqlens_q ends with 5, expected 6, .* packed queries"),
        (([0, 6], [0, 5]), ValueError, "cu_seqlens_k ends with 5, expected 6, .* packed keys"),
    ],
)  # fmt: skip
def test_mistakes(given: tuple[Any, ...], error: type[Exception], text: str) -> None:
    x = np.ones((6, 3))
    with pytest.raises(error, match=text):
        attention(x, x, x, mask=Sequences(*given))


def test_mistakes_of_calls() -> None:
    x, mask = np.ones((6, 3)), Sequences([0, 2, 6])
    with pytest.raises(ValueError, match="two masks are Sequences"):
        attention(x, x, x, mask=mask & mask)
    with pytest.raises(ValueError, match="Keys of other lengths need offsets of their own"):
        attention(x, x[:5], x[:5], mask=mask)
    with pytest.raises(ValueError, match=r'Causal in sequences .* say how they line up: align="st'):
        attention(x, x, x, mask=Sequences([0, 2, 6], [0, 3, 6]) & Causal())
    message = r"valid_lens has shape \(3,\), expected one of \(\), \(2,\), .* \(2 sequences, "
    with pytest.raises(ValueError, match=message):
        attention(x, x, x, mask=mask, valid_lens=[1, 2, 3])


def test_no_offsets_are_refused_where_values_are_traced() -> None:
    x, none = torch.ones(6, 3), torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match="cu_seqlens_q must begin with 0, got no entry"):
        torch.func.vmap(lambda cu: attention(x, x, x, mask=Sequences(cu)))(none)
