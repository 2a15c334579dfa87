"""Calls work with MXNet's kinds of arrays, modes, dropout and dtypes; wrong calls raise."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd

from anyscore import (
    Additive,
    Causal,
    Keys,
    Lengths,
    ScaledDot,
    Window,
    attention,
    plan,
    prepare_keys,
)
from anyscore.ops import load
from frameworks.mxnet.arrays import numbers, to
from helpers.cases import case

B, T_Q, T_K, D, D_V = 3, 4, 6, 5, 2


def arrays(dtype: str = "float64") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (B, T_Q, D), (B, T_K, D), (B, T_K, D_V)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def additive(dtype: str = "float64") -> Additive:
    rng = np.random.default_rng(1)
    return Additive(*(rng.standard_normal(s).astype(dtype) for s in ((7, D), (7, D), (7,))))


def test_answers_in_the_kind_of_the_query(kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    score = additive().map(lambda x: to(x, kind=kind))
    lengths = to(np.float32([0, 2, 6]), kind=kind)
    expected = attention(*arrays(), score=additive(), valid_lens=[0, 2, 6], return_weights=True)
    other = "nd" if kind == "np" else "np"
    for key in (given[1], to(arrays()[1], kind=other)):  # one call may mix kinds
        for impl in ("auto", "reference"):
            found = attention(
                given[0], key, given[2], score=score, valid_lens=lengths, impl=impl,
                return_weights=True, return_lse=True,
            )  # fmt: skip
            for x in found:
                assert type(x) is type(given[0])
            np.testing.assert_allclose(numbers(found.output), expected.output, atol=1e-12)
            np.testing.assert_allclose(numbers(found.weights), expected.weights, atol=1e-12)


def test_callables_are_given_the_kind_of_the_query(kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]

    def score(query: Any, key: Any) -> Any:
        assert type(query) is type(key) is type(given[0])
        dot = mx.npx.batch_dot if kind == "np" else mx.nd.batch_dot
        return dot(query, key, transpose_b=True)

    found = attention(*given, score=score, valid_lens=[0, 2, 6])
    same = attention(*arrays(), score=ScaledDot(1.0), valid_lens=[0, 2, 6])
    assert type(found) is type(given[0])
    np.testing.assert_allclose(numbers(found), same, atol=1e-12)


def test_kinds_of_other_frameworks_are_not_mixed(kind: str) -> None:
    query, key, value = (to(x, kind=kind) for x in arrays())
    with pytest.raises(TypeError, match=r"MXNet.*NumPy"):
        attention(query, numbers(key), value)
    with pytest.raises(TypeError, match=r"MXNet.*NumPy|NumPy.*MXNet"):
        attention(query, key, value, score=Additive(None, None, np.ones(D)))


@pytest.mark.parametrize("mask", [Causal("end"), Window(1, 2, "start"), Lengths(3), None])
def test_plan_and_route(mask: Any, kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    assert plan(*given, mask=mask).route == "cpu"
    with autograd.record():
        assert plan(*given, mask=mask).route == "cpu"
    fused = attention(*given, mask=mask, impl="fused")
    exact = attention(*arrays(), mask=mask)
    np.testing.assert_allclose(numbers(fused), exact, atol=1e-12)


def test_without_the_core(no_core: None, kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    assert plan(*given).route == "reference"
    np.testing.assert_allclose(numbers(attention(*given)), attention(*arrays()), atol=1e-12)
    with pytest.raises(NotImplementedError, match="it is not there"):
        attention(*given, impl="fused")


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_dtypes(dtype: str, impl: str, kind: str) -> None:
    """Results and gradients have the given dtype, with sums in float32."""
    given = [to(x, dtype, kind) for x in arrays()]
    score = additive().map(lambda x: to(x, dtype, kind))
    for x in given:
        x.attach_grad()
    with autograd.record():
        found = attention(*given, score=score, valid_lens=[0, 2, 6], impl=impl, return_lse=True)
    found.output.backward()
    exact = attention(*arrays(), score=additive(), valid_lens=[0, 2, 6])
    assert found.output.dtype == np.dtype(dtype)
    assert found.lse.dtype == np.float32
    np.testing.assert_allclose(
        numbers(found.output), exact, atol={"float16": 6e-3, "float32": 2e-6}[dtype]
    )
    for x in given:
        assert x.grad.dtype == np.dtype(dtype)
        assert np.isfinite(numbers(x.grad)).all()


def test_bfloat16_is_refused() -> None:
    """MXNet has bfloat16 for its own graphs alone."""
    dtype = np.dtype([("bfloat16", np.uint16)])
    given = [mx.nd.array(np.zeros((1, 2, 3), np.uint16), dtype=dtype) for _ in range(3)]
    with pytest.raises(TypeError, match=r"bfloat16.*float32"):
        attention(*given)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("seed", [0, 2**32 + 1, 2**63 - 1, -1, -(2**63)])
def test_dropout_is_that_of_numpy(seed: int, impl: str, kind: str) -> None:
    expected = attention(*arrays(), dropout=0.3, dropout_seed=seed)
    given = [to(x, kind=kind) for x in arrays()]
    found = attention(*given, dropout=0.3, dropout_seed=seed, impl=impl)
    np.testing.assert_allclose(numbers(found), expected, atol=1e-12)


def test_dropout_of_the_backward_is_that_of_the_forward(kind: str) -> None:
    query, key, value = (to(x, kind=kind) for x in arrays())
    value.attach_grad()
    with autograd.record():
        output = attention(query, key, value, dropout=0.5)
    output.backward(to(np.ones(output.shape), kind=kind))
    total = (numbers(value.grad) * numbers(value)).sum()  # the output is linear in the values
    np.testing.assert_allclose(total, numbers(output).sum(), rtol=1e-10)


def test_seeds_are_drawn_from_its_generator(kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    mx.random.seed(3)
    first, second = (numbers(attention(*given, dropout=0.5)) for _ in range(2))
    mx.random.seed(3)
    np.testing.assert_array_equal(numbers(attention(*given, dropout=0.5)), first)
    assert not np.array_equal(first, second)


@pytest.mark.usefixtures("np_mode")
def test_seed_as_an_array() -> None:
    given = [to(x) for x in arrays()]
    seed = mx.np.array(7, dtype="int64")
    found = attention(*given, dropout=0.5, dropout_seed=seed)
    np.testing.assert_array_equal(
        numbers(found), numbers(attention(*given, dropout=0.5, dropout_seed=7))
    )


@pytest.mark.parametrize("name", ["scaled_dot", "bilinear", "additive", "trilinear", "cosine"])
def test_prepared_keys(name: str, kind: str) -> None:
    c = case(name, "rank_3", "none")
    query, key, value = (to(x, kind=kind) for x in (c.query, c.key, c.value))
    score = c.score.build(c.parameters, lambda x: to(x, kind=kind))
    prepared = prepare_keys(key, score, valid_lens=[2, 7, 0])
    found = attention(query, prepared, value, score=score, valid_lens=[2, 7, 0])
    same = attention(query, key, value, score=score, valid_lens=[2, 7, 0])
    assert type(found) is type(query)
    np.testing.assert_allclose(numbers(found), numbers(same), atol=1e-6)


def test_prepared_keys_keep_their_graph(kind: str) -> None:
    """The gradient of the keys is the sum over several calls."""
    query, key, value = (to(x, kind=kind) for x in arrays())
    score = additive().map(lambda x: to(x, kind=kind))
    grads = []
    for prepare in (True, False):
        for x in (key, score.W_k):
            x.attach_grad()
        with autograd.record():
            given = prepare_keys(key, score) if prepare else key
            total = sum(attention(query * i, given, value, score=score) for i in (1, 2))
        total.backward()
        grads.append([numbers(x.grad) for x in (key, score.W_k)])
    for x, y in zip(*grads, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_masks_of_both_kinds(kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    keep = np.random.default_rng(2).random((B, T_K)) < 0.6
    exact = attention(*arrays(), mask=Keys(keep) & Causal("end"))
    for x in (keep, to(keep), to(keep, kind="nd")):
        found = attention(*given, mask=Keys(x) & Causal("end"))
        np.testing.assert_allclose(numbers(found), exact, atol=1e-12)


@pytest.mark.parametrize("n", [np.nan, 2.5])
def test_lengths_are_whole_numbers(n: float, kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    for lengths in ([n] * B, to(np.full(B, n), kind=kind)):
        with pytest.raises(ValueError, match=f"valid_lens holds {n}, expected whole numbers"):
            attention(*given, valid_lens=lengths)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_masks_may_change_after_the_call(impl: str, kind: str) -> None:
    """Operators, which run later and again in the backward, have masks of their own."""
    given = [to(x, kind=kind) for x in arrays()]
    keep, lengths = np.random.default_rng(2).random((T_Q, T_K)) < 0.6, np.array([0, 2, 6])
    expected = attention(*arrays(), mask=keep, valid_lens=lengths)
    given[2].attach_grad()
    with autograd.record():
        output = attention(*given, mask=keep, valid_lens=lengths, impl=impl)
    keep[:], lengths[:] = False, 0
    output.backward()
    np.testing.assert_allclose(numbers(output), expected, atol=1e-12)
    total = (numbers(given[2].grad) * numbers(given[2])).sum()
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-10)


def test_inputs_are_not_written_to(kind: str) -> None:
    given = [to(x, kind=kind) for x in arrays()]
    score = additive().map(lambda x: to(x, kind=kind))
    for x in given:
        x.attach_grad()
    with autograd.record():
        output = attention(*given, score=score, valid_lens=[0, 2, 6])
    output.backward()
    for x, y in zip(given, arrays(), strict=True):
        np.testing.assert_array_equal(numbers(x), y)


def test_outputs_may_be_written_to(kind: str) -> None:
    output = attention(*(to(x, kind=kind) for x in arrays()))
    output[:] = 1
    output += 1
    assert (numbers(output) == 2).all()


def test_importing_anyscore_imports_no_mxnet() -> None:
    code = (
        "import sys, numpy as np, anyscore; x = np.ones((1, 2, 3)); anyscore.attention(x, x, x); "
        "assert 'mxnet' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    broken = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import mxnet; " + code], capture_output=True
    )
    assert broken.returncode


def test_devices_and_layouts() -> None:
    xp, x = load("mxnet"), mx.nd.ones((2, 3))
    for one in (x, mx.np.ones(2), x.as_in_context(mx.cpu(1))):
        assert xp.device(one) == "cpu"
    assert xp.device(np.ones(2)) is None
    assert xp.layout_problem(x) is xp.layout_problem(mx.np.ones(2)) is None
    for kind in ("csr", "row_sparse"):
        expected = f'sparse ({kind}): pass x.tostype("default")'
        assert xp.layout_problem(x.tostype(kind)) == expected
