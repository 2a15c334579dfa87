"""Models of a comparison become data of a page, or one line says why they do not."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from anyscore.lab.errors import InputError
from anyscore.lab.play import export
from anyscore.lab.play.export import play_data
from anyscore.lab.train.models import MODELS
from anyscore.lab.translate.trials import find_trials
from anyscore.lab.trials import Trial
from lab.translate.test_translate import WORDS, make, refused

SCORES = ["scaled_dot", "gaussian", "additive"]  # in the order of the library's list


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trials = [Trial(score, seed) for score in SCORES for seed in (0, 1)]
    folder = tmp_path_factory.mktemp("made") / "run"
    return make(folder, "recurrent", [*trials, Trial("dot", 0, 1e-3)])


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def data_of(folder: Path, *scores: str) -> dict[str, Any]:
    return play_data(folder, find_trials(folder, scores or None))


def change(file: Path, **values: Any) -> None:
    record = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(record | values), encoding="utf-8")


def test_the_data_have_vocabularies_examples_and_tensors(run: Path) -> None:
    data = data_of(run)
    assert (data["title"], data["run"], data["limit"]) == ("reverse", "run", 4 + 1 + 2)
    assert data["unit"] == {"source": "character", "target": "character"}
    assert sorted(data["source_vocabulary"]) == sorted(data["target_vocabulary"]) == [*"abcd"]
    assert len(data["examples"]) == 3
    for example in data["examples"]:
        assert example["source"] in WORDS
        assert example["target"] == example["source"][::-1]
    assert [model["score"] for model in data["models"]] == SCORES
    for model in data["models"]:
        file = run / "trials" / f"{model['score']}-seed{model['seed']}" / "model.safetensors"
        wanted = load_file(file)
        assert model["tensors"].keys() == wanted.keys()
        for name, x in wanted.items():
            packed = model["tensors"][name]
            half = np.frombuffer(base64.b64decode(packed["data"]), "<f2").reshape(packed["shape"])
            np.testing.assert_array_equal(half, x.astype(np.float16))


def test_a_score_has_the_seed_of_the_lowest_validation_loss(run: Path) -> None:
    for seed in (1, 0):
        file = run / "trials" / f"gaussian-seed{seed}" / "trial.json"
        epoch = json.loads(file.read_text())["epochs"][0]
        change(file, epochs=[{**epoch, "valid_loss": -1.0 - (seed == 0)}])
        assert find_trials(run, ["gaussian"]) == [run / "trials" / f"gaussian-seed{seed}"]
    assert find_trials(run, seed=1) == [run / "trials" / f"{score}-seed1" for score in SCORES]


def test_the_scores_are_those_asked_for_in_their_order(run: Path) -> None:
    models = data_of(run, "additive", "scaled_dot")["models"]
    assert [model["score"] for model in models] == ["additive", "scaled_dot"]


def test_examples_that_most_models_answer_come_first(run: Path) -> None:
    for score, right in zip(SCORES, ([4], [1, 4], [2]), strict=True):
        for seed in (0, 1):
            file = run / "trials" / f"{score}-seed{seed}" / "trial.json"
            facts = json.loads(file.read_text())["facts"]
            for i, example in enumerate(facts["examples"]):
                example["right"] = i in right
            change(file, facts=facts)
    recorded = ["".join(example["source"]) for example in facts["examples"]]
    wanted = [recorded[i] for i in (4, 1, 2)]
    assert [example["source"] for example in data_of(run)["examples"]] == wanted
    for file in run.glob("trials/*/trial.json"):
        facts = json.loads(file.read_text())["facts"]
        facts["examples"][4]["source"].append("é")
        change(file, facts=facts)
    sources = [example["source"] for example in data_of(run)["examples"]]
    assert sources[:2] == [recorded[1], recorded[2]], "texts beyond ASCII come last"


def test_a_run_without_recorded_examples_has_none(run: Path) -> None:
    for file in run.glob("trials/*/trial.json"):
        change(file, facts={})
    assert data_of(run)["examples"] == []


@pytest.mark.parametrize("trial", [[1], "gone", 3, {"seed": [1]}, None])
def test_damaged_facts_of_a_trial_leave_the_seed_out(run: Path, trial: Any) -> None:
    for file in run.glob("trials/*/model.json"):
        change(file, trial=trial)
    assert {model["seed"] for model in data_of(run)["models"]} == {None}


@pytest.mark.parametrize("model", [name for name in MODELS if name != "recurrent"])
def test_another_model_is_refused(tmp_path: Path, model: str) -> None:
    folder = make(tmp_path / "run", model, [Trial("additive", 0)])
    said = refused(folder, "--play", tmp_path / "page.html")
    assert f"has a model of the kind {model}, and the page runs recurrent models" in said
    assert not (tmp_path / "page.html").exists()


def test_subwords_are_refused(run: Path) -> None:
    for file in run.glob("trials/*/model.json"):
        change(file, target_tokeniser={"unit": "bpe", "tokenizer": bpe()})
    with pytest.raises(InputError, match="subwords, and the page does not make them; train with"):
        data_of(run)


def bpe() -> Any:
    from anyscore.lab.data.tokenisers import Subwords

    return Subwords.train(WORDS, 50).to_json()["tokenizer"]


def test_numbers_beyond_float16_are_refused(run: Path) -> None:
    file = run / "trials" / "gaussian-seed0" / "model.safetensors"
    tensors = load_file(file)
    tensors["combine.bias"][0] = 1e5
    save_file(tensors, file)
    with pytest.raises(InputError, match=r"gaussian-seed0 has parameters that are no numbers"):
        play_data(run, find_trials(run, seed=0))


def test_models_of_different_vocabularies_are_refused(run: Path) -> None:
    change(run / "trials" / "additive-seed0" / "model.json", source_vocabulary=[*"abdc"])
    with pytest.raises(InputError, match=r"the vocabularies of .*scaled_dot-seed0, found"):
        play_data(run, find_trials(run, seed=0))


def test_models_that_are_too_large_are_refused(run: Path, monkeypatch: Any) -> None:
    size = max(
        sum(len(x["data"]) for x in model["tensors"].values()) for model in data_of(run)["models"]
    )
    monkeypatch.setattr(export, "MOST", 2 * size)
    with pytest.raises(InputError, match="choose 2 of them by --score"):
        data_of(run)
    data_of(run, "additive", "gaussian")
    monkeypatch.setattr(export, "MOST", size // 2)
    with pytest.raises(InputError, match="train a smaller --hidden"):
        data_of(run)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["abc"], "visitors of the page type the sources; leave out TEXT"),
        (["--json", "--beam", 2], "leave out --beam and --json"),
        (["--html", "x.html", "--png", "x.png", "--no-attention"], "--attention, --png and --html"),
        (["--score", "dot"], "has trials of additive, gaussian and scaled_dot, none of dot"),
        (["--score", "additive,additive"], "expected each score once, got additive several times"),
        (["--seed", 7], "has trials of scaled_dot with 0 and 1, none with 7"),
    ],
)
def test_options_that_do_not_fit_are_refused(run: Path, options: list[Any], why: str) -> None:
    page = run.parent / "page.html"
    assert why in refused(run, "--play", page, *options)
    assert not page.exists()


def test_places_that_do_not_fit_are_refused(run: Path) -> None:
    assert "expected the name of a file, got the directory" in refused(run, "--play", run)
    assert "there is no directory" in refused(run, "--play", run / "none" / "page.html")
    trial = run / "trials" / "additive-seed0"
    assert "expected the folder of a comparison" in refused(trial, "--play", run / "page.html")
    shutil.rmtree(run / "trials")
    assert "no trial has finished" in refused(run, "--play", run / "page.html")
