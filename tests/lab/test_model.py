"""The encoder-decoder: the same for every score, and deaf to padding."""

from __future__ import annotations

import pytest
import torch

from anyscore.lab.batches import pad
from anyscore.lab.model import Translator
from anyscore.layers import SCORES

START, END = 1, 2
SOURCES = [[5, 6, 7, 8, 9, 10, 11], [7, 5], [9], [4, 4, 6, 8]]


def build(score: str, seed: int = 0, hidden: int = 11, dropout: float = 0.0) -> Translator:
    model = Translator(
        score, source_size=13, target_size=9, hidden=hidden, dropout=dropout, seed=seed
    )
    return model.eval()


@pytest.mark.parametrize("score", SCORES)
def test_shared_parameters_start_the_same_for_every_score(score: str) -> None:
    one, other = build("scaled_dot").shared_parameters(), build(score).shared_parameters()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_seed_gives_other_parameters() -> None:
    one, other = build("dot", seed=0), build("dot", seed=1)
    assert not torch.equal(one.to_logits.weight, other.to_logits.weight)


def test_the_attention_keeps_its_own_parameters_out_of_the_shared_ones() -> None:
    model = build("additive")
    shared = sum(p.numel() for p in model.shared_parameters().values())
    own = sum(p.numel() for p in model.attention.parameters())
    assert own > 0
    assert shared + own == sum(p.numel() for p in model.parameters())


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build("additive")
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("score", SCORES)
def test_padding_changes_nothing(score: str) -> None:
    """A source alone, in a padded batch, and with rubbish in the padding: the same logits."""
    model = build(score)
    target = torch.tensor([[START, 5, 3, 8]]).expand(len(SOURCES), -1)
    source, lengths = pad(SOURCES)
    together = model(source, lengths, target)
    rubbish = source.masked_fill(source == 0, 12)
    torch.testing.assert_close(model(rubbish, lengths, target), together)
    for i, tokens in enumerate(SOURCES):
        alone = model(torch.tensor([tokens]), torch.tensor([len(tokens)]), target[:1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_steps_one_at_a_time_are_the_steps_of_training(score: str, prepared: bool) -> None:
    model = build(score)
    source, lengths = pad(SOURCES)
    target = torch.tensor([[START, 5, 3, 8]]).expand(len(SOURCES), -1)
    expected = model(source, lengths, target)
    keys, state = model.encode(source, lengths), None
    keys = model.attention.prepare_keys(keys) if prepared else keys
    for t in range(target.shape[1]):
        logits, state = model.decode(target[:, t : t + 1], state, keys, lengths)
        torch.testing.assert_close(logits[:, 0], expected[:, t], rtol=1e-5, atol=1e-6)


def test_the_encoder_reads_both_ways() -> None:
    model = build("dot")
    one = model.encode(torch.tensor([[5, 6, 7]]), torch.tensor([3]))
    other = model.encode(torch.tensor([[5, 6, 8]]), torch.tensor([3]))
    assert not torch.allclose(one[:, 0], other[:, 0])


def test_the_source_is_known_through_the_attention_alone() -> None:
    class Nothing(torch.nn.Module):
        def forward(self, queries: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            return torch.zeros_like(queries)

    model = build("dot")
    model.attention = Nothing()  # type: ignore[assignment]
    source, lengths = pad(SOURCES)
    logits = model(source, lengths, torch.tensor([[START, 5, 3]]).expand(len(SOURCES), -1))
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))


def test_greedy_weights_are_over_the_source_alone() -> None:
    model = build("additive")
    source, lengths = pad(SOURCES)
    outputs, weights = model.greedy(
        source, lengths, start=START, end=END, limit=6, return_weights=True
    )
    for tokens, output, rows in zip(SOURCES, outputs, weights, strict=True):
        assert rows.shape == (len(output), len(tokens))
        torch.testing.assert_close(rows.sum(-1), torch.ones(len(output)))


def test_greedy_ends_with_the_end_or_at_the_limit() -> None:
    model = build("dot")
    source, lengths = pad(SOURCES)
    with torch.no_grad():
        model.to_logits.bias.zero_()
        model.to_logits.bias[7] = 1e3
    outputs, _ = model.greedy(source, lengths, start=START, end=END, limit=5)
    assert outputs == [[7] * 5] * len(SOURCES)
    with torch.no_grad():
        model.to_logits.bias[END] = 1e6
    outputs, _ = model.greedy(source, lengths, start=START, end=END, limit=5)
    assert outputs == [[END]] * len(SOURCES)


def test_greedy_follows_its_own_likeliest_tokens() -> None:
    model = build("gatv2")
    source, lengths = pad(SOURCES)
    outputs, _ = model.greedy(source, lengths, start=START, end=END, limit=6)
    for tokens, output in zip(SOURCES, outputs, strict=True):
        target = torch.tensor([[START, *output[:-1]]])
        logits = model(torch.tensor([tokens]), torch.tensor([len(tokens)]), target)
        logits[..., [0, START]] = -torch.inf
        assert logits[0].argmax(-1).tolist() == output


def test_greedy_says_neither_padding_nor_the_start() -> None:
    model = build("dot")
    with torch.no_grad():
        model.to_logits.bias[[0, START]] = 1e6
    source, lengths = pad(SOURCES)
    outputs, _ = model.greedy(source, lengths, start=START, end=END, limit=5)
    assert all(token not in (0, START) for output in outputs for token in output)
