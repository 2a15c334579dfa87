"""Dropout draws by Philox4x32-10 in every framework; without a seed the generator gives one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from anyscore import attention
from anyscore.modifiers.dropout import philox
from anyscore.ops import load
from helpers.samples import PAIRS, leaves, make_score, normal

pytestmark = pytest.mark.sample

FRAMEWORKS = pytest.mark.parametrize("framework", ["numpy", "torch"])


def dropped(
    seed: Any, p: float = 0.5, shape: tuple[int, ...] = (2, 3, 5, 7), framework: str = "torch"
) -> np.ndarray:
    """Return which weights dropout keeps, boolean (*lead, T_q, T_k).

    Values are the identity and weights uniform, so the output times T_k · (1 − p) is 1 or 0.
    """
    *lead, queries, keys = shape
    q, k = np.zeros((*lead, queries, 1)), np.zeros((*lead, keys, 1))
    v = np.broadcast_to(np.eye(keys), (*lead, keys, keys))
    if framework == "torch":
        q, k, v = torch.tensor(q), torch.tensor(k), torch.tensor(v.copy())
    out = np.asarray(attention(q, k, v, dropout=p, dropout_seed=seed))
    found = out * keys * (1 - p)
    np.testing.assert_allclose(found, np.round(found), atol=1e-12)
    return np.round(found).astype(bool)


@FRAMEWORKS
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_known_answers(counter: str, key: str, words: str, framework: str) -> None:
    """Philox gives the vectors that Random123 publishes for philox4x32 with 10 rounds."""
    xp = load(framework)
    array = np.array if framework == "numpy" else torch.tensor
    c, k = ([array(int(x, 16)) for x in text.split()] for text in (counter, key))
    found = " ".join(f"{int(x):08x}" for x in philox(xp, c, (k[0], k[1])))
    assert found == words


def test_the_entries_dropped_are_philox_s() -> None:
    """Dropout keeps the entries of the definition: counter (⌊j/4⌋, i, n, 0), the seed as key."""
    xp, seed, p = load("numpy"), (7 << 32) + 11, 0.3
    found = dropped(seed, p)
    for n, i, j in np.ndindex(6, 5, 7):
        counter = [np.array(x) for x in (j // 4, i, n, 0)]
        word = philox(xp, counter, (np.array(11), np.array(7)))[j % 4]
        assert found.reshape(6, 5, 7)[n, i, j] == (int(word) >= p * 2**32)


SEEDS = [0, 1, 2**32, 2**32 + 1, 2**63 - 1, -1, -(2**63)]


@pytest.mark.parametrize("seed", SEEDS)
def test_frameworks_drop_the_same(seed: int) -> None:
    ours = dropped(seed, framework="torch")
    assert (ours == dropped(seed, framework="numpy")).all()
    assert (ours == dropped(torch.tensor(seed))).all()
    assert (ours == dropped(np.int64(seed))).all()
    assert (ours == dropped(np.array(seed), framework="numpy")).all()


def test_seeds_of_smaller_types() -> None:
    for dtype in (torch.int32, torch.uint8):
        assert (dropped(torch.tensor(77, dtype=dtype)) == dropped(77)).all()
    for dtype in (np.int32, np.uint8):
        assert (dropped(np.array(77, dtype), framework="numpy") == dropped(77)).all()


def test_seeds_differ() -> None:
    """Both words of a seed change the draw, and so does its sign."""
    found = [dropped(seed).tobytes() for seed in SEEDS]
    assert len(set(found)) == len(SEEDS)


def test_heads_rows_and_columns_differ() -> None:
    kept = dropped(5, shape=(3, 5, 7, 64))
    rows = kept.reshape(-1, 64)
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert len({column.tobytes() for column in rows.T}) == 64


@FRAMEWORKS
def test_independent_of_how_it_is_batched(framework: str) -> None:
    """Entry (n, i, j) depends on n, i, j and the seed alone."""
    kept = dropped(3, shape=(2, 3, 5, 11), framework=framework)
    flat = kept.reshape(6, 5, 11)
    assert (dropped(3, shape=(6, 5, 11), framework=framework) == flat).all()
    assert (dropped(3, shape=(6, 3, 11), framework=framework) == flat[:, :3]).all()
    assert (dropped(3, shape=(6, 5, 7), framework=framework) == flat[..., :7]).all()
    assert (dropped(3, shape=(2, 5, 11), framework=framework) == flat[:2]).all()
    assert (dropped(3, shape=(5, 11), framework=framework) == flat[0]).all()


def test_grouped_and_broadcast_heads_drop_as_if_they_were_not() -> None:
    q = torch.tensor(normal(2, 6, 3, 5))
    for kv in ((2, 2), (2, 1), (1, 2), (1, 1)):
        k, v = (torch.tensor(normal(*kv, 7, d)) for d in (5, 11))
        heads = [h * kv[1] // 6 for h in range(6)]
        full = (x.expand(2, -1, -1, -1)[:, heads] for x in (k, v))
        found = attention(q, k, v, dropout=0.4, dropout_seed=1)
        expected = attention(q, *full, dropout=0.4, dropout_seed=1)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate(p: float) -> None:
    """Dropout keeps a share of 1 − p of the weights, within five standard errors."""
    kept = dropped(11, p, shape=(1, 211, 307))
    assert abs(kept.mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / kept.size)


@FRAMEWORKS
def test_expectation_is_the_output_without(framework: str) -> None:
    """Kept weights are divided by 1 − p, so the mean of many equal rows is the plain output."""
    p, rows = 0.3, 4001
    q, k, v = np.repeat(normal(1, 5), rows, 0), normal(7, 5), normal(7, 3)
    given = list(map(torch.tensor, (q, k, v))) if framework == "torch" else [q, k, v]
    plain = np.asarray(attention(*given))[0]
    out = np.asarray(attention(*given, dropout=p, dropout_seed=2))
    error = out.std(0) / math.sqrt(rows)
    assert (np.abs(out.mean(0) - plain) < 5 * error).all()
    assert (error > 0).all()


def test_a_rate_of_zero_drops_nothing() -> None:
    q, k, v = normal(5, 3), normal(7, 3), normal(7, 3)
    assert (attention(q, k, v, dropout=0.0, dropout_seed=1) == attention(q, k, v)).all()


@FRAMEWORKS
def test_weights_and_lse_are_those_before_dropout(framework: str) -> None:
    q, k, v = normal(5, 3), normal(7, 3), normal(7, 3)
    given = list(map(torch.tensor, (q, k, v))) if framework == "torch" else [q, k, v]
    asked = {"return_weights": True, "return_lse": True}
    plain = attention(*given, **asked)
    out = attention(*given, dropout=0.5, dropout_seed=1, **asked)
    np.testing.assert_array_equal(out.weights, plain.weights)
    np.testing.assert_array_equal(out.lse, plain.lse)
    assert not np.allclose(out.output, plain.output)


def test_with_a_mask() -> None:
    """Dropout drops the same entries with a mask as without."""
    q, k, v = np.zeros((5, 1)), np.zeros((7, 1)), np.eye(7)
    mask = normal(5, 7) > -0.5
    found = attention(q, k, v, mask=mask, dropout=0.5, dropout_seed=9) > 0
    assert (found == (mask & dropped(9, shape=(5, 7)))).all()


# Without a seed


def test_drawn_from_torch_s_generator() -> None:
    q, k, v = (torch.tensor(normal(t, 5)) for t in (11, 13, 13))
    torch.manual_seed(0)
    first, second = (attention(q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(0)
    again, next_again = (attention(q, k, v, dropout=0.5) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(second, next_again)
    assert not torch.equal(first, second)


def test_drawn_from_numpy_s_global_generator() -> None:
    q, k, v = (normal(t, 5) for t in (11, 13, 13))
    np.random.seed(0)
    first, second = (attention(q, k, v, dropout=0.5) for _ in range(2))
    np.random.seed(0)
    again, next_again = (attention(q, k, v, dropout=0.5) for _ in range(2))
    assert (first == again).all()
    assert (second == next_again).all()
    assert not (first == second).all()


def test_a_given_seed_draws_nothing() -> None:
    q, k, v = (normal(t, 5) for t in (11, 13, 13))
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), np.random.get_state()[2]
    attention(q, k, v, dropout=0.5, dropout_seed=3)
    attention(*map(torch.tensor, (q, k, v)), dropout=0.5, dropout_seed=3)
    attention(*map(torch.tensor, (q, k, v)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert np.random.get_state()[2] == before[2]


# The backward


@pytest.mark.parametrize("name", PAIRS)
def test_gradcheck(name: str) -> None:
    """The backward drops the same weights as the forward."""
    score, inputs = leaves(make_score(name), normal(3, 5), normal(7, 5), normal(7, 2))
    names = list(score.tensors())
    mask = normal(3, 7) > -1

    def f(*xs: torch.Tensor) -> torch.Tensor:
        given = type(score)(**dict(zip(names, xs[3:], strict=True)))
        return attention(*xs[:3], score=given, mask=mask, dropout=0.4, dropout_seed=8)

    assert torch.autograd.gradcheck(f, inputs)
    with torch.no_grad():
        assert not torch.allclose(f(*inputs), attention(*inputs[:3], score=score, mask=mask))


@pytest.mark.parametrize("seed", [None, 6])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_drops_the_same_again(seed: int | None, reentrant: bool) -> None:
    score, inputs = leaves(make_score("Additive"), normal(3, 5), normal(7, 5), normal(7, 2))

    def f(*xs: torch.Tensor) -> torch.Tensor:
        return attention(*xs, score=score, dropout=0.4, dropout_seed=seed).square()

    torch.manual_seed(0)
    plain = f(*inputs[:3])
    expected = torch.autograd.grad(plain.sum(), inputs)
    torch.manual_seed(0)
    for x in inputs:
        x.grad = None
    again = checkpoint(f, *inputs[:3], use_reentrant=reentrant)
    again.sum().backward()
    assert torch.equal(plain, again)
    for x, g in zip(inputs, expected, strict=True):
        assert torch.equal(x.grad, g)
