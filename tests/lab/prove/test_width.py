"""The proof of width, in small: phrases, scores and measures."""

from __future__ import annotations

import pytest
import torch

from anyscore.lab import extras
from anyscore.lab.data.encoding import Item, encode
from anyscore.lab.prove import pinyin, width
from anyscore.lab.prove.names import NAMES, PACKAGES, find
from anyscore.lab.train.answering import Answer
from anyscore.lab.train.settings import Settings
from anyscore.lab.trials import Trial
from lab.command_line import call, plain


def test_the_phrases_are_those_that_the_page_says() -> None:
    made = pinyin.phrases(500)
    assert f"{len(made):,} phrases" in width.PROOF.task
    assert len(set("".join(x.source for x in made))) == 500
    assert all(2 <= len(x.source) <= 8 for x in made)
    task = pinyin.task(500, 2000)
    assert (
        f"{len(task.train):,} for training and {len(task.test):,} for testing" in width.PROOF.task
    )
    parts = [{x.source for x in part} for part in (task.train, task.valid, task.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == len(made)


def test_each_character_has_one_syllable_whose_place_is_its_own() -> None:
    made = pinyin.phrases(500)
    assert all(len(x.references) == 1 for x in made)
    assert all(len(x.source) == len(x.references[0].split()) for x in made)
    readings = {x.source: x.references[0] for x in made}
    assert readings["音乐"] == "yīn yuè"
    assert readings["乐意"] == "lè yì"
    data = encode(pinyin.task(120, 200))
    assert all(len(x.source) + 1 == len(x.target) for x in data.train)


def test_reading_each_character_as_it_is_mostly_read() -> None:
    """Each character's commonest reading has the accuracy on the page: context adds little."""
    task = pinyin.task(500, 2000)
    met: dict[str, list[str]] = {}
    for x in task.train:
        for character, syllable in zip(x.source, x.references[0].split(), strict=True):
            met.setdefault(character, []).append(syllable)
    mostly = {c: max(sorted(set(found)), key=found.count) for c, found in met.items()}
    shares = []
    for x in task.test:
        right = x.references[0].split()
        told = [mostly.get(c) for c in x.source]
        shares.append(sum(a == b for a, b in zip(told, right, strict=True)) / len(right))
    assert f"{100 * sum(shares) / len(shares):.1f} % right" in width.PROOF.differences


def test_the_multiplicative_score_is_the_product_of_projections() -> None:
    layer = width.attention("multiplicative, 256", 6)
    scaled = width.attention("scaled, 256", 6)
    scaled.load_state_dict(layer.state_dict())
    query, key = torch.randn(2, 3, 6), torch.randn(2, 5, 6)
    W_q, W_k = (dict(layer.named_parameters())[f"{name}.weight"] for name in ("W_q", "W_k"))
    assert W_q.shape == (256, 6)
    product = torch.einsum("bqd,hd,he,bke->bqk", query, W_q, W_k, key)
    for one, right in ((layer, product), (scaled, product / 16)):
        output, weights = one(query, key, return_weights=True)
        torch.testing.assert_close(weights, right.softmax(-1))
        torch.testing.assert_close(output, weights @ key)


@pytest.mark.parametrize("h", width.WIDTHS)
def test_its_variance_is_its_width_at_first(h: int) -> None:
    torch.manual_seed(0)
    layer = width.attention(f"multiplicative, {h}", 64)
    W_q, W_k = (dict(layer.named_parameters())[f"{name}.weight"] for name in ("W_q", "W_k"))
    query, key = torch.randn(400, 64), torch.randn(400, 64)
    assert (query @ W_q.mT @ W_k @ key.mT).var().item() == pytest.approx(h, rel=0.3)


def test_without_attention_all_is_looked_at_alike() -> None:
    layer = width.attention(width.NONE, 6)
    weights = layer(torch.randn(2, 3, 6), torch.randn(2, 5, 6), return_weights=True)[1]
    torch.testing.assert_close(weights, torch.full((2, 3, 5), 0.2))


def test_models_differ_in_the_score_alone() -> None:
    data = encode(pinyin.task(120, 200))
    first, *others = (width.build(name, data, Settings(hidden=16), 3) for name in width._SCORES)
    for other in others:
        assert first.shared_parameters().keys() == other.shared_parameters().keys()
        for name, x in first.shared_parameters().items():
            assert torch.equal(x, other.shared_parameters()[name])
    torch.rand(1)  # earlier draws have no effect
    again, another = (width.build(width._SCORES[0], data, Settings(hidden=16), x) for x in (3, 4))
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    assert not any(map(torch.equal, first.parameters(), another.parameters()))


def test_what_is_measured() -> None:
    item = Item(("甲", "乙", "丙"), (4, 5, 6), ("a b c",), (("a", "b", "c"),))
    looks = torch.tensor([[0.6, 0.2, 0.2], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]])
    given = Answer(("a", "c", "c"), True, -1.0, looks)
    assert width.said_right(given, item) == width.looked_right(given, item) == 2 / 3
    short = Answer(("a",), True, -1.0, looks[:2])
    assert width.said_right(short, item) == width.looked_right(short, item) == 1 / 3


@pytest.mark.weekly
def test_a_small_training() -> None:
    train = width.WidthTrain(hidden=32, epochs=8, rate=8e-3, characters=120, tested=200)
    outcome = train(Trial("additive, 32", 0), lambda told: None)
    shares = {name: sum(x) / len(x) for name, x in outcome.measures.items()}
    assert {len(x) for x in outcome.measures.values()} == {200}
    assert shares["syllables"] > 0.55  # without attention 0.38
    assert shares["looked"] > 0.7


def test_bounds_follow_from_the_paper_s_table() -> None:
    """Bounds are proportions, as the page says; a fall is bounded by half of the paper's fall."""
    told = {
        tuple(score.split(", ")): float(said.split()[0])
        for (_, score), said in width.PROOF.published.items()
    }
    additive = {h: told["additive", str(h)] for h in width.WIDTHS}
    behind = {h: 1 - told["multiplicative", str(h)] / additive[h] for h in width.WIDTHS}
    assert (
        f"{100 * (1 - min(additive.values()) / max(additive.values())):.1f} %"
        in width.PROOF.differences
    )
    for h in width.WIDTHS[::3]:
        assert f"{100 * behind[h]:.1f}" in width.PROOF.differences
    bounds = {(x.score, x.beside): (x.at_least, x.at_most) for x in width.PROOF.checks}
    assert bounds["multiplicative, 1024", "additive, 1024"] == (None, -round(50 * behind[1024]))
    assert all(-4 <= -100 * behind[h] <= 1 for h in width.WIDTHS[:-1])
    lost = 1 - told[width.NONE,] / additive[512]
    assert bounds[width.NONE, "additive, 512"] == (None, -round(50 * lost))


@pytest.mark.parametrize("names", [(), ("width",), ("lookup", "width")])
def test_a_missing_package_is_told_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "pypinyin" else object())
    result = call("prove", *names, width=300)
    assert result.exit_code == 2
    assert "the proof width: needs the package 'pypinyin', which is not" in plain(result.stderr)
    assert "pip install 'anyscore[lab]'" in plain(result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1


def test_other_proofs_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    others = [name for name in NAMES if name not in PACKAGES]
    assert [x.name for x in find(others)] == others == ["lookup", "middle", "neighbours", "longer"]
