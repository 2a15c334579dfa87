"""`anyscore translate` prints the outputs of a trained model, or one line with a reason."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.comparison import Comparison
from anyscore.lab.data.encoding import encode
from anyscore.lab.data.task import Example, Task
from anyscore.lab.errors import InputError
from anyscore.lab.train.answering import answers
from anyscore.lab.train.checkpoint import load_run
from anyscore.lab.train.models import MODELS
from anyscore.lab.train.settings import Settings
from anyscore.lab.train.translation import TranslationTrain
from anyscore.lab.translate.heatmap import heatmap
from anyscore.lab.translate.translations import Notes, translate
from anyscore.lab.translate.trials import find_trial
from anyscore.lab.trials import Outcome, Trial
from helpers.hang import HANG
from lab.command_line import (
    call,
    check_help_does_not_wait_for_pytorch,
    check_quiet_when_its_reader_leaves,
    plain,
    start,
)

WORDS = ["ab", "abc", "cab", "bcd", "dab", "acdb", "bad", "cda", "dcab", "bb", "ca", "adc"]


def task(model: str, words: list[str] = WORDS, unit: Any = "character") -> Task:
    """Return words to their reverse by letter; for a classifier, to their first letter."""
    examples = [Example(w, (w[0] if model == "classifier" else w[::-1],)) for w in words]
    return Task("reverse", "", unit, examples * 4, examples[:4], examples[4:9])


def make(
    folder: Path, model: str, trials: list[Trial], epochs: int = 1, hidden: int = 16, **of_task: Any
) -> Path:
    data = encode(task(model, **of_task), places=model == "pointer")
    settings = Settings(model=model, epochs=epochs, batch_size=8, hidden=hidden, learning_rate=1e-2)
    train = TranslationTrain(data, settings)
    comparison = Comparison(folder)
    with comparison.opened({"task": {"name": "reverse"}, "settings": {"model": model}}):
        for trial in trials:
            comparison.keep(trial, train(trial, lambda told: None))
    return folder


def judge(folder: Path, recommended: str | None, best: str) -> None:
    verdict = {"recommendation": {"score": recommended}, "standings": [{"score": best}]}
    (folder / "comparison.json").write_text(json.dumps({"verdict": verdict}), encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    make(folder, "recurrent", [Trial("dot", 0), Trial("dot", 1, 1e-3)])
    return make(folder, "recurrent", [Trial("additive", 0), Trial("additive", 3)], epochs=30)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    judge(tmp_path / "run", "additive", "dot")
    return tmp_path / "run"


def told(folder: Path, *arguments: object, status: int = 0, **how: Any) -> str:
    result = call("translate", folder, *arguments, **how)
    assert result.exit_code == status, result.output
    return result.stdout


def refused(folder: Path, *arguments: object) -> str:
    """Return the one line of a refusal; assert that there is no output."""
    result = call("translate", folder, *arguments, width=400)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert all(line.startswith("anyscore: model: ") for line in lines[:-1])
    return plain(lines[-1])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_asked(model: str, tmp_path: Path) -> None:
    """The lines equal `answers` of the same words; a tagger gives as many labels as letters."""
    folder = make(tmp_path / "run", model, [Trial("additive", 0)])
    judge(folder, "additive", "additive")
    file = tmp_path / "words.txt"
    file.write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    place = folder / "trials" / "additive-seed0"
    data = encode(Task(**{**vars(task(model)), "test": task(model).train[:12]}))
    loaded = load_run(place)
    expected = ["".join(x.tokens) for x in answers(loaded.model, loaded, data.test)]
    assert told(folder, file).splitlines() == expected
    assert told(place, file).splitlines() == expected
    if model in ("tagger", "classifier"):
        counts = [len(w) if model == "tagger" else 1 for w in WORDS]
        assert [len(line) for line in expected] == counts
        assert "predicts labels, each by itself" in refused(folder, "ab", "--beam", "2")
    elif model == "pointer":
        assert all(set(a) <= set(b) for a, b in zip(expected, WORDS, strict=True))
        assert told(folder, "ж", "--beam", "4").strip("ж\n") == ""
    else:
        assert len(told(folder, file, "--beam", "3").splitlines()) == len(WORDS)


def test_a_model_that_learnt_says_what_is_right(run: Path) -> None:
    assert told(run, "abc", "--quiet") == "cba\n"
    result = call("translate", run, "abc")
    assert result.stdout == "cba\n"
    assert re.match(r"anyscore: model: additive-seed[03] of ", result.stderr)


def test_the_recommended_score_and_its_best_seed_are_asked(run: Path) -> None:
    losses = {}
    for seed in (0, 3):
        record = json.loads((run / "trials" / f"additive-seed{seed}" / "trial.json").read_text())
        losses[seed] = min(epoch["valid_loss"] for epoch in record["epochs"])
    best = min(losses, key=losses.__getitem__)
    other = 3 - best
    trials = run / "trials"
    assert find_trial(run) == trials / f"additive-seed{best}"
    path = trials / f"additive-seed{other}" / "trial.json"
    record = json.loads(path.read_text())
    record["epochs"].append({**record["epochs"][0], "valid_loss": -1.0})
    path.write_text(json.dumps(record))
    assert find_trial(run) == trials / f"additive-seed{other}"
    assert find_trial(run, seed=best) == trials / f"additive-seed{best}"
    assert find_trial(run, score="dot") == trials / "dot-seed0"
    judge(run, None, "dot")
    assert find_trial(run) == trials / "dot-seed0"


def test_a_text_a_file_and_a_pipe_say_the_same(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_bytes(b"ab\r\n\r\n  b  c  \ndab")
    lines = told(run, file).splitlines()
    assert len(lines) == 4
    assert lines[1] == ""
    assert lines[3] == told(run, "dab").strip()
    command = [sys.executable, "-m", "anyscore", "translate", str(run), "--quiet"]
    done = subprocess.run(command, input=file.read_bytes(), capture_output=True, check=True)
    assert done.stdout.decode().splitlines() == lines
    assert done.stderr == b""
    assert told(run, "-", given=file.read_text()).splitlines() == lines


def test_json_is_an_object_a_line(run: Path) -> None:
    bare = json.loads(told(run, "abc", "--json", "--quiet"))
    assert bare.keys() == {"source", "text", "tokens", "complete", "log_probability"}
    assert (bare["source"], bare["text"], bare["tokens"]) == ("abc", "cba", ["c", "b", "a"])
    assert bare["log_probability"] < 0
    found = json.loads(told(run, "abc", "--json", "--attention"))
    assert found["source_tokens"] == ["a", "b", "c"]
    assert [len(row) for row in found["weights"]] == [3] * 4
    for row in found["weights"]:
        assert sum(row) == pytest.approx(1, abs=1e-3)
    empty = json.loads(told(run, "  ", "--json", "--attention"))
    assert (empty["text"], empty["tokens"], empty["log_probability"]) == ("", [], None)


def test_where_it_looked_fits_the_terminal(run: Path) -> None:
    said = told(run, "abc", "--attention")
    assert said.splitlines()[0] == "cba"
    assert [line.split()[0] for line in said.splitlines()[2:]] == ["a", "b", "c"]
    assert re.search(r"[░▒▓█]", said)
    model = load_run(run / "trials" / "dot-seed0")
    for source, width in [("ab" * 3, 40), ("a" * 60, 80), ("ab" * 60, 30), ("ж☃\x1bб", 20)]:
        (one,) = translate(
            model, [source], Notes(model.limit, model.longest_source), return_weights=True
        )
        lines = heatmap(one, ("character", "character"), width)
        assert lines
        assert max(map(len, lines)) <= width
        assert not any("\x1b" in line for line in lines)


def test_what_is_remarkable_is_told_beside_the_output(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("aж☃\n\nabcdabcdabcdabcd\n\x1b[31m\n", encoding="utf-8")
    result = call("translate", run, file, width=400)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4
    said = result.stderr
    assert "anyscore: 1 source without text: its output is empty" in said
    assert "anyscore: 2 sources with tokens that the model does not know (ж, ☃, " in said
    assert "1 source more than twice as long as the longest training source (4 tokens)" in said
    assert "\x1b" not in result.output
    assert call("translate", run, file, "--quiet").stderr == ""
    result = call("translate", run, "missing.txt", width=400)
    assert "there is no file missing.txt; the name itself is the source" in result.stderr


def test_pictures_are_written(run: Path, tmp_path: Path) -> None:
    png, html = tmp_path / "looks.png", tmp_path / "looks.html"
    png.write_bytes(b"old")
    assert told(run, "abc", "--png", png, "--html", html) == "cba\n"
    assert png.read_bytes().startswith(b"\x89PNG")
    page = html.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.count('<table class="weights') == 1
    assert "additive" in page
    file = tmp_path / "words.txt"
    file.write_text("ab\n\n<b>&\n", encoding="utf-8")
    told(run, file, "--html", html)
    page = html.read_text(encoding="utf-8")
    assert page.count('<table class="weights') == 2
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page


def test_what_cannot_be_done_is_one_clear_line(run: Path, tmp_path: Path) -> None:
    file, trial = tmp_path / "words.txt", run / "trials" / "dot-seed0"
    file.write_text("ab\nabc\n", encoding="utf-8")
    assert "expected a source" in refused_on_a_terminal(run)
    assert "found nothing" in refused(tmp_path / "none", "x")
    assert "found a file" in refused(file, "x")
    assert "found no settings.json" in refused(tmp_path, "x")
    assert "this is a directory" in refused(run, tmp_path)
    assert "has trials of additive and dot, none of concat" in refused(
        run, "x", "--score", "concat"
    )
    assert "has trials of dot with 0, none with 1" in refused(
        run, "x", "--score", "dot", "--seed", 1
    )
    assert "choose among the trials" in refused(trial, "x", "--seed", 0)
    assert "--beam: expected 1 to 256, got 0" in refused(run, "x", "--beam", 0)
    assert "there is no directory" in refused(run, "x", "--png", tmp_path / "no" / "x.png")
    assert "expected the name of a file" in refused(run, "x", "--html", tmp_path)
    png = ("--png", tmp_path / "x.png")
    assert "expected one source with a text, got more" in refused(run, file, *png)
    assert "expected one source with a text, got none" in refused(run, " ", *png)
    assert "source 1: expected at most 10,000 tokens, got 10,001" in refused(run, "a" * 10_001)
    file.write_bytes(b"ab\n\xff\n")
    assert "line 2: expected UTF-8, found the byte 0xff" in refused(run, file)
    file.write_bytes(b"\x89PNG\r\n")
    assert "found a picture; give a table of sources" in refused(run, file)


def refused_on_a_terminal(run: Path) -> str:
    from anyscore.lab.translate.sources import read_sources

    class Terminal:
        closed = False

        def isatty(self) -> bool:
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", Terminal())
        with pytest.raises(InputError) as caught:
            list(read_sources(None))
    return str(caught.value)


def test_damaged_and_newer_runs_are_one_clear_line(run: Path) -> None:
    trial = run / "trials" / "dot-seed0"
    config = json.loads((trial / "model.json").read_text(encoding="utf-8"))
    (trial / "model.json").write_text(json.dumps(config | {"format": 99}), encoding="utf-8")
    assert "expected format 2, found 99" in refused(trial, "x")
    (trial / "model.json").write_text("{", encoding="utf-8")
    assert "cannot be read" in refused(trial, "x")
    (trial / "model.json").unlink()
    assert "there is no model in it; anyscore translate runs models of" in refused(trial, "x")
    assert "there is no model in it" in refused(run, "x", "--score", "dot")
    (run / "trials" / "additive-seed0" / "trial.json").write_text("[]", encoding="utf-8")
    assert "damaged" in refused(run, "x")
    for text in ("{", "[]", '{"verdict": {}}', "[" * 100_000):
        (run / "comparison.json").write_text(text, encoding="utf-8")
        assert "there is no verdict in it; give --score" in refused(run, "x")
    shutil.rmtree(run / "trials")
    assert "no trial has finished; continue" in refused(run, "x")


def test_an_own_model_cannot_be_asked(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path / "run")
    with comparison.opened({"task": {}, "settings": {}}):
        comparison.keep(Trial("mine", 0), Outcome({"result": [1.0]}))
    assert "there is no model in it; anyscore translate" in refused(
        tmp_path / "run", "x", "--score", "mine"
    )


def test_ctrl_c_is_quiet_and_so_is_a_reader_that_leaves(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("abc\n" * 200_000, encoding="utf-8")
    process = start("translate", run, file, "--quiet")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "cba\n"
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait(timeout=HANG) == 130
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()
    check_quiet_when_its_reader_leaves(start("translate", run, file, "--quiet"), HANG)


def test_help_does_not_wait_for_pytorch() -> None:
    check_help_does_not_wait_for_pytorch("translate")
    said = call("translate", "--help", width=80)
    assert said.exit_code == 0
    assert max(map(len, said.output.splitlines())) <= 80
