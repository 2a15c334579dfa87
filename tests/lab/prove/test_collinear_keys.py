"""A score that is linear in the key cannot pick a key between two others: a theorem, as a test."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from anyscore.lab.prove.collinear_keys import (
    LINEAR,
    MONOTONE,
    OTHERS,
    PLACES,
    Line,
    MiddleTrain,
    lines,
    picked,
    scores_along,
)
from anyscore.score import SCORES
from helpers.by_pair import by_pair

ENDS = {0, PLACES - 1}


def drawn(score: str, seed: int, size: float) -> tuple[Line, torch.Tensor]:
    """Return a float64 model with random parameters of a size, and lines."""
    torch.manual_seed(seed)
    model = Line(score).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(size * torch.randn_like(parameter))
    return model, lines(20, torch.Generator().manual_seed(seed)).double()


def highest(score: str, seed: int, size: float) -> set[int]:
    """Return the places whose weight is the largest of a line, beyond rounding."""
    model, points = drawn(score, seed, size)
    labels = torch.eye(PLACES, dtype=torch.float64).expand(len(points), -1, -1)
    with torch.no_grad():
        first, second = (
            model(points, points, labels).sort(-1, descending=True)[0][..., :2].unbind(-1)
        )
        places = model(points, points, labels).argmax(-1)
    return set(places[first > second + 1e-9].tolist())


@pytest.mark.parametrize("score", [*LINEAR, *MONOTONE])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), size=st.floats(0.01, 10))
def test_the_highest_key_is_at_an_end_whatever_the_parameters(
    score: str, seed: int, size: float
) -> None:
    assert highest(score, seed, size) <= ENDS


@by_pair("score", OTHERS)
def test_the_others_can_pick_a_key_between(score: str) -> None:
    """Other scores pick a key between two others, so the test above can fail."""
    assert any(highest(score, seed, 1.0) - ENDS for seed in range(20))


def test_every_score_is_one_or_the_other() -> None:
    assert {*LINEAR, *OTHERS} == set(SCORES)
    assert not {*LINEAR} & {*OTHERS}


def test_what_is_learnt() -> None:
    train = MiddleTrain(steps=250)
    points = lines(200, torch.Generator())
    share = {}
    for score in ("dot", "gaussian"):
        model = train.trained(score, 0)
        right = (picked(model, points) == torch.arange(PLACES)).double()
        share[score] = right.mean().item()
        assert right[:, 1:-1].mean().item() == pytest.approx(float(score == "gaussian"), abs=0.1)
    assert share["dot"] <= 2 / PLACES
    curve = scores_along(model, 2, torch.arange(PLACES, dtype=torch.float32))
    assert curve.argmax() == 2
    assert curve.max() == 0


def test_points_stand_on_a_line_in_equal_distances() -> None:
    points = lines(50, torch.Generator())
    steps = points[:, 1:] - points[:, :-1]
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps), atol=1e-5, rtol=1e-5)
