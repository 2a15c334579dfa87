"""Facts and curves of trials give doubts about a recommendation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from anyscore.lab.comparison import Finished
from anyscore.lab.trials import Trial
from anyscore.lab.verdict.convergence import ceiling, convergence_warnings, overfitting
from lab.made_trials import finished

pytestmark = pytest.mark.sample

ENOUGH = [1.0, 0.5, 0.3, 0.25, 0.25]


def trial(
    score: str = "dot", seed: int = 0, losses: Sequence[float] = ENOUGH, **facts: Any
) -> Finished:
    epochs = [{"epoch": n, "valid_loss": loss} for n, loss in enumerate(losses, 1)]
    best = 1 + min(range(len(losses)), key=losses.__getitem__)
    return replace(
        finished(Trial(score, seed), items=2), epochs=epochs, facts={"best_epoch": best, **facts}
    )


def test_no_trials_and_trials_without_curves_or_facts_leave_no_doubt() -> None:
    assert convergence_warnings([]) == []
    assert convergence_warnings([trial(losses=[0.5])]) == []
    assert overfitting([]) is None


@pytest.mark.parametrize(
    ("losses", "doubted"),
    [
        (ENOUGH, False),
        ([1.0, 0.5, 0.4], True),
        ([1.0, 0.5, 0.495], False),  # by 1 %
        ([1.0, 0.4, 0.5], False),  # no longer
        ([0.02, 0.0110, 0.0103], False),  # by 6 %, but hardly anything is left
        ([0.02, 0.0150, 0.0130], True),
        ([2.0 - n / 20 for n in range(30)], True),  # over the last tenth, not the last epoch
    ],
)
def test_training_that_ended_too_early(losses: list[float], doubted: bool) -> None:
    found = convergence_warnings([trial(losses=losses)])
    assert bool(found) == doubted
    assert not found or found[0].startswith("Training ended too early: the validation loss of dot")


def test_a_score_is_doubted_for_most_of_its_seeds_and_named_unless_all_are() -> None:
    falling = [1.0, 0.5, 0.4]
    one = [trial("dot", n, falling if n else ENOUGH) for n in range(3)]
    other = [trial("gatv2", n, ENOUGH if n else falling) for n in range(3)]
    assert "the validation loss of dot was" in convergence_warnings([*one, *other])[0]
    assert (
        "the validation loss of every score was"
        in convergence_warnings([*one, trial("gatv2", 0, falling)])[0]
    )


def test_nothing_learnt_is_said_alone() -> None:
    """Outputs that fit any item as well as their own give one warning, even if the loss falls."""
    nothing = trial(losses=[1.0, 0.5, 0.4], related=12.0, unrelated=11.0)
    (said,) = convergence_warnings([nothing])
    assert said.startswith("Nothing was learnt")
    # One score that has learnt is enough for the others to be judged.
    learnt = trial("gatv2", related=50.0, unrelated=11.0)
    assert not any("Nothing" in x for x in convergence_warnings([nothing, learnt]))


def test_overfitting_costs_time_alone() -> None:
    early, late = [0.5, 0.4, 0.6, 0.7, 0.8, 0.9], [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]
    told = overfitting([trial("dot", 0, early), trial("gatv2", 0, early)])
    assert told is not None
    assert "lowest after epoch 2 of 6" in told
    assert "--epochs 2 would be enough" in told
    assert overfitting([trial("dot", 0, early), trial("gatv2", 0, late)]) is None


def test_items_that_no_model_can_answer() -> None:
    task = {"test": 500, "unit": "word"}
    assert ceiling(25, task) is None
    assert ceiling(493, task) == (
        "No model can be right for 493 of 500 test items: their answers hold a token that training "
        "lacks. --unit bpe makes words of their parts."
    )
    assert str(ceiling(26, task | {"unit": "character"})).endswith("that training lacks.")
    assert ceiling(0, {}) is None
