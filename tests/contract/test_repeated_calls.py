"""Repeated calls of NumPy. PyTorch's are in frameworks/torch/test_repeated_calls.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anyscore
from anyscore import attention
from anyscore.functional.cache.prepare import prepare_keys
from anyscore.kernels import cpu
from helpers.repeated_calls import forget

pytestmark = pytest.mark.skipif(cpu.problem() is not None, reason="the C++ core is not built")

HIDDEN = 8


def score_of(name: str, dtype: Any) -> Any:
    weight = np.random.default_rng(1).standard_normal(HIDDEN).astype(dtype)
    scores: dict[str, Any] = {
        "dot": anyscore.Dot(),
        "scaled_dot": anyscore.ScaledDot(),
        "additive": anyscore.Additive(None, None, weight),
        "gatv2": anyscore.GATv2(None, None, weight),
        "gaussian": anyscore.Gaussian(2.0),
        "laplace": anyscore.Laplace(2.0),
        "lorentz": anyscore.Lorentz(),
    }
    return scores[name]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


def inputs(*lead: int, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = (3, HIDDEN), (10, HIDDEN), (10, 5)
    return [rng.standard_normal((*lead, *size)).astype(dtype) for size in sizes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", ["dot", "scaled_dot", "additive", "gatv2", "gaussian", "laplace"])
def test_the_same_bits(name: str, dtype: Any, misses: list[Any]) -> None:
    score = score_of(name, dtype)
    for lead in ((), (2,), (2, 4)):
        first, _, _ = (attention(*inputs(*lead, dtype=dtype), score=score) for _ in range(3))
        misses.clear()
        again = attention(*inputs(*lead, dtype=dtype), score=score)
        others = inputs(*lead, dtype=dtype, seed=1)
        found = attention(*others, score=score)
        assert not misses
        assert again.dtype == dtype
        assert again.tobytes() == first.tobytes()
        assert found.tobytes() == attention(*others, score=score, return_lse=True).output.tobytes()


def test_arrays_of_another_kind_are_looked_at(misses: list[Any]) -> None:
    score = anyscore.Dot()
    q, k, v = inputs(2)
    for _ in range(3):
        attention(q, k, v, score=score)
    for others in (
        (q.astype(">f4"), k.astype(">f4"), v.astype(">f4")),
        (q.astype("f8"), k.astype("f8"), v.astype("f8")),
        (np.asfortranarray(q), k, v),
        (q, k[::-1], v[::-1]),
        (q, np.broadcast_to(k[:1], k.shape), v),
        (q.view(np.recarray), k, v),
    ):
        misses.clear()
        found = attention(*others, score=score)
        assert len(misses) == 1
        exact = attention(*others, score=score, impl="reference")
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    misses.clear()
    for x in (q, k, v):
        x.flags.writeable = False
    attention(q, k, v, score=score)
    assert not misses
    with pytest.raises(ValueError, match="d_q"):
        attention(q[..., :3], k, v, score=score)


def test_a_weight_that_changes_in_place_is_seen() -> None:
    score = score_of("additive", np.float32)
    for _ in range(3):
        attention(*inputs(), score=score)
    score.w_v[:] *= -1
    exact = attention(*inputs(), score=score, impl="reference")
    np.testing.assert_allclose(attention(*inputs(), score=score), exact, rtol=1e-5, atol=1e-6)


def test_prepared_keys(misses: list[Any]) -> None:
    score = score_of("additive", np.float32)
    q, k, v = inputs(2)
    keys = prepare_keys(k, score)
    first, _, _ = (attention(q, keys, v, score=score) for _ in range(3))
    misses.clear()
    assert attention(q, keys, v, score=score).tobytes() == first.tobytes()
    assert not misses


@pytest.mark.parametrize("name", ["dot", "lorentz"])
def test_what_may_not_be_repeated_is_right(name: str) -> None:
    """Unrepeatable calls are right: new factors, empty arrays, a NumPy scalar as length."""
    score = score_of(name, np.float32)
    for n in (0, 4):
        q, k, v = (x[:n] for x in inputs(4))
        for _ in range(4):
            found = attention(q, k, v, score=score)
            assert found.shape == (n, 3, 5)
    for _ in range(4):
        found = attention(*inputs(), score=score, valid_lens=np.int64(2))
    exact = attention(*inputs(), score=score, valid_lens=np.int64(2), impl="reference")
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dot", "additive", "gaussian"])
@pytest.mark.parametrize("prepared", [False, True])
def test_lengths(name: str, prepared: bool, misses: list[Any]) -> None:
    """A repeated call takes lengths of any value in the same shape."""
    score = score_of(name, np.float32)
    for lead, shapes in (((), [()]), ((2,), [(), (2,), (2, 3)]), ((2, 4), [(), (2,), (2, 4, 3)])):
        q, k, v = inputs(*lead)
        key = prepare_keys(k, score) if prepared else k
        for shape in shapes:
            n = np.random.default_rng(0).integers(-2, 13, shape)
            for _ in range(3):
                attention(q, key, v, score=score, valid_lens=np.asarray(n))
            misses.clear()
            for more in (0, 1, -3, -100, 100):
                lengths = np.asarray(n + more)
                found = attention(q, key, v, score=score, valid_lens=lengths)
                assert not misses
                exact = attention(q, k, v, score=score, valid_lens=lengths, impl="reference")
                misses.clear()
                np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_lengths_of_another_kind() -> None:
    score = anyscore.Dot()
    q, k, v = inputs(2)
    for _ in range(3):
        attention(q, k, v, score=score, valid_lens=np.array([3, 7]))
    for lengths in (
        np.array([3, 7], np.int32),
        np.array([3.0, 7.0]),
        np.array(3),
        np.array([[3, 4, 5], [6, 7, 8]]),
        [3, 7],
        None,
    ):
        found = attention(q, k, v, score=score, valid_lens=lengths)
        exact = attention(q, k, v, score=score, valid_lens=lengths, impl="reference")
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
    for wrong in (np.array([3, 7, 1]), np.array([True, False]), np.array([3.5, 7])):
        with pytest.raises((TypeError, ValueError), match="valid_lens"):
            attention(q, k, v, score=score, valid_lens=wrong)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("masked", ["none", "lengths", "booleans"])
def test_scores_have_the_same_bits(masked: str, dtype: Any) -> None:
    """A later call gives new scores, not memory of an earlier one."""
    keep = np.random.default_rng(3).random((2, 3, 10)) < 0.6
    given = {"none": {}, "lengths": {"valid_lens": np.array([4, 0])}, "booleans": {"mask": keep}}
    score, earlier = score_of("additive", dtype), []
    for seed in (0, 0, 0, 0, 1):
        query, key, _ = inputs(2, dtype=dtype, seed=seed)
        found = anyscore.scores(query, key, score=score, **given[masked])
        fused = anyscore.scores(query, key, score=score, impl="fused", **given[masked])
        assert found.dtype == fused.dtype
        assert found.tobytes() == fused.tobytes()
        assert not any(np.shares_memory(found, x) for x in earlier)
        earlier.append(found)


def test_masked_arrays_are_refused_by_later_calls_too() -> None:
    """The type of each array is part of a known call, also where the score makes plain arrays."""
    for score in (anyscore.Dot(), anyscore.Cosine(), anyscore.Lorentz()):
        arrays = dict(zip(("query", "key", "value"), inputs(2), strict=True))
        for _ in range(4):
            attention(**arrays, score=score)
        for name, x in arrays.items():
            with pytest.raises(TypeError, match="mask"):
                attention(**{**arrays, name: np.ma.array(x)}, score=score)


def test_plan_and_log_name_repeated_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "anyscore.repeated")
    score, tensors = anyscore.Cosine(), inputs(2)
    given: dict[str, Any] = {"score": score, "valid_lens": np.array([4, 0])}
    for later in (False, False, True):
        assert anyscore.plan(*tensors, **given).repeated == later
        attention(*tensors, **given)
    first = anyscore.plan(*inputs(3), score=score)
    assert anyscore.plan(*tensors, **given) == first  # route and reason depend on no earlier call
    assert [line.startswith("repeated from now on") for line in caplog.messages] == [True]
    assert not anyscore.plan(*tensors, **given, impl="reference").repeated
    assert not anyscore.plan(*inputs(3), score=score).repeated
    caplog.clear()
    for _ in range(3):
        attention(
            *tensors, score=anyscore.Trilinear(*np.ones((3, HIDDEN), np.float32)), softcap=2.0
        )
    assert [line.split(";")[0] for line in caplog.messages] == [
        "not repeated: the score is a callable or has a query bias"
    ]
