"""The laboratory's own trial is trained, tested, kept, and read back, from damaged files too."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyscore.lab.data.encoding import Encoded, encode
from anyscore.lab.data.task import Example, Task
from anyscore.lab.errors import InputError, TrialFailure
from anyscore.lab.train import checkpoint, settings, training, translation
from anyscore.lab.train.answering import answers
from anyscore.lab.train.checkpoint import load_run
from anyscore.lab.train.metrics import SCORE_OF_SUMS
from anyscore.lab.train.models import MODELS, build_model, shapes
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translation import TranslationTrain
from anyscore.lab.trials import Outcome, Trial
from anyscore.score import SCORES
from helpers.by_pair import by_pair

WORDS = ["ab", "abc", "cab", "bcd", "dab", "acdb", "bad", "cda", "dcab", "bb", "ca", "adc"]
SETTINGS = Settings(epochs=3, batch_size=5, hidden=16)
TRIAL = Trial("additive", seed=1)


@pytest.fixture(scope="module")
def data() -> Encoded:
    examples = [Example(word, (word[::-1],)) for word in WORDS]
    return encode(Task("reverse", "", "character", examples * 3, examples[:4], examples[4:9]))


def run(data: Encoded, settings: Settings = SETTINGS, trial: Trial = TRIAL) -> Outcome:
    return TranslationTrain(data, settings)(trial, lambda told: None)


@pytest.fixture(scope="module")
def outcome(data: Encoded) -> Outcome:
    return run(data)


@pytest.fixture
def folder(outcome: Outcome, tmp_path: Path) -> Path:
    assert outcome.save is not None
    outcome.save(tmp_path)
    return tmp_path


def test_an_outcome_has_a_result_for_each_test_item(data: Encoded) -> None:
    outcome = run(data, replace(SETTINGS, epochs=60, learning_rate=1e-2))
    assert outcome.outputs is not None
    right = [said in item.references for said, item in zip(outcome.outputs, data.test, strict=True)]
    assert outcome.measures == {"exact_match": [float(x) for x in right]}
    assert sum(right) >= 3
    for name, rows in outcome.statistics.items():
        assert len(rows) == len(data.test)
        assert 0 < SCORE_OF_SUMS[name](np.sum(rows, 0, dtype=np.float64)) <= 100
    assert outcome.statistics.keys() == {"chrf", "bleu"}


def test_an_outcome_says_what_the_report_needs(data: Encoded, outcome: Outcome) -> None:
    facts = outcome.facts
    assert facts["best_epoch"] == training.best_epoch(outcome.epochs)
    assert facts["score_parameters"] == 2 * 16 * 16 + 16 < facts["parameters"]
    assert facts["peak_memory_mib"] > 0
    assert len(outcome.epochs) == 3
    assert json.loads(json.dumps([facts, outcome.epochs])) == [facts, outcome.epochs]
    for example in facts["examples"]:
        (item,) = (x for x in data.test if x.source == tuple(example["source"]))
        assert example["references"] == list(item.references)
        assert np.shape(example["weights"]) == (len(example["output"]), len(item.source))
        said = "".join(token for token in example["output"] if token != "</s>")
        assert example["right"] == (said in item.references)


def test_progress_is_told(data: Encoded) -> None:
    told: list[dict[str, Any]] = []
    outcome = TranslationTrain(data, SETTINGS)(TRIAL, told.append)
    assert [x for x in told if "epoch" in x] == outcome.epochs
    assert told[0] == {"step": 1, "steps": 3 * 8}


def test_the_same_trial_gives_the_same_outcome(data: Encoded, outcome: Outcome) -> None:
    """A pickled trial gives the same outcome; another seed, rate or score gives another outcome."""
    train = pickle.loads(pickle.dumps(TranslationTrain(data, SETTINGS, threads=1)))
    again = train(TRIAL, lambda told: None)
    assert again.measures == outcome.measures
    assert again.facts == outcome.facts
    losses = [[e["valid_loss"] for e in x.epochs] for x in (outcome, again)]
    assert losses[0] == losses[1]
    for other in (Trial("additive", 2), Trial("additive", 1, 1e-3), Trial("dot", 1)):
        assert [e["valid_loss"] for e in run(data, trial=other).epochs] != losses[0]


def task_for(model: str) -> Encoded:
    """Return words to their reverse by letter; for a classifier, to their first letter."""

    def target(word: str) -> str:
        return word[0] if model == "classifier" else word[::-1]

    examples = [Example(word, (target(word),)) for word in WORDS]
    task = Task("letters", "", "character", examples * 3, examples[:4], examples[4:9])
    return encode(task, places=model == "pointer")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_runs_and_comes_back(model: str, tmp_path: Path) -> None:
    """The loaded model gives the tested outputs: the model of the best epoch was kept."""
    data = task_for(model)
    outcome = run(data, replace(SETTINGS, model=model))
    assert outcome.save is not None
    outcome.save(tmp_path)
    loaded = load_run(tmp_path)
    said = ["".join(answer.tokens) for answer in answers(loaded.model, data, data.test)]
    assert said == outcome.outputs
    assert loaded.source_vocabulary == data.source_vocabulary
    assert loaded.target_vocabulary == data.target_vocabulary
    assert loaded.source_tokeniser == data.source_tokeniser
    assert loaded.target_tokeniser == data.target_tokeniser
    assert loaded.config["trial"] == {"score": "additive", "seed": 1, "learning_rate": None}


def test_subwords_come_back(tmp_path: Path) -> None:
    examples = [Example(f"{a} {b}", (f"{b} {a}",)) for a in WORDS for b in WORDS]
    task = Task("swap", "", "bpe", examples, examples[:4], examples[4:9], source_unit="word")
    data = encode(task)
    outcome = run(data, replace(SETTINGS, epochs=1))
    assert outcome.save is not None
    outcome.save(tmp_path)
    loaded = load_run(tmp_path)
    assert loaded.source_tokeniser == data.source_tokeniser
    assert loaded.target_tokeniser == data.target_tokeniser
    assert loaded.target_tokeniser.unit == "bpe"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"model": "lstm"},
            "--model: expected one of recurrent, bahdanau, transformer, pointer, tagger, "
            "classifier, got 'lstm'",
        ),
        ({"batch_size": 0}, "--batch-size: expected 1 to 65,536, got 0"),
        ({"learning_rate": float("nan")}, "--learning-rate: expected more than 0, got nan"),
        ({"dropout": 1.0}, "--dropout: expected at least 0 and less than 1, got 1.0"),
        (
            {"model": "transformer", "hidden": 30},
            "--hidden: expected a multiple of the 4 heads, got 30",
        ),
        (
            {"model": "transformer", "hidden": 32, "kv_heads": 3},
            "--kv-heads: expected a divisor of the 4 heads, got 3",
        ),
    ],
)
def test_settings_that_cannot_be_are_told(
    data: Encoded, changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError) as caught:
        TranslationTrain(data, replace(SETTINGS, **changed))
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("model", "target", "told"),
    [
        ("tagger", "abc", "expected a label for every token, got 3 for 2 tokens"),
        ("classifier", "ab", "expected one label for a sequence, got 2 tokens"),
    ],
)
def test_targets_that_are_no_labels_are_told(model: str, target: str, told: str) -> None:
    examples = [Example("ab", (target,))]
    data = encode(Task("labels", "", "character", examples * 3, examples, examples))
    with pytest.raises(InputError, match=told):
        TranslationTrain(data, replace(SETTINGS, model=model))


def test_the_names_of_models_are_those_of_the_registry() -> None:
    assert tuple(MODELS) == settings.MODELS


def test_threads_are_given_back(data: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(translation, "_run", lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    TranslationTrain(data, SETTINGS, threads=before + 1)(TRIAL, lambda told: None)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_a_lack_of_memory_is_told_in_one_line(
    data: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate")

    monkeypatch.setattr(translation, "peak_memory", full)
    with pytest.raises(TrialFailure, match=r"^there is not enough memory; give a smaller"):
        run(data)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", "3", '"x"', "{}", '{"format": 2}', '{"format": 2, "settings": []}',
        "{" * 5, "[" * 100_000, "\udcff",
    ],
)  # fmt: skip
def test_a_damaged_description_is_told_in_one_line(folder: Path, text: str) -> None:
    (folder / "model.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError) as caught:
        load_run(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


BAD = ["x", None, [], {}, -1, 1.5, 10**30, True, "16", [16]]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize(
    "name",
    [
        "limit",
        "score",
        "source_tokeniser",
        "target_tokeniser",
        "settings",
        "source_vocabulary",
        "target_vocabulary",
    ],
)
def test_a_damaged_value_is_told_in_one_line(folder: Path, name: str, value: Any) -> None:
    check_is_damaged(folder, {name: value})


@pytest.mark.parametrize("value", [*BAD, 17])
@pytest.mark.parametrize("name", ["hidden", "model", "dropout", "layers", "heads", "else"])
def test_a_damaged_setting_is_told_in_one_line(folder: Path, name: str, value: Any) -> None:
    if name in ("heads", "layers") and value == 17:
        pytest.skip("a value that fits")
    check_is_damaged(folder, {"settings": {**asdict(SETTINGS), name: value}})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("name", "value"), [("hidden", 65_536), ("hidden", 4), ("layers", 65_536), ("layers", 3)]
)
def test_nothing_is_made_of_another_size_than_its_numbers_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str, value: int
) -> None:
    """A file of a kilobyte must not ask for gigabytes, nor for minutes."""
    outcome = run(task_for(model), replace(SETTINGS, model=model, epochs=1))
    assert outcome.save is not None
    outcome.save(tmp_path)
    made = []

    def new_model(*how: Any, **options: Any) -> Any:
        made.append(how)
        raise MemoryError

    monkeypatch.setattr(checkpoint, "new_model", new_model)
    config = {"settings": {**asdict(SETTINGS), "model": model, name: value}}
    check_is_damaged(tmp_path, config)
    assert bool(made) == (name == "layers" and value == 3 and model != "transformer")


@pytest.mark.parametrize("limit", [12_503, 10**9, 10**18])
def test_no_output_is_longer_than_any_target_in_training_may_be(folder: Path, limit: int) -> None:
    check_is_damaged(folder, {"limit": limit})


@by_pair("score", SCORES)
def test_the_size_of_any_score_is_known_before(data: Encoded, tmp_path: Path, score: str) -> None:
    model = build_model(score, data, SETTINGS, 0)
    sizes = len(data.source_vocabulary), len(data.target_vocabulary)
    found = {name: tuple(x.shape) for name, x in model.state_dict().items()}
    assert shapes(SETTINGS, score, *sizes) == found


def check_is_damaged(folder: Path, changed: dict[str, Any]) -> None:
    config = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    (folder / "model.json").write_text(json.dumps(config | changed), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_run(folder)
    assert "\n" not in str(caught.value)
    assert "damaged" in str(caught.value)


def test_a_newer_format_is_told(folder: Path) -> None:
    config = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    config |= {"format": 99, "anyscore": "7.0"}
    (folder / "model.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError, match=r"found 99; use the release .* \('7\.0'\)"):
        load_run(folder)


def test_damaged_numbers_are_told_in_one_line(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for content in (b"", b"\x00" * 40, whole[: len(whole) // 2], whole[:-1]):
        file.write_bytes(content)
        with pytest.raises(InputError, match="damaged"):
            load_run(folder)


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected the folder of a trial .* found no model\.json"):
        load_run(tmp_path)
