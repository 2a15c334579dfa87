"""Models are the same for every score, and padding changes no result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from anyscore.lab.train.batches import Sequences
from anyscore.lab.train.models import MODELS, new_model
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translator import Translator
from anyscore.score import SCORES, Gaussian
from anyscore.torch import Attention
from helpers.by_pair import by_pair

pytestmark = pytest.mark.sample

START, END = 1, 2
SOURCES = [[5, 6, 7, 8, 9, 10, 11], [7, 5], [9], [4, 4, 6, 8]]

of_every_model = pytest.mark.parametrize("model", MODELS)
of_every_translator = pytest.mark.parametrize(
    "model", [name for name, kind in MODELS.items() if issubclass(kind, Translator)]
)
with_every_score = by_pair("score", SCORES)


def pad(tokens: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return Sequences(tokens, torch.device("cpu")).take(torch.arange(len(tokens)))


def build(model: str, score: str, seed: int = 0, hidden: int = 12, **others: Any) -> Any:
    settings = Settings(model=model, hidden=hidden, **others)
    return new_model(settings, score, 13, 9, seed).eval()


@of_every_model
@with_every_score
def test_shared_parameters_start_the_same_for_every_score(model: str, score: str) -> None:
    one = build(model, "scaled_dot").shared_parameters()
    other = build(model, score).shared_parameters()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@of_every_model
def test_another_seed_gives_other_parameters(model: str) -> None:
    one, other = build(model, "additive", seed=0), build(model, "additive", seed=1)
    for parameters in (one.shared_parameters(), one.score_parameters()):
        assert any(not torch.equal(x, other.get_parameter(n)) for n, x in parameters.items())


@of_every_model
def test_a_score_keeps_its_own_parameters_out_of_the_shared_ones(model: str) -> None:
    with_own, without = build(model, "additive"), build(model, "scaled_dot")
    assert with_own.score_parameters()
    assert not without.score_parameters()
    shared, own = with_own.shared_parameters(), with_own.score_parameters()
    assert shared.keys() | own.keys() == dict(with_own.named_parameters()).keys()
    assert not shared.keys() & own.keys()


@of_every_model
def test_building_a_model_leaves_the_global_generator_alone(model: str) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build(model, "additive")
    assert torch.equal(torch.rand(4), expected)


@of_every_translator
@with_every_score
def test_padding_changes_nothing(model: str, score: str) -> None:
    """A source has the same logits alone, in a padded batch, and with rubbish in the padding."""
    built = build(model, score)
    target = torch.tensor([[START, 5, 3, 8]]).expand(len(SOURCES), -1)
    source, lengths = pad(SOURCES)
    together = built(source, lengths, target)
    rubbish = source.masked_fill(source == 0, 12)
    torch.testing.assert_close(built(rubbish, lengths, target), together)
    for i, tokens in enumerate(SOURCES):
        alone = built(torch.tensor([tokens]), torch.tensor([len(tokens)]), target[:1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-5, atol=2e-6)


@of_every_translator
@with_every_score
def test_steps_one_at_a_time_are_the_steps_of_training(model: str, score: str) -> None:
    built = build(model, score)
    source, lengths = pad(SOURCES)
    target = torch.tensor([[START, 5, 3, 8], [START, 3, 3, 4], [START, 1, 8, 2], [START, 4, 5, 6]])
    expected = built(source, lengths, target)
    memory = built.begin(source, lengths)
    for t in range(target.shape[1]):
        states, memory = built.follow(target[:, t : t + 1], memory)
        logits = built.read_out(states)
        torch.testing.assert_close(logits[:, 0], expected[:, t], rtol=1e-5, atol=2e-6)


@of_every_translator
def test_a_token_that_comes_later_changes_nothing_before_it(model: str) -> None:
    built = build(model, "additive")
    source, lengths = pad(SOURCES)
    target = torch.tensor([[START, 5, 3, 8]]).expand(len(SOURCES), -1)
    other = target.clone()
    other[:, 2] = 7
    one, two = built(source, lengths, target), built(source, lengths, other)
    torch.testing.assert_close(one[:, :2], two[:, :2])
    assert not torch.allclose(one[:, 2:], two[:, 2:])


@of_every_translator
def test_every_token_of_the_source_counts(model: str) -> None:
    """Each token of the source, and the order of tokens, changes the logits."""
    built = build(model, "additive")
    target, lengths = torch.tensor([[START]]), torch.tensor([4])
    source = torch.tensor([[5, 6, 7, 8]])
    expected = built(source, lengths, target)
    for i in range(4):
        other = source.clone()
        other[0, i] = 9
        assert not torch.allclose(built(other, lengths, target), expected, atol=1e-5)
    assert not torch.allclose(built(source.flip(1), lengths, target), expected, atol=1e-5)


@of_every_translator
def test_greedy_weights_are_over_the_source_alone(model: str) -> None:
    built = build(model, "additive")
    source, lengths = pad(SOURCES)
    said = built.greedy(source, lengths, limit=6, return_weights=True)
    for tokens, (output, _, rows) in zip(SOURCES, said, strict=True):
        assert rows.shape == (len(output), len(tokens))
        torch.testing.assert_close(rows.sum(-1), torch.ones(len(output)))


@of_every_translator
def test_greedy_ends_with_the_end_or_at_the_limit(model: str) -> None:
    built = build(model, "dot")
    source, lengths = pad(SOURCES)
    with torch.no_grad():
        built.to_logits.bias.zero_()
        built.to_logits.bias[7] = 1e3
    outputs = [x.numbers for x in built.greedy(source, lengths, limit=5)]
    assert outputs == [[7] * 5] * len(SOURCES)
    with torch.no_grad():
        built.to_logits.bias[END] = 1e6
    outputs = [x.numbers for x in built.greedy(source, lengths, limit=5)]
    assert outputs == [[END]] * len(SOURCES)


@of_every_translator
@with_every_score
def test_greedy_is_what_teacher_forcing_finds_likeliest(model: str, score: str) -> None:
    built = build(model, score, seed=2)
    source, lengths = pad(SOURCES)
    said = built.greedy(source, lengths, limit=6)
    for tokens, (output, nats, _) in zip(SOURCES, said, strict=True):
        target = torch.tensor([[START, *output[:-1]]])
        logits = built(torch.tensor([tokens]), torch.tensor([len(tokens)]), target)
        logits[..., [0, START]] = -torch.inf
        likely, best = logits[0].log_softmax(-1).max(-1)
        assert best.tolist() == output
        assert nats == pytest.approx(likely.sum().item(), rel=1e-4)


@of_every_translator
def test_greedy_says_neither_padding_nor_the_start(model: str) -> None:
    built = build(model, "dot")
    with torch.no_grad():
        built.to_logits.bias[[0, START]] = 1e6
    source, lengths = pad(SOURCES)
    outputs = [x.numbers for x in built.greedy(source, lengths, limit=5)]
    assert all(token not in (0, START) for output in outputs for token in output)


@of_every_translator
@pytest.mark.parametrize(
    "score",
    ["additive", *(pytest.param(x, marks=pytest.mark.slow) for x in ("scaled_dot", "gaussian"))],
)
def test_it_learns_to_reverse(model: str, score: str) -> None:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, 9, (48, 4), generator=generator)
    end = torch.full((48, 1), END)
    targets = torch.cat([source.flip(1), end], 1)
    inputs = torch.cat([torch.full((48, 1), START), targets[:, :-1]], 1)
    built, lengths = build(model, score, hidden=32, layers=1).train(), torch.full((48,), 4)
    optimiser = torch.optim.Adam(built.parameters(), lr=1e-2)
    # Without this schedule the last steps jump, and roundings decide how many answers are right.
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.02, total_iters=150)
    for _ in range(150):
        loss = cross_entropy(built(source, lengths, inputs).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        slower.step()
    outputs = [x.numbers for x in built.eval().greedy(source, lengths, limit=6)]
    right = sum(output == target for output, target in zip(outputs, targets.tolist(), strict=True))
    assert right >= 46


def test_the_source_is_known_through_the_attention_alone() -> None:
    class Nothing(torch.nn.Module):
        def forward(self, queries: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            return torch.zeros_like(queries)

    built = build("recurrent", "dot")
    built.attention = Nothing()
    source, lengths = pad(SOURCES)
    logits = built(source, lengths, torch.tensor([[START, 5, 3]]).expand(len(SOURCES), -1))
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))


def test_a_transformers_heads_may_share_their_keys() -> None:
    """With key projections for two of four heads, steps still equal training."""
    settings = Settings(model="transformer", hidden=12, kv_heads=2)
    built = new_model(settings, "additive", 13, 9, 0).eval()
    assert built.get_parameter("encoder.0.to_all.W_k.weight").shape == (6, 12)
    assert built.get_parameter("encoder.0.to_all.W_q.weight").shape == (12, 12)
    source, lengths = pad(SOURCES)
    target = torch.tensor([[START, 5, 3]]).expand(len(SOURCES), -1)
    expected = built(source, lengths, target)
    memory = built.begin(source, lengths)
    for t in range(3):
        states, memory = built.follow(target[:, t : t + 1], memory)
        torch.testing.assert_close(
            built.read_out(states)[:, 0], expected[:, t], rtol=1e-5, atol=2e-6
        )


def test_every_attention_layer_of_a_transformer_takes_the_score() -> None:
    built = build("transformer", "gaussian")
    layers = [x for x in built.modules() if isinstance(x, Attention)]
    assert len(layers) == 2 + 2 * 2
    assert all(x.score is Gaussian for x in layers)
