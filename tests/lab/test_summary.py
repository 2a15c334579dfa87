"""The sentences of a summary say what the numbers bear, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from sample_metrics import sample_metrics

from anyscore.lab.summary import differ, judged_by, margin, ranked, summarise


def made(*exact: float, **changes: list[Any]) -> dict[str, Any]:
    """Metrics of scores "a", "b", ... with these test results, otherwise alike, and changes."""
    metrics = sample_metrics()
    first = metrics["scores"][0]
    scores = []
    for i, share in enumerate(exact):
        test = {"exact_match": share, "chrf": 90.0, "bleu": 80.0}
        score = {**first, "name": "abcdefg"[i], "test": test, "step_ms": 10.0}
        scores.append(score | {key: values[i] for key, values in changes.items()})
    metrics["scores"] = scores
    metrics["settings"]["scores"] = [score["name"] for score in scores]
    return metrics


def failed(metrics: dict[str, Any], name: str) -> dict[str, Any]:
    (record,) = (score for score in metrics["scores"] if score["name"] == name)
    record.update(test=None, failure="the loss became nan")
    return metrics


def epochs(*valid: float) -> list[dict[str, Any]]:
    return [
        {"epoch": n, "train_loss": 1.0, "valid_loss": 2.0 - v, "valid_exact_match": v, "seconds": 1}
        for n, v in enumerate(valid, 1)
    ]


def chrf(value: float) -> dict[str, Any]:
    return {"exact_match": 0.0, "chrf": value, "bleu": 1.0}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        pytest.param(
            made(0.80, 0.953, 0.90),
            [
                "b did best on the 500 test items with 95.3 % exact match (chrF 90.0), "
                "5.3 points ahead of c, which is more than noise.",
                "a came last with 80.0 % exact match (chrF 90.0), 15.3 points behind.",
                "Recommendation: take b; better than every other by more than noise.",
            ],
            id="clear",
        ),
        pytest.param(
            made(0.95, 0.94, 0.70, step_ms=[30.0, 10.0, 5.0]),
            [
                "1.0 points ahead of b; but b is within noise of that "
                "(with 500 items, differences under about 2.9 points can be chance)",
                "c came last",
                "A training step is cheapest with c (about 5 ms) and dearest with a "
                "(30 ms, 6 times as long).",
                "Recommendation: take b; within noise of a, and the quickest to train of those as "
                "good: 2.5 s to 80 % with b, 7.6 s with a, 3 times as much, "
                "though a step takes 2 times as long as with c.",
            ],
            id="within noise, cheaper",
        ),
        pytest.param(
            made(0.95, 0.95, score_parameters=[5000, 0]),
            [
                "a and b tie at 95.0 % exact match",
                "A training step takes all of them about 10 ms.",
                "b has no parameters in the attention, a has the most (5,000).",
                "these data do not tell the scores apart, so take b, the cheapest.",
            ],
            id="tie, fewer parameters",
        ),
        pytest.param(
            made(
                0.95,
                0.95,
                0.95,
                epochs=[epochs(0.45, 0.9), epochs(0.9, 0.91), epochs(0.8, 0.9)],
                step_ms=[10.0, 20.0, 20.0],
            ),
            [
                "final quality does not tell the scores apart, but the training needed does: "
                "1.3 s to 90 % with a, 2.5 s with c, 2 times as much. This is one seed",
            ],
            id="tie, training tells",
        ),
        pytest.param(
            made(
                0.95,
                0.95,
                0.95,
                epochs=[epochs(0.45, 0.9), epochs(0.9, 0.9), epochs(0.8, 0.8)],
                step_ms=[10.0, 15.0, 10.0],
            ),
            [
                "Recommendation: take b; final quality does not tell the scores apart, but the "
                "training needed does: 0.94 s to 90 % with b, while c never got there, "
                "though a step takes 1.5 times as long as with a.",
            ],
            id="tie, quick to train but dear",
        ),
        pytest.param(
            made(0.95, 0.95, epochs=[epochs(0.45, 0.9), epochs(0.5, 0.9)], step_ms=[10.0, 12.0]),
            ["these data do not tell the scores apart, so take a, the cheapest."],
            id="tie, training is level",
        ),
        pytest.param(
            made(0.95, 0.93, 0.94),
            [
                "1.0 points ahead of c; but all the others are within noise of that "
                "(with 500 items, differences under about 3.0 points can be chance)."
            ],
            id="all within noise",
        ),
        pytest.param(
            made(0.1, 0.1, epochs=[epochs(0.0, 0.19), epochs(0.0, 0.1)]),
            ["The lowest validation loss, 1.810 nats per token, is that of a."],
            id="too few right for a pace",
        ),
        pytest.param(
            made(0.95, 0.70, step_ms=[20.0, 10.0]),
            [
                "Recommendation: take a; better than every other by more than noise, "
                "though a step takes 2 times as long as with b.",
            ],
            id="best is dear",
        ),
        pytest.param(
            made(0.95, 0.95, 0.95, epochs=[epochs(0.5, 0.91), epochs(0.92, 0.93), epochs(0.2)]),
            [
                "90 % of the validation items right: b first, after 0.62 s of training "
                "(1.0 epochs); a last, after 1.2 s of training (2.0 epochs), 2 times as much; "
                "c never."
            ],
            id="pace",
        ),
        pytest.param(
            made(0.5, 0.5, epochs=[epochs(0.5, 0.61), epochs(0.2, 0.57)]),
            [
                "56 % of the validation items right: a first, after 0.97 s of training "
                "(1.5 epochs); b last, after 1.2 s of training (2.0 epochs), 1.3 times as much."
            ],
            id="pace below 90 %",
        ),
        pytest.param(
            made(0.95, 0.95, epochs=[epochs(0.5, 0.95), epochs(0.5, 0.95)], step_ms=[None, None]),
            ["90 % of the validation items right: every score after about 1.9 epochs."],
            id="pace without times",
        ),
        pytest.param(
            made(0, 0, test=[chrf(30.0), chrf(40.0)]),
            [
                "b did best on the 500 test items with chrF 40.0, 10.0 points ahead of a, "
                "which is more than noise.",
                "Of the test outputs none matches a reference exactly, "
                "so quality is judged by chrF (0 to 100).",
            ],
            id="hard task",
        ),
        pytest.param(
            made(0.95),
            [
                "a reached 95.0 % exact match (chrF 90.0).",
                "With one score there is nothing to compare",
            ],
            id="one score",
        ),
        pytest.param(
            made(0.9, 0.9, test=[{"exact_match": 0.9, "chrf": 1.0, "bleu": 1.0}, None]),
            [
                "a reached 90.0 % exact match",
                "The run was interrupted: this covers what had finished, without b.",
            ],
            id="one finished",
        ),
        pytest.param(
            made(0, 0, test=[None, None]),
            ["without a and b.", "No score has been tested, so nothing can be recommended."],
            id="none finished",
        ),
        pytest.param(
            failed(made(0.9, 0.8, 0.7), "c"),
            ["a did best", "Training failed with c: the loss became nan."],
            id="one failed",
        ),
        pytest.param(
            made(0.9999, 0.5),
            ["a did best on the 500 test items with just under 100 %"],
            id="99.99",
        ),
    ],
)
def test_sentences(metrics: dict[str, Any], said: list[str]) -> None:
    text = " ".join(summarise(metrics))
    for part in said:
        assert part in text
    assert not any("  " in s or s != s.strip() or not s.endswith(".") for s in summarise(metrics))


def test_what_is_not_said() -> None:
    close = " ".join(summarise(made(0.95, 0.94)))
    assert "more than noise" not in close
    assert "better than every other" not in close
    assert "within noise" not in " ".join(summarise(made(0.95, 0.70)))
    assert "Recommendation" not in " ".join(summarise(made(0.95)))
    assert "never" not in " ".join(summarise(made(0.95, 0.7, epochs=[[], []])))
    assert "interrupted" not in " ".join(summarise(made(0.95, 0.7)))


def test_a_score_that_was_stopped_did_not_fail_to_learn() -> None:
    metrics = made(0.95, 0.95, 0.95, epochs=[epochs(0.95), epochs(0.95), epochs(0.2)])
    metrics["scores"][2]["test"] = None
    assert "never" not in " ".join(summarise(metrics))


def test_a_score_that_never_began_is_named() -> None:
    metrics = made(0.9, 0.8)
    metrics["settings"]["scores"].append("gatv2")
    metrics["interrupted"] = True
    assert "had finished, without gatv2." in " ".join(summarise(metrics))


def test_noise_shrinks_with_more_test_items() -> None:
    metrics = made(0.95, 0.93)
    a, b = metrics["scores"]
    assert not differ(a, b, metrics)
    metrics["task"]["test"] = 5000
    assert differ(a, b, metrics)


def test_margin_is_that_of_two_proportions() -> None:
    metrics = made(0.8, 0.6)
    # (0.8 · 500 + 1) / 502 and (0.6 · 500 + 1) / 502, worked out by hand.
    assert margin(*metrics["scores"], metrics) == pytest.approx(0.05538, abs=1e-5)
    perfect = made(1.0, 1.0)
    assert margin(*perfect["scores"], perfect) > 0


def test_ranking() -> None:
    metrics = made(0.5, 0.9, 0.9, 0.9, step_ms=[1.0, 9.0, 3.0, 6.0])
    metrics["scores"][1]["test"]["chrf"] = 91.0
    metrics["scores"].append({**metrics["scores"][0], "name": "unfinished", "test": None})
    assert [score["name"] for score in ranked(metrics)] == ["b", "c", "d", "a"]


@pytest.mark.parametrize(("best", "measure"), [(0.049, "chrf"), (0.05, "exact_match")])
def test_hard_tasks_are_judged_by_chrf(best: float, measure: str) -> None:
    assert judged_by(made(0.0, best)) == measure


@pytest.mark.parametrize("kind", ["dates", "sentences"])
def test_metrics_are_left_alone(kind: str) -> None:
    metrics = sample_metrics(kind)
    summarise(metrics)
    assert metrics == sample_metrics(kind)
