"""Tests of the tests: the oracle gives numbers computed by hand, and each helper can fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import anyscore
from anyscore import Causal, Interval, Keys, Lengths, Mask, Score, Window
from helpers import oracle, plain
from helpers.budget import EPS, assert_near, assert_within_budget
from helpers.by_pair import by_pair
from helpers.cases import MASKS, SCORES, SHAPES, applicable, case
from helpers.oracle_gradients import gradients
from helpers.table_masks import RULES
from helpers.table_scores import TABLE

pytestmark = pytest.mark.sample

# ------------------------------------------------------- the oracle, against numbers by hand

_W_q, _W_k, _w_v = np.array([[1.0, 0], [-1, 0]]), np.array([[0.0, 1], [0, 3]]), np.array([2.0, 5])
_W, _b = np.array([[1.0, 0, 0, 1], [-1, 0, 0, 3]]), np.array([0.5, 0.25])

BY_HAND = [
    (anyscore.Dot(), 1.0),
    (anyscore.ScaledDot(), 1 / math.sqrt(2)),
    (anyscore.ScaledDot(scale=3), 3.0),
    (anyscore.Bilinear(np.array([[1.0, 2], [3, 4]])), 11.0),
    (anyscore.Bilinear(np.array([[1.0, 2], [3, 4]]), scale=0.5), 5.5),
    (anyscore.Cosine(tau=0.5), 2 / math.sqrt(50)),
    (anyscore.Trilinear(np.array([1.0, 1]), np.array([2.0, 0]), np.array([0.0, 1])), 7.0),
    (anyscore.Gaussian(sigma=2.0), -13 / 8),
    (anyscore.Laplace(sigma=np.array(2.0)), -2.5),
    (anyscore.Additive(_W_q, _W_k, _w_v), 5 * math.tanh(-4)),
    (anyscore.Additive(_W_q, _W_k, _w_v, _b), 2 * math.tanh(0.5) + 5 * math.tanh(-3.75)),
    (anyscore.Additive(None, None, _w_v), 2 * math.tanh(4) + 5 * math.tanh(1)),
    (anyscore.Concat(_W, _w_v), 5 * math.tanh(-4)),
    (anyscore.Concat(_W, _w_v, _b), 2 * math.tanh(0.5) + 5 * math.tanh(-3.75)),
    (anyscore.GATv2(_W_q, _W_k, _w_v), 5 * 0.2 * -4),
    (anyscore.GATv2(None, None, _w_v), 2 * 4 + 5 * 1),
    (anyscore.Additive(_W_q, _W_k, _w_v, scale=0.5), 2.5 * math.tanh(-4)),
    (anyscore.Concat(_W, _w_v, scale=np.array(3.0)), 15 * math.tanh(-4)),
    (anyscore.GATv2(_W_q, _W_k, _w_v, negative_slope=0.5), 5 * 0.5 * -4),
]


@pytest.mark.parametrize(("score", "expected"), BY_HAND)
def test_scores_by_hand(score: Score, expected: float) -> None:
    """The log-sum-exp of a single key is its score, for q = (1, 2) and k = (3, −1)."""
    q, k = np.array([[1.0, 2.0]]), np.array([[3.0, -1.0]])
    found = oracle.attend(q, k, np.array([[6.0, 7.0, 8.0]]), score)
    assert found.lse[0] == pytest.approx(expected, rel=1e-15)
    assert found.weights.tolist() == [[1.0]]
    assert found.output.tolist() == [[6.0, 7.0, 8.0]]


def test_softmax_by_hand() -> None:
    q, k = np.array([[1.0]]), np.log([[1.0], [2.0], [5.0], [4.0]])
    found = oracle.attend(
        q, k, np.array([[1.0], [2.0], [3.0], [math.nan]]), anyscore.Dot(), None, 3
    )
    assert found.weights[0] == pytest.approx([1 / 8, 2 / 8, 5 / 8, 0])
    assert found.output[0, 0] == pytest.approx((1 + 4 + 15) / 8)
    assert found.lse[0] == pytest.approx(math.log(8))


def test_heads_in_blocks() -> None:
    """Query heads 0, 1, 2 read key head 0, and query heads 3, 4, 5 read key head 1."""
    value = np.array([10.0, 20.0]).reshape(1, 2, 1, 1)
    ones = np.ones((1, 6, 1, 1)), np.ones((1, 2, 1, 1))
    assert (
        oracle.attend(*ones, value, anyscore.Dot()).output.ravel().tolist() == [10] * 3 + [20] * 3
    )


def test_parameters_of_each_head() -> None:
    q, k = np.ones((1, 3, 1, 1)), np.ones((1, 3, 1, 1))
    found = oracle.attend(q, k, k, anyscore.Gaussian(np.array([1.0, 2.0, 4.0])))
    assert found.lse.ravel().tolist() == [0, 0, 0]
    found = oracle.attend(q, 3 * k, k, anyscore.Gaussian(np.array([1.0, 2.0, 4.0])))
    assert found.lse.ravel().tolist() == [-2, -1 / 2, -1 / 8]


MASKS_BY_HAND: list[tuple[Any, str]] = [
    (None, "1111 1111"),
    (Lengths(2), "1100 1100"),
    (Lengths(2.5), "1110 1110"),
    (Lengths(math.nan), "0000 0000"),
    (Lengths([9]), "1111 1111"),
    (Lengths([[1, -1]]), "1000 0000"),
    (Keys(np.array([True, False, True, False])), "1010 1010"),
    (Interval(1, 3), "0110 0110"),
    (Interval(start=[[1, 3]]), "0111 0001"),
    (Causal("start"), "1000 1100"),
    (Causal("end"), "1110 1111"),
    (Causal(offset=1), "1100 1110"),
    (Causal("end", offset=[-1]), "1100 1110"),
    (Window(1, 0, "end"), "0110 0011"),
    (Window(0, 1, "start"), "1100 0110"),
    (Window(None, 1, "start") & Keys(np.array([[False, True, True, True]])), "0100 0110"),
    (np.array([[True], [False]]), "1111 0000"),
    (np.array([True, True, False, True])[None] & Causal("end"), "1100 1101"),
]


@pytest.mark.parametrize(("mask", "expected"), MASKS_BY_HAND)
def test_masks_by_hand(mask: Any, expected: str) -> None:
    keep = oracle.allowed(mask, (1,), 2, 4)
    assert " ".join("".join(map(str, row)) for row in keep[0].astype(int).tolist()) == expected


def test_masks_by_batch() -> None:
    keep = oracle.allowed(Lengths([1, 2]), (2, 3), 1, 2)
    assert keep.tolist() == [[[[True, False]]] * 3, [[[True, True]]] * 3]


@by_pair("score", SCORES)
def test_gradients_are_those_of_the_values(score: str) -> None:
    """Gradients are central differences of the loops, along a random direction of each tensor."""
    c = case(score, "grouped_6_2", "lengths")
    built, masking = c.score.build(c.parameters, np.float64), c.masking(np.asarray)
    rng = np.random.default_rng(0)
    d_output = rng.standard_normal((*c.shape.lead, 5, 19))
    d_lse = rng.standard_normal((*c.shape.lead, 5))
    data = {name: np.float64(getattr(c, name)) for name in ("query", "key", "value")}
    found = gradients(**data, score=built, d_output=d_output, d_lse=d_lse, **masking)
    names = [name for name, x in c.parameters.items() if isinstance(x, np.ndarray)]
    assert set(found) == {"query", "key", "value", *names}

    def loss(inputs: dict[str, np.ndarray]) -> float:
        parameters = {name: inputs.get(name, x) for name, x in c.parameters.items()}
        tensors = [inputs[name] for name in data]
        output, _, lse = oracle.attend(*tensors, c.score.build(parameters, np.float64), **masking)
        return (output * d_output).sum() + (np.where(lse == -np.inf, 0, lse) * d_lse).sum()

    inputs = data | {name: np.float64(c.parameters[name]) for name in names}
    for name, gradient in found.items():
        direction, step = rng.standard_normal(gradient.shape), 1e-6
        up = loss(inputs | {name: inputs[name] + step * direction})
        down = loss(inputs | {name: inputs[name] - step * direction})
        slope = (up - down) / (2 * step)
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-6, abs=1e-6), name


def test_nan_stays_where_it_is_attended() -> None:
    q, k, v = (np.random.default_rng(0).standard_normal((1, 3, 2)) for _ in range(3))
    k[0, 2] = v[0, 2] = math.nan
    tensors, ones = (q, k, v, anyscore.Dot()), (np.ones((1, 3, 2)), np.ones((1, 3)))
    found, slopes = oracle.attend(*tensors, Causal()), gradients(*tensors, *ones, mask=Causal())
    assert np.isnan(found.output).all(axis=-1).tolist() == [[False, False, True]]
    assert np.isnan(found.output).any(axis=-1).tolist() == [[False, False, True]]
    assert np.isnan(slopes["query"]).any(axis=-1).tolist() == [[False, False, True]]
    assert not any(np.isnan(x).any() for x in gradients(*tensors, *ones, valid_lens=2).values())


# -------------------------------------------------------------------- the helpers, to fail


def test_every_score_is_in_the_table() -> None:
    public = [getattr(anyscore, name) for name in anyscore.__all__]
    scores = {x.__name__ for x in public if isinstance(x, type) and issubclass(x, Score)} - {
        "Score"
    }
    missing = scores - {score.kind for score in SCORES.values()}
    assert not missing, f"add a row of {missing} to TABLE of tests/helpers/table_scores.py"
    assert {name: row.kind for name, row in TABLE.items()} == anyscore.score.SCORES


def test_every_mask_is_in_the_table() -> None:
    public = [getattr(anyscore, name) for name in anyscore.__all__]
    masks = {x.__name__ for x in public if isinstance(x, type) and issubclass(x, Mask)}
    masks -= {"Mask", "Edges"}  # contract/test_edges.py tests edges
    made = [case("dot", "heads", mask).masking(np.asarray).get("mask") for mask in MASKS]
    missing = masks - {type(mask).__name__ for mask in made}
    assert not missing, f"add {missing} to MASKS of tests/helpers/table_masks.py"
    assert masks == set(RULES), "each mask has its rule in RULES of tests/helpers/table_masks.py"


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_what_they_say(shape: str) -> None:
    c = case("bilinear", shape, "none")
    assert oracle.lead_of(c.query, c.key, c.value) == c.shape.lead


def test_masks_do_mask() -> None:
    """Each mask of the table keeps and masks pairs; many leave a query without keys."""
    empty = set()
    for mask in set(MASKS) - {"none", "nothing", "length_0"}:
        c = case("dot", "heads", mask)
        assert applicable("heads", mask)
        arguments = c.masking(np.asarray)
        made = arguments.get("mask", oracle.lengths(arguments.get("valid_lens")))
        keep = oracle.allowed(made, c.shape.lead, 5, 7)
        assert keep.any(), mask
        assert not keep.all(), mask
        if not keep.any(axis=-1).all():
            empty.add(mask)
    assert len(empty) >= 12, sorted(empty)


EXACT = np.array([[1.0, -2.0, math.nan], [3.0, 4.0, -math.inf]])


@pytest.mark.parametrize(
    "wrong",
    [
        EXACT + np.array([[0, 2e-6, 0], [0, 0, 0]]),  # one entry is slightly off
        np.array([[1.0, -2.0, 0.0], [3.0, 4.0, -math.inf]]),  # a number for NaN
        np.array([[1.0, -2.0, math.nan], [3.0, 4.0, math.inf]]),  # the other infinity
        np.array([[1.0, -2.0, math.nan], [3.0, 4.0, -1e9]]),  # a number for −∞
        np.array([[1.0, math.nan, math.nan], [3.0, 4.0, -math.inf]]),  # an unwritten element
        np.array([[1.0, -2.0, math.nan], [math.inf, 4.0, -math.inf]]),  # an overflow
        EXACT.T,
        EXACT[None],
        EXACT[:1],
        np.float32(EXACT),  # the dtype
        torch.tensor(EXACT, dtype=torch.float32),
    ],
)
def test_near_fails(wrong: Any) -> None:
    assert_near(EXACT, EXACT, 0.0, dtype="float64")
    assert_near(torch.tensor(EXACT), EXACT, 0.0, dtype="float64")
    with pytest.raises(AssertionError):
        assert_near(wrong, EXACT, 1e-6, dtype="float64")


def test_budget_fails() -> None:
    """An error of twice the plain one plus the band passes, and a larger error fails."""
    exact = np.linspace(-1.0, 1.0, 7)
    plain_ = exact + np.array([0, 0, 1e-3, 0, 0, 0, 0])
    off = np.array([0, 0, 0, 0, 1.0, 0, 0])
    assert_within_budget(exact + 1.9e-3 * off, exact, plain_)
    assert_within_budget(exact + 15 * EPS["float64"] * off, exact, exact)
    for actual, compared in (
        (exact + 2.1e-3 * off, plain_),
        (exact + 17 * EPS["float64"] * off, exact),
        (exact + 1e-3 * off, np.where(off == 1, math.nan, exact)),
        (np.where(off == 1, math.nan, exact), plain_),
        (exact[:, None], plain_),
    ):
        with pytest.raises(AssertionError):
            assert_within_budget(actual, exact, compared)
    with pytest.raises(AssertionError, match="float32"):
        assert_within_budget(exact, exact, plain_, dtype="float32")


@by_pair("score", SCORES)
def test_budget_is_tight(score: str) -> None:
    """An output, weight or gradient in float32 that is off by 1e-5 of the largest fails."""
    c = case(score, "rank_3", "none")
    built = c.score.build(c.parameters, np.asarray)
    exact = oracle.attend(c.query, c.key, c.value, built)
    same = plain.attend(np, c.query, c.key, c.value, built)
    for expected, simple in zip(exact, same, strict=True):
        wrong = expected.copy()
        wrong.flat[3] += 1e-5 * np.abs(expected).max()
        assert_within_budget(np.float32(expected), expected, simple)
        with pytest.raises(AssertionError):
            assert_within_budget(np.float32(wrong), expected, simple)
