"""Batches, one score's training, what is measured and what is shown."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from anyscore.lab import cost
from anyscore.lab.batches import Pair, collate, in_order, shuffled
from anyscore.lab.checkpoint import build_model
from anyscore.lab.data import Example, Task
from anyscore.lab.encoding import MAX_TOKENS, Encoded, Item, encode
from anyscore.lab.errors import InputError
from anyscore.lab.examples import choose_examples
from anyscore.lab.measure import peak_memory_mib
from anyscore.lab.quality import corpus_scores, exact_match
from anyscore.lab.tokens import BOS, EOS, PAD, UNK
from anyscore.lab.training import (
    ScoreFailure,
    Settings,
    answers,
    default_epochs,
    reported_failures,
    train,
)

WORDS = ["ab", "abc", "cab", "bcd", "dab", "acdb", "bad", "cda", "dcab", "bb", "ca", "adc"]
SETTINGS = Settings(scores=("scaled_dot",), epochs=2, batch_size=5, hidden=16, dropout=0.1)


def reversing(words: list[str] = WORDS) -> Task:
    """Words to their reverse."""
    examples = [Example(word, (word[::-1],)) for word in words]
    return Task("reverse", "Words → reversed", "character", examples, examples[:4], examples[4:8])


@pytest.fixture(scope="module")
def data() -> Encoded:
    return encode(reversing())


def trained(data: Encoded, settings: Settings, score: str = "scaled_dot") -> dict[str, Any]:
    record: dict[str, Any] = {"epochs": []}
    train(build_model(score, data, settings), data, settings, record)
    return record


def pairs(count: int) -> list[Pair]:
    return [Pair(tuple(range(4, 5 + i % 7)), (4 + i, EOS)) for i in range(count)]


def test_every_pair_comes_once_in_an_order_of_the_seed() -> None:
    given = pairs(53)
    orders = [[list(b) for b in shuffled(given, 4, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        flat = [pair for batch in order for pair in batch]
        assert sorted(flat, key=given.index) == given
        assert len(order) == math.ceil(53 / 4)
    flat = [pair for batch in in_order(given, 4) for pair in batch]
    assert len(flat) == 53


def test_a_batch_shifts_the_target_behind_the_start() -> None:
    batch = collate([Pair((4, 5, 6), (7, EOS)), Pair((8,), (9, 10, EOS))], torch.device("cpu"))
    assert batch.source.tolist() == [[4, 5, 6], [8, PAD, PAD]]
    assert batch.lengths.tolist() == [3, 1]
    assert batch.inputs.tolist() == [[BOS, 7, EOS], [BOS, 9, 10]]
    assert batch.targets.tolist() == [[7, EOS, PAD], [9, 10, EOS]]
    assert batch.tokens == 5


def test_training_reports_each_epoch_and_learns(data: Encoded) -> None:
    seen: list[dict[str, Any]] = []
    steps: list[None] = []
    settings = replace(SETTINGS, epochs=4, learning_rate=1e-2)
    record: dict[str, Any] = {"epochs": []}
    train(
        build_model("additive", data, settings),
        data,
        settings,
        record,
        on_step=lambda: steps.append(None),
        on_epoch=seen.append,
    )
    assert seen == record["epochs"]
    assert [epoch["epoch"] for epoch in seen] == [1, 2, 3, 4]
    assert len(steps) == 4 * 3
    assert seen[-1]["train_loss"] < seen[0]["train_loss"]


def test_the_same_seed_gives_the_same_numbers(data: Encoded) -> None:
    def numbers(settings: Settings) -> list[tuple[float, float]]:
        return [(e["train_loss"], e["valid_loss"]) for e in trained(data, settings)["epochs"]]

    once = numbers(SETTINGS)
    torch.rand(7)  # the global generator has no say
    assert numbers(SETTINGS) == once
    assert numbers(replace(SETTINGS, seed=1)) != once


def test_training_leaves_the_global_generator_alone(data: Encoded) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    trained(data, SETTINGS)
    assert torch.equal(torch.rand(4), expected)


def test_a_loss_that_is_no_number_is_a_clear_failure(data: Encoded) -> None:
    model = build_model("dot", data, SETTINGS)
    with torch.no_grad():
        model.to_logits.bias[5] = torch.nan
    record: dict[str, Any] = {"epochs": []}
    with pytest.raises(ScoreFailure, match="the loss became nan in step 1 of epoch 1"):
        train(model, data, SETTINGS, record)
    assert record["epochs"] == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
)
def test_too_little_memory_is_a_clear_failure(error: Exception) -> None:
    expected = "not enough memory; give a smaller --batch-size or --hidden"
    with pytest.raises(ScoreFailure, match=expected), reported_failures():
        raise error


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes"), reported_failures():
        raise RuntimeError("shapes do not match")


def test_an_interrupt_leaves_what_was_done(data: Encoded) -> None:
    record: dict[str, Any] = {"epochs": []}
    calls = []

    def interrupt() -> None:
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(build_model("dot", data, SETTINGS), data, SETTINGS, record, on_step=interrupt)
    assert len(record["epochs"]) == 1


def test_answers_keep_the_order_and_cut_the_weights(data: Encoded) -> None:
    model = build_model("additive", data, SETTINGS)
    found = answers(model, data, data.test, return_weights=True)
    for item, answer in zip(data.test, found, strict=True):
        (alone,) = answers(model, data, [item])
        assert alone.tokens == answer.tokens
        assert answer.weights is not None
        assert answer.weights.shape == (len(answer.tokens) + answer.complete, len(item.source))


@pytest.mark.parametrize(
    ("count", "batch_size", "expected"), [(10, 64, 30), (4800, 64, 8), (10**5, 64, 2)]
)
def test_default_epochs_aim_at_a_number_of_steps(
    count: int, batch_size: int, expected: int
) -> None:
    task = reversing(["ab"] * count)
    assert default_epochs(task, batch_size, 600) == expected


def test_every_reference_is_a_pair_and_a_right_answer() -> None:
    task = replace(reversing(), train=[Example("go", ("va", "vas"))] * 2)
    data = encode(task)
    assert len(data.train) == 4
    assert data.train[0].target[-1] == EOS
    assert [len(pair.target) for pair in data.train] == [3, 4, 3, 4]


def test_vocabularies_know_the_training_pairs_alone() -> None:
    task = replace(reversing(), test=[Example("xyz", ("zyx",))])
    data = encode(task)
    assert "x" not in data.source_vocabulary
    assert "x" not in data.target_vocabulary
    assert data.test[0].numbers == (UNK,) * 3


def test_long_examples_are_left_out_and_counted() -> None:
    long = Example("a" * (MAX_TOKENS + 1), ("b",))
    fits = Example("a" * MAX_TOKENS, ("b",))
    task = reversing()
    data = encode(replace(task, train=[*task.train, long, fits], test=[*task.test, long]))
    assert data.left_out == 2
    assert len(data.train) == len(WORDS) + 1
    with pytest.raises(InputError, match="too few are left to train on; give shorter"):
        encode(replace(task, train=[long]))


def test_exact_match_takes_any_answer() -> None:
    answers_ = [[["a", "b"]], [["c"], ["d"]]]
    assert exact_match([["a", "b"], ["d"]], answers_) == 1
    assert exact_match([["a"], ["d"]], answers_) == 0.5


def test_corpus_scores_take_any_reference() -> None:
    references = [("der Hund schläft im Haus",), ("the cat sat on a mat", "the cat was on the mat")]
    outputs = ["der Hund schläft im Haus", "the cat was on the mat"]
    assert corpus_scores(outputs, references) == pytest.approx((100, 100))
    chrf, bleu = corpus_scores(["der Hund", "a mat"], references)
    assert 0 < chrf < 100
    assert 0 <= bleu < 100


def test_peak_memory_counts_what_lives_at_once() -> None:
    mebi = torch.zeros(2**18)

    def two_of_three() -> None:
        one = mebi + 1
        two = one + 1
        del one
        _ = two + 1

    cpu = torch.device("cpu")
    assert peak_memory_mib(two_of_three, cpu) == pytest.approx(2)
    assert peak_memory_mib(lambda: mebi.view(2, -1).add_(1), cpu) == pytest.approx(0)
    assert peak_memory_mib(lambda: None, torch.device("mps")) is None


def test_steps_are_timed_in_turn(data: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {name: build_model(name, data, SETTINGS) for name in ("dot", "additive")}
    order: list[Any] = []
    step = cost.training_step

    def watched(model: Any, batch: Any, optimiser: Any) -> torch.Tensor:
        order.append((model.score, batch))
        return step(model, batch, optimiser)

    monkeypatch.setattr(cost, "training_step", watched)
    times = cost.step_times(models, data, SETTINGS)
    assert times.keys() == models.keys()
    assert all(0 < taken < 10_000 for taken in times.values())
    rounds = list(zip(order[::2], order[1::2], strict=True))
    assert all(batch is same for (_, batch), (_, same) in rounds)
    firsts = [(one, other) for (one, _), (other, _) in rounds]
    assert firsts[:3] == [("dot", "additive"), ("additive", "dot"), ("dot", "additive")]


def test_slow_steps_are_timed_less_often(data: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_SECONDS", 0.0)
    calls: list[None] = []
    monkeypatch.setattr(cost, "training_step", lambda *_: calls.append(None))
    cost.step_times({"dot": build_model("dot", data, SETTINGS)}, data, SETTINGS)
    assert len(calls) == 2 + 3


def test_scores_that_compare_by_pairs_of_features_hold_more(data: Encoded) -> None:
    held = {
        name: cost.peak_memory(build_model(name, data, SETTINGS), data, SETTINGS)
        for name in ("scaled_dot", "additive")
    }
    assert held["scaled_dot"] is not None
    assert held["additive"] is not None
    assert 0 < held["scaled_dot"] < held["additive"]


def item(source: str) -> Item:
    return Item(tuple(source), (), ("x",), (("x",),))


def test_examples_are_of_many_scripts_and_lengths() -> None:
    latin = [item("a" * n) for n in range(1, 30)]
    others = [item(text) for text in ("мая", "三月", "مارس")]
    chosen = choose_examples([*latin, *others], 6)
    assert all(other in chosen for other in others)
    lengths = [len(c.source) for c in chosen if c in latin]
    assert len(set(lengths)) == 3
    assert max(lengths) - min(lengths) > 10


def test_long_examples_are_shown_only_if_there_are_no_others() -> None:
    long = [item("a" * 90) for _ in range(3)]
    assert choose_examples([*long, item("b"), item("c")], 2) == [item("b"), item("c")]
    assert len(choose_examples(long, 6)) == 3
