"""The model in JavaScript, under node, computes what PyTorch computes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyscore import scores
from anyscore.lab.data.tokens import BOS, EOS, detokenise, tokenise
from anyscore.lab.play.export import play_data
from anyscore.lab.train.checkpoint import Run, load_run
from anyscore.lab.train.gru import read_forwards
from anyscore.lab.train.recurrent import Recurrent
from anyscore.lab.translate.translations import Notes, translate
from anyscore.lab.translate.trials import find_trials
from anyscore.lab.trials import Trial
from anyscore.score import SCORES
from helpers.node import run_module
from lab.translate.test_translate import make

WORDS = ["ab", "abc", "cab", "é\u1e69", "dab", "acdb", "bad🦊", "c a", "d’cab", "b, b", "ca", "adc"]
TEXTS = [
    *("abc", "a", "é", "e\u0301s\u0323\u0307", "🦊🦊 b", "𝒳 \U00010348", "ж☃\u200d", "  b\t\n c  "),
    *("\ufeffa", "a\x1cb\x85c\u3000", "it's ''ok''", "…«a»...", "abcd" * 40),
]
HIDDEN = 15  # the two directions of the encoder have eight states each
LARGEST = 1e-4  # difference of a weight

ANSWERS = """
(() => {
  const task = new Task(given.data);
  return given.data.models.map((record) => {
    const model = new Model(record);
    return given.texts.map((text) => {
      const tokens = task.tokens(text);
      if (!tokens.length) return { tokens };
      const { steps } = model.answer(task.encode(tokens), task.limit);
      return {
        tokens,
        numbers: steps.map((step) => step.token),
        text: task.text(steps.filter((step) => !ends(step)).map((step) => task.token(step.token))),
        scores: steps.map((step) => [...step.scores]),
        weights: steps.map((step) => [...step.weights]),
      };
    });
  });
})()
"""


def reversing(folder: Path, unit: str, names: list[str], epochs: int = 1) -> Path:
    """Train models of these scores to reverse words."""
    trials = [Trial(name, 0) for name in names]
    return make(folder / "run", "recurrent", trials, epochs, hidden=HIDDEN, words=WORDS, unit=unit)


def rounded(trial: Path) -> Run:
    """Load a model; round its parameters to float16."""
    run = load_run(trial)
    with torch.no_grad():
        for x in run.model.parameters():
            x.copy_(x.half())
    return run


@torch.no_grad()
def score_matrix(run: Run, tokens: list[str], numbers: list[int]) -> Any:
    """Return the scores before the softmax of a source's tokens, for each token of an output."""
    model = run.model
    assert isinstance(model, Recurrent)
    source = torch.tensor([run.source_vocabulary.encode(tokens)])
    keys = model.encode(source, torch.tensor([len(tokens)]))
    begun = torch.tensor([[BOS, *numbers[:-1]]])
    queries, _ = read_forwards(model.decoder, model.target_embedding(begun), None)
    return scores(queries, keys, score=model.attention._score(queries))[0]


def compare(folder: Path, unit: Any) -> None:
    """Compare every model of a run with PyTorch's, for every text."""
    trials = find_trials(folder)
    data = play_data(folder, trials)
    assert [model["score"] for model in data["models"]] == [t.name[:-6] for t in trials]
    answered = run_module("lab/play/model.js", ANSWERS, {"data": data, "texts": TEXTS}, folder)
    for trial, found in zip(trials, answered, strict=True):
        run = rounded(trial)
        wanted = translate(run, TEXTS, Notes(run.limit, None), return_weights=True)
        for one, other in zip(wanted, found, strict=True):
            assert one.answer is not None
            assert tuple(other["tokens"]) == one.tokens == tuple(tokenise(one.source, unit))
            assert other["text"] == one.text
            assert (other["numbers"][-1] == EOS) == one.answer.complete
            np.testing.assert_allclose(other["weights"], one.answer.weights, rtol=0, atol=LARGEST)
            before = score_matrix(run, list(one.tokens), other["numbers"])
            largest = float(before.abs().max())
            np.testing.assert_allclose(other["scores"], before, rtol=0, atol=1e-5 * (1 + largest))


def test_it_answers_as_pytorch_with_every_score(tmp_path: Path) -> None:
    """Texts are of one character, unknown, combining, astral, and longer than any of training."""
    compare(reversing(tmp_path, "character", list(SCORES)), "character")


@pytest.mark.parametrize("unit", ["word", "token"])
def test_it_answers_as_pytorch_with_other_units(tmp_path: Path, unit: str) -> None:
    compare(reversing(tmp_path, unit, ["additive"], epochs=8), unit)


def test_float16_is_read_exactly(tmp_path: Path) -> None:
    every = np.arange(2**16, dtype="<u2")
    text = base64.b64encode(every.tobytes()).decode()
    found = run_module("lab/play/model.js", "[...float16(given)].map(String)", text, tmp_path)
    wanted = every.view("<f2").astype(float)
    np.testing.assert_array_equal(np.array(found, float), wanted)


@settings(max_examples=3)
@given(texts=st.lists(st.text(), min_size=300, max_size=300))
def test_texts_are_tokenised_as_in_training(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    units = ["character", "word", "token", "label"]
    texts = [*texts, *TEXTS, "", " ", "\uffed\uffee a\uffed", "a's b'' ’c d’", "e\u0301\u0323"]
    expression = """given.units.map((unit) => given.texts.map((text) => {
        const tokens = tokenise(text, unit);
        return [tokens, detokenise(tokens, unit)];
    }))"""
    given_data = {"units": units, "texts": texts}
    folder = tmp_path_factory.mktemp("tokens")
    found = run_module("lab/play/tokens.js", expression, given_data, folder)
    for unit, rows in zip(units, found, strict=True):
        for text, (tokens, back) in zip(texts, rows, strict=True):
            assert tokens == tokenise(text, unit)
            assert back == detokenise(tokens, unit)


def test_formulas_are_those_of_the_library(tmp_path: Path) -> None:
    found = run_module("lab/play/scores.js", "Object.entries(SCORES)", None, tmp_path)
    assert {name: score["formula"] for name, score in found} == {
        name: kind.formula for name, kind in SCORES.items()
    }
