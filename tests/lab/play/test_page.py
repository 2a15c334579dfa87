"""The page to play with as a file: its modules, its data, its size; without a script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.play.export import play_data
from anyscore.lab.play.page import play_page
from anyscore.lab.translate.trials import find_trials
from anyscore.lab.trials import Trial
from anyscore.plot.page import joined_modules
from helpers.browser import Page
from helpers.node import syntax_error
from lab.report.test_browser import DESKTOP, PHONE, complaints, width
from lab.translate.test_translate import make, told

PACKAGE = Path(__file__).parents[3] / "src/anyscore"
SCORES = ["scaled_dot", "gaussian", "additive"]
HOSTILE = ["</script>", "<!--", "<script>", "<b>&amp;", "\u202ea\u200b", "@@x{{", "🦊\u200d"]
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trials = [Trial(score, 0) for score in SCORES]
    return make(tmp_path_factory.mktemp("made") / "run", "recurrent", trials)


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose tokens, texts and title are hostile."""
    words = [f"{x} {y}" for x in HOSTILE for y in HOSTILE[:3]]
    folder = tmp_path_factory.mktemp("hostile") / "run"
    make(folder, "recurrent", [Trial("additive", 0)], words=words, unit="token")
    file = folder / "settings.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    record["shared"]["task"]["description"] = "".join(HOSTILE)
    file.write_text(json.dumps(record), encoding="utf-8")
    return folder


def page_of(run: Path) -> str:
    return play_page(play_data(run, find_trials(run))).decode()


def script_of(page: str) -> str:
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    return str(script)


def data_of(page: str) -> Any:
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(data)


def test_the_command_writes_the_page_of_the_data(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    assert told(run, "--play", path) == ""
    assert path.read_text("utf-8") == page_of(run)
    assert data_of(page_of(run)) == play_data(run, find_trials(run))
    told(run, "--play", path, "--score", "additive,gaussian", "--quiet")
    models = data_of(path.read_text("utf-8"))["models"]
    assert [model["score"] for model in models] == ["additive", "gaussian"]


def test_the_page_has_every_module_once(run: Path) -> None:
    script = script_of(page_of(run))
    modules = [*(PACKAGE / "lab/play").glob("*.js"), PACKAGE / "plot/heatmap.js"]
    assert len(modules) > 5
    for path in modules:
        first, *_ = path.read_text(encoding="utf-8").splitlines()
        assert script.count(f"{first}\n") == 1, path.name
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)


def test_no_two_modules_have_a_name_in_common(tmp_path: Path) -> None:
    script = joined_modules("lab/play/play.js")
    assert syntax_error(script, tmp_path) == ""
    for twice in ("const tokenise = 1;", "function makeTabs() {}"):
        assert "has already been declared" in syntax_error(f"{script}\n{twice}", tmp_path)


def test_the_page_is_small_and_asks_for_nothing(run: Path) -> None:
    page = page_of(run)
    data = len(json.dumps(data_of(page)))
    assert len(page.encode()) - data < 200_000
    assert "default-src 'none'" in page
    assert not re.search(r"\b(src|href)=(?![\"']?data:)", page.replace(script_of(page), ""))


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, {"viewport": PHONE}])
def test_hostile_texts_stay_texts(
    open_file: Open, hostile_run: Path, tmp_path: Path, look: dict[str, Any]
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(hostile_run), encoding="utf-8")
    assert data_of(path.read_text("utf-8"))["title"] == "".join(HOSTILE)
    page = open_file(path, **look)
    assert complaints(page) == []
    assert width(page) <= (PHONE if "viewport" in look else DESKTOP)["width"]
    assert page.locator("script").count() == 2
    assert "\u202e" not in page.inner_text("body")


def test_without_a_script_the_page_says_so(open_file: Open, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page_of(run), encoding="utf-8")
    page = open_file(path, java_script_enabled=False)
    said = page.inner_text("body")
    assert "switched off" in said
    for score in SCORES:
        assert score in said
    assert page.locator("button:visible, input:visible, canvas:visible").count() == 0
