"""Batches, the training of one score, its measures and its progress."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from anyscore.lab.data.encoding import Encoded, Item, encode
from anyscore.lab.data.numbers import NumberedPairs
from anyscore.lab.data.options import MAX_TOKENS
from anyscore.lab.data.task import Example, Task
from anyscore.lab.data.tokens import BOS, EOS, PAD, UNK
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.options import default_epochs
from anyscore.lab.report.examples import choose_examples
from anyscore.lab.train import cost, training
from anyscore.lab.train.answering import answers
from anyscore.lab.train.batches import Pairs, Sequences, in_order, shuffled
from anyscore.lab.train.cost import peak_memory_mib
from anyscore.lab.train.models import build_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.training import best_epoch, mean_loss, reported_failures, train

WORDS = ["ab", "abc", "cab", "bcd", "dab", "acdb", "bad", "cda", "dcab", "bb", "ca", "adc"]
SETTINGS = Settings(epochs=2, batch_size=5, hidden=16, dropout=0.1)


def reversing(words: list[str] = WORDS) -> Task:
    """Return a task: words to their reverse."""
    examples = [Example(word, (word[::-1],)) for word in words]
    return Task("reverse", "Words → reversed", "character", examples, examples[:4], examples[4:8])


@pytest.fixture(scope="module")
def data() -> Encoded:
    return encode(reversing())


def build(data: Encoded, score: str = "scaled_dot", seed: int = 0) -> Any:
    return build_model(score, data, SETTINGS, seed)


def test_every_pair_comes_once_in_an_order_of_the_seed() -> None:
    lengths = torch.arange(53) % 7 + 1
    orders = [[rows.tolist() for rows in shuffled(lengths, 4, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert sorted(i for rows in order for i in rows) == list(range(53))
        assert len(order) == math.ceil(53 / 4)
        spread = [int(lengths[rows].max() - lengths[rows].min()) for rows in order]
        assert max(spread) <= 1  # of like length
    assert sorted(i for rows in in_order(lengths, 4) for i in rows.tolist()) == list(range(53))


def test_a_batch_shifts_the_target_behind_the_start() -> None:
    numbered = NumberedPairs([(9,), (4, 5, 6), (8,)], [(9, EOS), (7, EOS), (9, 10, EOS)])
    batch = Pairs(numbered, torch.device("cpu")).batch(torch.tensor([1, 2]))
    assert batch.source.tolist() == [[4, 5, 6], [8, PAD, PAD]]
    assert batch.lengths.tolist() == [3, 1]
    assert batch.inputs.tolist() == [[BOS, 7, EOS], [BOS, 9, 10]]
    assert batch.targets.tolist() == [[7, EOS, PAD], [9, 10, EOS]]
    assert batch.tokens == 5


def test_sequences_are_padded_to_the_longest_taken() -> None:
    sequences = Sequences([[5], [6, 7, 8, 9], [4, 5]], torch.device("cpu"))
    tokens, lengths = sequences.take(torch.tensor([2, 0, 2]))
    assert tokens.tolist() == [[4, 5], [5, PAD], [4, 5]]
    assert lengths.tolist() == [2, 1, 2]


def test_training_reports_each_epoch_and_learns(data: Encoded) -> None:
    seen: list[dict[str, Any]] = []
    settings = replace(SETTINGS, epochs=4, learning_rate=1e-2)
    epochs = train(build(data, "additive"), data, settings, seed=0, report=seen.append)
    assert [told for told in seen if "epoch" in told] == epochs
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3, 4]
    assert [epoch["steps"] for epoch in epochs] == [3, 6, 9, 12]
    assert {"step": 1, "steps": 12} in seen
    assert epochs[-1]["train_loss"] < epochs[0]["train_loss"]


def test_a_slow_training_tells_of_each_step(data: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_SECONDS", 0.0)
    seen: list[dict[str, Any]] = []
    train(build(data), data, SETTINGS, seed=0, report=seen.append)
    assert [told["step"] for told in seen if "step" in told] == [1, 2, 3, 4, 5, 6]


def test_the_same_seed_gives_the_same_numbers(data: Encoded) -> None:
    def numbers(seed: int, learning_rate: float | None = None) -> list[tuple[float, float]]:
        model = build(data)
        epochs = train(model, data, SETTINGS, seed=seed, learning_rate=learning_rate)
        return [(e["train_loss"], e["valid_loss"]) for e in epochs]

    once = numbers(0)
    torch.rand(7)  # the global generator has no effect
    assert numbers(0) == once
    assert numbers(1) != once
    assert numbers(0, SETTINGS.learning_rate) == once
    assert numbers(0, 1e-4) != once


def test_the_model_ends_as_after_its_best_epoch() -> None:
    """Wrong validation answers make a learning model worse there; the best epoch is kept."""
    data = encode(replace(reversing(), valid=[Example("abc", ("abc",)), Example("ca", ("ca",))]))
    settings = replace(SETTINGS, epochs=15, learning_rate=2e-2)
    model = build(data)
    epochs = train(model, data, settings, seed=0)
    losses = [epoch["valid_loss"] for epoch in epochs]
    assert best_epoch(epochs) == losses.index(min(losses)) + 1 < len(epochs)
    found = mean_loss(model, Pairs(data.valid_pairs, torch.device("cpu")))
    assert found == min(losses) != losses[-1]


def test_the_loss_is_over_tokens_and_not_over_padding(data: Encoded) -> None:
    model = build(data).eval()
    batch = Pairs(data.train, torch.device("cpu")).batch(torch.arange(len(data.train)))
    logits = model(batch.source, batch.lengths, batch.inputs)
    expected = torch.nn.functional.cross_entropy(logits.mT, batch.targets, ignore_index=PAD)
    assert batch.tokens < batch.targets.numel()
    torch.testing.assert_close(model.loss(batch), expected)


def test_of_equal_epochs_the_first_is_the_best() -> None:
    losses = [2.0, 1.5, 1.5, 1.7]
    assert best_epoch([{"epoch": i, "valid_loss": x} for i, x in enumerate(losses, 1)]) == 2


def test_training_leaves_the_global_generator_alone(data: Encoded) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    train(build(data), data, SETTINGS, seed=0)
    assert torch.equal(torch.rand(4), expected)


def test_a_loss_that_is_no_number_is_a_clear_failure(data: Encoded) -> None:
    model = build(data, "dot")
    with torch.no_grad():
        model.get_parameter("to_logits.bias")[5] = torch.nan
    told: list[dict[str, Any]] = []
    with pytest.raises(TrialFailure, match="the loss became nan in step 1 of epoch 1"):
        train(model, data, SETTINGS, seed=0, report=told.append)
    assert not any("epoch" in x for x in told)


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
    with pytest.raises(TrialFailure, match=expected), reported_failures():
        raise error


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes"), reported_failures():
        raise RuntimeError("shapes do not match")


def test_answers_keep_the_order_and_cut_the_weights(data: Encoded) -> None:
    model = build(data, "additive")
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
    assert next(iter(data.train)).target[-1] == EOS
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
    models = {name: build(data, name) for name in ("dot", "additive")}
    order: list[Any] = []
    step = cost.training_step

    def watched(model: Any, batch: Any, optimiser: Any) -> torch.Tensor:
        order.append((model.score, batch))
        return step(model, batch, optimiser)

    monkeypatch.setattr(cost, "training_step", watched)
    times = cost.step_times(models, data, SETTINGS)
    assert times.keys() == models.keys()
    assert all(0 < taken < 10_000 for taken in times["dot"])
    assert len(times["dot"]) == len(times["additive"])
    rounds = list(zip(order[::2], order[1::2], strict=True))
    assert all(batch is same for (_, batch), (_, same) in rounds)
    firsts = [(one, other) for (one, _), (other, _) in rounds]
    assert firsts[:3] == [("dot", "additive"), ("additive", "dot"), ("dot", "additive")]


def test_slow_steps_are_timed_less_often(data: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_SECONDS", 0.0)
    calls: list[None] = []
    monkeypatch.setattr(cost, "training_step", lambda *_: calls.append(None))
    cost.step_times({"dot": build(data, "dot")}, data, SETTINGS)
    assert len(calls) == 2 + 3


def test_scores_that_compare_by_pairs_of_features_hold_more(data: Encoded) -> None:
    held = {
        name: cost.peak_memory(build(data, name), data, SETTINGS)
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
