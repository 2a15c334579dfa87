"""Small tasks of the proofs are made right, and the right models learn the tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anyscore.lab.prove import kernel_regression, length, lookup
from anyscore.lab.prove.names import NAMES, find
from anyscore.lab.trials import Outcome, Trial


def mean(outcome: Outcome, name: str) -> float:
    values = outcome.measures[name]
    return sum(values) / len(values)


def ignored(told: object) -> None:
    pass


def test_each_dictionary_has_each_value_once() -> None:
    made = lookup.dictionaries(30, 7, torch.Generator())
    assert (made.sort(-1)[0] == torch.arange(7)).all()
    assert len({tuple(row) for row in made.tolist()}) == 30


@pytest.mark.parametrize(("score", "least", "most"), [("gat", 0.0, 0.9), ("dot", 0.99, 1.0)])
def test_lookup_is_learnt_by_dot_and_not_by_gat(score: str, least: float, most: float) -> None:
    train = lookup.LookupTrain(5, width=32, steps=300, looked_up=160, rate=2e-3)
    assert least <= mean(train(Trial(score, 0), ignored), "right") <= most


def test_a_fixed_kernel_is_the_mean_of_near_samples() -> None:
    x = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    y = torch.tensor([2.0, 4.0, 9.0], dtype=torch.float64)
    at = torch.tensor([0.4, 3.5, 100.0], dtype=torch.float64)
    told = kernel_regression.smooth("fixed boxcar", 1.0, x, y, at)
    assert told.tolist() == [3.0, 9.0, 5.0]
    alone = kernel_regression.smooth("fixed boxcar", 1.5, x, y, x, without_own=True)
    assert alone.tolist() == [4.0, 2.0, 5.0]


def test_cross_validation_leaves_a_sample_itself_out() -> None:
    """A sample does not predict itself; else the narrowest width would be best."""
    x, y = kernel_regression.sample(100, 0)
    assert (
        kernel_regression.cross_validated("fixed Gaussian", x, y) > 2 * kernel_regression.WIDTHS[0]
    )


def test_a_learnt_gaussian_is_the_fixed_one() -> None:
    train = kernel_regression.NeighboursTrain(samples=100, steps=300)
    learnt, fixed, flat = (
        mean(train(Trial(score, 0), ignored), "explained")
        for score in ("gaussian", "fixed Gaussian", "fixed constant")
    )
    assert learnt == pytest.approx(fixed, abs=0.03)
    assert fixed > 0.9
    assert abs(flat) < 0.1


def test_longer_sequences_are_tested_at_their_length() -> None:
    train = length.LongerTrain(True, pairs=60, epochs=1, hidden=8, tested=5)
    task = train.task()
    assert all(x.references[0].split() == x.source.split()[::-1] for x in task.train)
    lengths = {len(x.source.split()) for x in task.train}
    assert max(lengths) <= length.LONGEST
    outcome = train(Trial("dot", 0), ignored)
    assert set(outcome.measures) == {"length_20", "length_40", "length_100"}
    assert {len(x) for x in outcome.measures.values()} == {5}
    assert length._share(["a", "b"], ["a", "c", "d", "e"]) == 0.25


def test_checks_and_published_numbers_name_what_there_is() -> None:
    proofs = find(())
    assert [proof.name for proof in proofs] == list(NAMES)
    for proof in proofs:
        parts = {part.name: part for part in proof.parts}
        for check in proof.checks:
            part = parts[check.part]
            assert {check.score, check.beside or check.score} <= set(part.scores)
            assert check.measure in {measure.name for measure in part.measures}
            assert (check.at_least, check.at_most) != (None, None)
        for part_name, score in proof.published:
            assert score in parts[part_name].scores


def test_another_size_is_another_comparison() -> None:
    """The settings of a part distinguish its trials from trials of another size."""
    for proof in find(()):
        for part in proof.parts:
            assert part.settings == vars(part.train)
    assert replace(lookup.LookupTrain(5), steps=1) != lookup.LookupTrain(5)
